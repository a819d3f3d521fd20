"""The look before a claim: which jobs are due. Nothing is written here. `next_due.py` says when the next one is.

A look returns candidates, not claims. Two instances may see the same job; the guarded write decides who gets it
(`claiming.py`). So a look may be stale, but it must not miss a due job for long. What the conditions here close:

- One query for each name, in one round trip. With one query for all names, a name with a long backlog would fill it,
  and due jobs of other names would wait behind that backlog.
- Documents that no scheduler can run stay pending and due. They would fill the head of the queue for ever, so a look
  leaves them out by id (`skipped_documents.py`). Where they are too many for one query, the look reads the index page
  by page (`due_behind_skipped.py`).
- A look reads ahead, and payloads may be large: hundreds of candidates of a megabyte each would fill the memory. So it
  stops between two batches of the server once it has what can start now. The names that it has not reached come first
  in the next look: otherwise, names at the end would wait for ever. A batch may have 16 MB, and the driver copies it
  twice: so a look asks for smaller batches if the last one has found large documents, and ends with its first batch if
  the documents are much larger than those of the last one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bson import ObjectId
from pymongo import ASCENDING

from ...jobs.claimable import CLAIMS_GO_BY, claimable
from ...jobs.job import Job
from ...jobs.rescue_policy import UNSUSPECTED
from ..broken import broken_documents
from ..codec import filter_of
from ..driver.commands import command, in_chunks
from ..driver.raw_batches import RawBatches, aggregated_in_batches, found_in_batches
from ..fields import FIELD
from ..job_collection import JobCollection
from ..skipped_documents import can_be_named
from . import due_behind_skipped, indexes
from .due_behind_skipped import Wanted

CLAIM_ORDER: Final = [(FIELD[CLAIMS_GO_BY], ASCENDING)]
"""The order in which due jobs are claimed: earliest first. Not by id as well: the claim index does not give that."""

MOST_NAMED: Final = 1000
"""Skipped documents of one name that a query leaves out by id. For more of them, see `due_behind_skipped.py`."""

LOOK_BYTES: Final = 4 * 2**20
"""Beyond this number of bytes, a look reads no further batch if it has enough. So it reads less than 20 MB, or what can
start now."""

MUCH_LARGER: Final = 4
"""Documents of four times the usual size make batches of 16 MB of those that were to have 4 MB."""

# The server takes a pipeline of a thousand stages at most.
MOST_NAMES_IN_ONE_LOOK: Final = 200

_NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
_NEXT_RUN_AT = FIELD["next_run_at"]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far a look reads if the jobs are large.

    Attributes:
        enough: With this number of jobs, it may end early: see `LOOK_BYTES`. With fewer, if the documents are much
            larger than `usual_size`. By default it does neither.
        usual_size: The size of a document in bytes, as the last look found it.
        leaves_out: Jobs that other claims of this instance are about to take.
    """

    enough: int = sys.maxsize
    usual_size: int = 1
    leaves_out: Sequence[ObjectId] = ()

    def is_exceeded_by(self, size: int, read: int) -> bool:
        """Whether documents of `size` bytes together are much larger than usual: the next look has smaller batches."""
        return self.enough < sys.maxsize and size > MUCH_LARGER * self.usual_size * read


