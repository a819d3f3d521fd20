"""The engine, for the documents of any collection: `SELECT ... FOR UPDATE SKIP LOCKED`, with leases."""
