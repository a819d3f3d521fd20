"""Another run of a job that is running: what `on_conflict="replace"` and "debounce" leave in it. Pure.

While a job runs, it has its unique key, and a second job with the newer data cannot be stored. The call writes these
into the running job, beside what it runs with (`again`). The race is with its end, which may be decided before the call
and written after it. So each end after which the job would run no more asks that no call has left anything. If one has,
the end matches nothing, and is decided again: the same job is pending once more, with the newer data.

An attempt that is followed by another one (a retry, a snooze, a release, a rescue) leaves `again` as it is: the job
runs with its first data until these are done or have failed, and then with the newer ones. A cancellation drops them,
because it ends what the key stands for.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Final

COPIED: Final = MappingProxyType(
    {
        "data": "again.data",
        "next_run_at": "again.next_run_at",
        "limits.start_by": "again.start_by",
        "debounced_since": "again.debounced_since",
    }
)
"""What the next run gets, and from where: by the server, so that the last call counts.

If the end wrote the values that it has read, each further call would make it read once more. Under steady calls, it
would never be written.
"""


def debounced_until(since: datetime, now: datetime, delay: float, max_wait: float | None) -> datetime:
    """When a job is due that calls have delayed since a moment: the last one by `delay`, all by at most `max_wait`."""
    due = now + timedelta(milliseconds=round(delay * 1000))
    return due if max_wait is None else min(due, since + timedelta(milliseconds=round(max_wait * 1000)))
