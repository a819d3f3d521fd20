"""How claimed things are run: claims, leases and runs. Knows no job and no MongoDB."""
