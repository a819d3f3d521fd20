"""What the leases promise, with real processes on the real clock: servers and schedulers are frozen and cut off."""
