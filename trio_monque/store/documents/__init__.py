"""Documents of any collection: claimed by a lock in each, as jobs are by their fields; parallel to the jobs' files."""

from . import claiming, dead_letters, due, indexes, leases, rescuing, settling

__all__ = ["claiming", "dead_letters", "due", "indexes", "leases", "rescuing", "settling"]
