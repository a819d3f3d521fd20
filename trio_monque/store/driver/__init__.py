"""How commands are sent: the driver's threads, errors, types, and what statements of both kinds share."""
