"""The types that `payload=` declares: stored as plain BSON, checked, and read again."""
