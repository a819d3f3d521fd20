"""Claims on documents of any collection, by a lock in each document. The files are parallel to those for jobs."""

from . import claiming, counting, dead_letters, due, indexes, leases, rescuing, settling

__all__ = ["claiming", "counting", "dead_letters", "due", "indexes", "leases", "rescuing", "settling"]
