"""Managing over HTTP."""
