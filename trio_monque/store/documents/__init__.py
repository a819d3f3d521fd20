"""Claims on documents of any collection, by a lock in each document. The files are parallel to those for jobs."""

from . import claiming, counting, due, indexes, leases, listing_and_readmitting, rescuing, settling

__all__ = ["claiming", "counting", "due", "indexes", "leases", "listing_and_readmitting", "rescuing", "settling"]