WHOLE: Final = Reach()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look found.

    Attributes:
        jobs: Candidates, not claims: earliest first within each name.
        exhausted: The names that have no other due jobs now.
        short: The names that had fewer jobs than wanted behind the passed-over ones. So a second query has read these
            names from the head.
        unread: The names that the look has not reached, or not read to the end, because it had enough.
        usual_size: The mean size of the documents that it read, in bytes: for the next look.
    """

    jobs: Sequence[Job]
    exhausted: frozenset[str] = frozenset()
    short: frozenset[str] = frozenset()
    unread: Sequence[str] = ()
    usual_size: int = 1


def survey(
    jobs: JobCollection,
    wanted: Mapping[str, int],
    now: datetime,
    *,
    suspects: bool = True,
    passed_over: Mapping[str, int] = _NOTHING,
    is_announced: bool = True,
    reach: Reach = WHOLE,
) -> Seen:
    """Look for due jobs, and once more for the names that have too few in the first answer. Usually one round trip.

    Each name with many skipped documents has queries of its own: see `due_behind_skipped.py`.

    Args:
        jobs: The jobs collection.
        wanted: How many jobs of each name to return at most.
        now: By the server's time.
        suspects: Whether to return suspects, too.
        passed_over: How many jobs at the head of a name to leave out: other instances claim those (see
            `engine/contention.py`).
        is_announced: A job may have become due since the look before.
        reach: How far to read.
    """
    # More documents may prove repaired at the next look, and be due: until then, no name counts as exhausted.
    is_more_repaired = broken_documents.look_again_if_it_is_time(jobs)
    plain = {name: most for name, most in wanted.items() if jobs.count_skipped(name) <= MOST_NAMED}
    skipped_before = {name: jobs.count_skipped(name) for name in plain}
    heads = {name: count for name, count in passed_over.items() if name in plain}
    found, unread, usual_size = look(jobs, plain, now, suspects=suspects, passed_over=heads, reach=reach)
    # Behind the passed-over head, these names had too few jobs. So this reads the head as well: a job may have come
    # there since it was counted, and would otherwise wait.
    short = _short(found, {name: plain[name] for name in heads if name not in unread})
    if short:
        again, cut, _ = look(
            jobs, {name: most for name, most in plain.items() if name in short}, now, suspects=suspects, reach=reach
        )
        found, unread = [*(job for job in found if job.name not in short), *again], [*unread, *cut]
    exhausted = _short(found, {name: most for name, most in plain.items() if name not in unread})
    # A document that this look met, and that is skipped from now on, took the place of a job: there may be jobs behind
    # it, so the name is not exhausted.
    paged = {
        name
        for name in wanted
        if name not in plain or (name in exhausted and jobs.count_skipped(name) > skipped_before[name])
    }
    if not paged:
        return Seen(found, frozenset() if is_more_repaired else exhausted, short, unread, usual_size)
    found, exhausted = [job for job in found if job.name not in paged], exhausted - paged
    for name in paged:
        if wanted[name] > 0:
            # Not more than can start: these queries do not count bytes.
            of_name = Wanted(name=name, most=min(wanted[name], reach.enough), now=now, suspects=suspects)
            due, is_all = due_behind_skipped.look(jobs, of_name, is_announced=is_announced)
            found += due
            exhausted |= {name} if is_all else set()
    # A paged look passes nothing over: it has read these names from the head.
    short |= passed_over.keys() & paged
    return Seen(found, frozenset() if is_more_repaired else exhausted, short, unread, usual_size)


def _short(found: Sequence[Job], wanted: Mapping[str, int]) -> frozenset[str]:
    """Return the names with fewer jobs than wanted."""
    counted = Counter(job.name for job in found)
    return frozenset(name for name, most in wanted.items() if counted[name] < most)


class Looked(NamedTuple):
    """What one look found; `unread` and `usual_size` are as in `Seen`."""

    jobs: Sequence[Job]
    unread: Sequence[str]
    usual_size: int


@command("look for due jobs", writes=False)
def look(
    jobs: JobCollection,
    wanted: Mapping[str, int],
    now: datetime,
    *,
    suspects: bool = True,
    passed_over: Mapping[str, int] = _NOTHING,
    reach: Reach = WHOLE,
) -> Looked:
    """Return due jobs, earliest first within each name, at most as many of each name as wanted.

    Args:
        passed_over: How many jobs at the head of a name to leave out.
        suspects: Whether to return suspects, too.
        reach: How far to read.

    Raises:
        IndexesGoneError: The claim index is not there, although it should be.
    """
    # If no suspect can be claimed now, a row of them at the head must not hide the jobs behind it.
    also = {} if suspects else filter_of(UNSUSPECTED)
    names = [name for name, slots in wanted.items() if slots > 0]
    found: list[Job] = []
    size, read, is_cut = 0, 0, False
    for chunk in in_chunks(names, MOST_NAMES_IN_ONE_LOOK):
        of_chunk = {name: wanted[name] for name in chunk}
        with indexes.relied_on(), closing(_batches(jobs, of_chunk, now, also, passed_over, reach)) as batches:
            for batch in batches:
                documents = jobs.decoded_batch(batch)
                found += (job for job in documents if jobs.can_be_claimed(job, wanted))
                size, read = size + len(batch), read + len(documents)
                del batch, documents  # Otherwise they stay while the next batch is read.
                if size > LOOK_BYTES and found and (len(found) >= reach.enough or reach.is_exceeded_by(size, read)):
                    is_cut = True
                    break
        if is_cut:
            break
    # The name that was read last may have more, too.
    unread = names[names.index(found[-1].name) :] if is_cut else ()
    return Looked(found, unread, size // read if read else reach.usual_size)


def _batches(
    jobs: JobCollection,
    wanted: Mapping[str, int],
    now: datetime,
    also: Mapping[str, Any],
    passed_over: Mapping[str, int],
    reach: Reach,
) -> RawBatches:
    collection = jobs.collection
    first, *others = wanted
    due = {**_due(jobs, first, now, reach.leaves_out), **also}
    in_a_batch = max(1, LOOK_BYTES // reach.usual_size)
    # If the index is gone, the look fails instead of reading the whole collection, and the client creates the indexes
    # again.
    index = indexes.hint(jobs, indexes.CLAIM)
    if not others:
        return found_in_batches(
            collection,
            due,
            sort=CLAIM_ORDER,
            skip=passed_over.get(first, 0),
            limit=wanted[first],
            batch_size=min(wanted[first] + 1, in_a_batch),
            hint=index,
        )
    # A part for each name: see the top of this file.
    return aggregated_in_batches(
        collection,
        [
            *_earliest(due, wanted[first], passed_over.get(first, 0)),
            *(
                {
                    "$unionWith": {
                        "coll": collection.name,
                        "pipeline": _earliest(
                            {**_due(jobs, name, now, reach.leaves_out), **also}, wanted[name], passed_over.get(name, 0)
                        ),
                    }
                }
                for name in others
            ),
        ],
        batchSize=min(sum(wanted.values()) + 1, in_a_batch),
        **indexes.hinting(index),
    )


def _due(jobs: JobCollection, name: str, now: datetime, but: Sequence[ObjectId] = ()) -> dict[str, Any]:
    due = filter_of(claimable([name], now))
    # Another program may leave a pending job with an owner. No claim takes it, but a look must see it, to log it.
    unowned = {FIELD["claim.by"]: due.pop(FIELD["claim.by"])}
    if left_over := jobs.left_over.of(name):
        # Looks leave out such jobs that are logged already, for as long as they have an owner.
        due["$or"] = [unowned, {"_id": {"$nin": left_over}}]
    if unfit := [*jobs.broken.of(name), *jobs.unclaimable.of(name), *jobs.elsewhere.of(name), *but]:
        # The skipped documents stay pending, and would fill the head of the queue.
        due["_id"] = ids = dict[str, Any]({"$nin": unfit})
        # If no query can name one of these ids, that document would come back in every look. Its id is not an ObjectId,
        # as the id of every job is: so the look asks for ObjectIds only.
        if not all(map(can_be_named, unfit)):
            ids["$type"] = "objectId"
    return due


def _earliest(due: Mapping[str, Any], limit: int, skip: int) -> list[dict[str, Any]]:
    passing_over = [{"$skip": skip}] if skip else []
    return [{"$match": due}, {"$sort": dict(CLAIM_ORDER)}, *passing_over, {"$limit": limit}]
