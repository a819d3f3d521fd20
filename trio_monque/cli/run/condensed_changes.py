"""What a worker process needs to know of many changes: few of them.

A process does the same for a thousand new jobs of one name as for the first and the last due of them: it looks. When
each process was sent each change, four processes were slower than two under a backlog that was just enqueued.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from ...store.jobs.change_stream import ChangeKind, JobChange


def condensed(changes: Sequence[JobChange]) -> Sequence[JobChange]:
    """Return what a scheduler needs to know of these.

    One or two due jobs of a name remain as they are: a process claims a single new one by its id. Of more, the first
    and the last due remain, and are no longer called new: a process ignores new jobs that it has enqueued itself, and
    these may be among them while the others are not.
    """
    kept = list[JobChange]()
    undated = dict[str | None, JobChange]()
    dated = defaultdict[str | None, list[tuple[datetime, JobChange]]](list)
    for change in changes:
        if change.kind is not ChangeKind.JOB or change.cancel_requested:
            kept.append(change)
        elif change.is_pending and change.due is None:
            undated[change.name] = change
        elif change.is_pending and change.due is not None:
            dated[change.name].append((change.due, change))
    for of_name in dated.values():
        if len(of_name) > 2:
            ends = (min(of_name, key=_due), max(of_name, key=_due))
            kept += [replace(change, is_new=False) for _, change in ends]
        else:
            kept += [change for _, change in of_name]
    return [*kept, *undated.values()]


def _due(dated: tuple[datetime, JobChange]) -> datetime:
    return dated[0]
