"""When the next job is due, and whether it is due alone: then a claim takes it by its id. Nothing is written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import Int64, ObjectId

from ...jobs.claimable import claimable
from ...jobs.follow_ups import PARKED_UNTIL
from ...jobs.rescue_policy import UNSUSPECTED
from ..broken.doubled_fields import AS_COMPARED
from ..codec import filter_of
from ..decoding import LARGEST_COUNTER
from ..driver.commands import command, in_chunks
from ..fields import FIELD
from ..job_collection import JobCollection
from . import due_behind_skipped
from .due import CLAIM_ORDER, MOST_NAMES_IN_ONE_LOOK

_NEXT_RUN_AT: Final = FIELD["next_run_at"]


@dataclass(frozen=True, slots=True)
class OneJob:
    """What `claiming.take_one` needs to claim a pending job without a look.

    Attributes:
        id: The id of the job.
        name: The name of the job.
        attempts: How often the job has been claimed.
    """

    id: ObjectId
    name: str
    attempts: int


@dataclass(frozen=True, slots=True)
class NextDue:
    """When the next job is due.

    Attributes:
        moment: When that is.
        alone: The job, if no other one is due at that moment, and if a claim can take it by its id.
    """

    moment: datetime
    alone: OneJob | None


_OF_ONE: Final = {FIELD[field]: True for field in ("id", "name", "next_run_at", "attempts", "rescues")}


@command("look for the next due job", writes=False)
def next_due(jobs: JobCollection, names: Sequence[str], after: datetime) -> NextDue | None:
    """Return when the earliest job of those that were not due at `after` is due; None if there is none."""
    earliest: list[Mapping[str, Any]] = []
    # If a document has the date twice, the server compares the first, and these codec options read the first. If this
    # function returned the second one, and that was in the past, the caller would ask again at once, for ever.
    collection = jobs.collection.with_options(codec_options=AS_COMPARED)
    for chunk in in_chunks(names, MOST_NAMES_IN_ONE_LOOK):
        # Skipped documents need not be left out: they were due before `after`.
        later = filter_of(claimable(chunk, after))
        # An array of dates, which no job has, matches by any of its dates. Two of them would hide the jobs behind them.
        later[_NEXT_RUN_AT] = {"$gt": after, "$not": {"$type": "array"}}
        # Two documents, to know whether the first is alone. A negative limit: in one answer, without a cursor.
        found = collection.find(later, _OF_ONE, sort=CLAIM_ORDER, limit=-2)
        # The driver does not read a date beyond the year 9999 as a datetime. Such a job never becomes due; nor does a
        # follow-up while it is parked, and a virtual clock would jump to its date.
        earliest += [
            document
            for document in found
            if isinstance(document[_NEXT_RUN_AT], datetime) and document[_NEXT_RUN_AT] < PARKED_UNTIL
        ]
    if not earliest:
        return None
    moment = min(document[_NEXT_RUN_AT] for document in earliest)
    first, *others = (document for document in earliest if document[_NEXT_RUN_AT] == moment)
    return NextDue(moment, None if others else _one(first))


@command("look for the earliest pending job", writes=False)
def earliest(jobs: JobCollection, names: Sequence[str], now: datetime) -> datetime | None:
    """Return when the first pending job of these names is or was due, without skipped ones; None if there is none."""
    due = [moment for name in names if (moment := due_behind_skipped.earliest(jobs, name, now)) is not None]
    if due:
        return min(due)
    later = next_due(jobs, names, now)
    return None if later is None else later.moment


def _one(found: Mapping[str, Any]) -> OneJob | None:
    job_id, attempts = found["_id"], found.get(FIELD["attempts"]) or 0
    is_counter = type(attempts) in (int, Int64) and 0 <= attempts <= LARGEST_COUNTER
    is_whole = type(job_id) is ObjectId and is_counter and type(found[FIELD["name"]]) is str
    if not is_whole or found.get(FIELD["rescues"]) not in UNSUSPECTED["rescues"].values:
        return None
    return OneJob(job_id, found[FIELD["name"]], attempts)
