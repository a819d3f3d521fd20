"""The job nursery: on a real server, mostly in virtual time."""
