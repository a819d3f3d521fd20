"""The look for due jobs of a name behind any number of skipped documents, which no scheduler can run.

A query may name a thousand documents that it leaves out. Where a name has more of them, a call here reads the keys of
the claim index page by page, without the documents. It drops the ids that are known to be skipped, and reads only the
other documents: first without large fields, then whole, as many jobs as are wanted.

Each call reads two parts of the index, a bounded number of pages of each:

- The new part begins where the call before stopped (`PagingPlace.new_from`): everything before that place was skipped.
- The known part lies before that place. A job may have come there since: it was released, or repaired, or became due
  at an earlier moment. So the calls read that part again and again, and each goes on where the one before stopped
  (`PagingPlace.reread_to`).

The places need no lock: an instance has one look at a time (`engine/candidates.py`), in changing threads. Only a look
that was abandoned when a scheduler ended may overlap with the first look of the next one. Then a pass may begin anew,
or forget skipped documents, which the looks meet again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from bson import ObjectId

from ...jobs.claimable import CLAIMS_GO_BY, claimable, in_claim_order
from ...jobs.conditional_write import Within
from ...jobs.cursors import Anchor
from ...jobs.job import Job, JobStatus
from ...jobs.rescue_policy import is_suspect
from ..codec import OWN_OPTIONS, filter_of
from ..driver.commands import BY_ID, command, of_ids
from ..fields import BUT_HEAVY, FIELD
from ..job_collection import JobCollection
from ..skipped_documents import PagingPlace
from . import indexes
from .index_scans import IndexScan

KEYS_IN_A_PAGE: Final = 2000
"""Keys of the index in one page: the server needs a millisecond or two for it."""

MOST_PAGES: Final = 5
"""Pages that one call reads of each of the two parts."""

MOST_READ: Final = 500
"""Documents of one page that are read, without large fields."""

_NEXT_RUN_AT: Final = FIELD[CLAIMS_GO_BY]


@dataclass(frozen=True, slots=True)
class _Found:
    """What a look found in one part of the index.

    Attributes:
        jobs: Candidates, earliest first.
        place: The last place before the first candidate: everything up to it was skipped, and the next call begins
            behind it.
        is_end: The part was read to its end.
        met: How many skipped documents the look met.
    """

    jobs: Sequence[Job]
    place: Anchor | None
    is_end: bool
    met: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a look is for.

    Attributes:
        name: The name of the jobs.
        most: How many jobs are wanted.
        now: By the server's time.
        suspects: Whether suspects are wanted, too.
    """

    name: str
    most: int
    now: datetime
    suspects: bool


@command("look for due jobs", writes=False)
def look(jobs: JobCollection, wanted: Wanted, *, is_announced: bool) -> tuple[Sequence[Job], bool]:
    """Return due jobs, at most as many as wanted, and whether there are certainly no others now.

    Args:
        jobs: The jobs collection.
        wanted: What to look for.
        is_announced: A job may have become due since the call before.
    """
    paging = jobs.paging.setdefault(wanted.name, PagingPlace())
    # If a pass through the known part has begun, the announced job may lie in what it has read already. Only another
    # whole pass shows whether there is one.
    paging.is_asked_again |= is_announced and paging.reread_to is not None
    end = paging.new_from
    known, is_all_known = ([], True) if end is None else _look_at_known_part(jobs, wanted, paging, end)
    if len(known) >= wanted.most:
        return known, False
    found = _Part(jobs, replace(wanted, most=wanted.most - len(known))).look(end, None)
    paging.new_from = found.place
    return [*known, *found.jobs], is_all_known and found.is_end


def _look_at_known_part(
    jobs: JobCollection, wanted: Wanted, paging: PagingPlace, end: Anchor
) -> tuple[Sequence[Job], bool]:
    """Read the next pages of the known part, which ends where the new part begins."""
    found = _Part(jobs, wanted).look(paging.reread_to, end)
    paging.reread_to = found.place
    paging.met += found.met
    if not found.is_end:
        return found.jobs, False
    if 2 * paging.met < jobs.count_skipped(wanted.name):
        # Most of the skipped documents are gone: forget all of them. The looks meet the others again.
        jobs.forget_skipped(wanted.name)
    is_all = not paging.is_asked_again
    paging.reread_to, paging.met, paging.is_asked_again = None, 0, False
    return found.jobs, is_all


class _Part:
    """Looks at the pending and due documents of one name, between two places of the claim index."""

    def __init__(self, jobs: JobCollection, wanted: Wanted) -> None:
        self._jobs = jobs
        self._wanted = wanted
        self._scan = IndexScan(
            index=indexes.name_of(indexes.CLAIM),
            by=CLAIMS_GO_BY,
            prefixes=[{"name": wanted.name, "status": JobStatus.PENDING}],
            within=Within(at_most=wanted.now),
            residual={"$nor": [{_NEXT_RUN_AT: {"$type": "array"}}]},
        )
        self._met_arrays = False

    def look(self, after: Anchor | None, until: Anchor | None) -> _Found:
        found: list[Job] = []
        place, is_before_candidates, met, is_end = after, True, 0, False
        for _ in range(MOST_PAGES):
            page, is_last = self._page(after, until)
            # Jobs, and documents that are not known as broken: a bounded number of those is remembered.
            unknown = [one.id for one in page if not self._jobs.is_skipped(one.id)]
            read, page = self._cut(page, unknown)
            good = self._good(read, self._wanted.most - len(found))
            candidates = {job.id for job in good}
            # The place stops before the first candidate: if no claim takes it, the next look must meet it again.
            for one in page:
                is_before_candidates = is_before_candidates and one.id not in candidates
                place = one if is_before_candidates else place
            met += len(page) - len(good)
            found += good
            is_full = len(found) >= self._wanted.most
            is_whole_page = len(read) == len(unknown)
            is_end = is_last and is_whole_page and not is_full
            if is_end or is_full:
                break
            after = page[-1] if page else after
        return _Found(found, place, is_end, met)

    def _page(self, after: Anchor | None, until: Anchor | None) -> tuple[list[Anchor], bool]:
        """Return the next keys of the index, without their documents, and whether they are the last ones."""
        keys = self._keys(after, until)
        # An array of dates, which no job has, matches by any of its dates, and the server sorts it by its earliest one.
        # So it comes at the head of every page until the anchor is behind its latest date: a page full of arrays would
        # come again and again.
        page = [Anchor(key["_id"], key[_NEXT_RUN_AT]) for key in keys if isinstance(key[_NEXT_RUN_AT], datetime)]
        if len(page) < len(keys) == KEYS_IN_A_PAGE and not self._met_arrays:
            self._met_arrays = True
            return self._page(after, until)
        return page, len(keys) < KEYS_IN_A_PAGE

    def _keys(self, after: Anchor | None, until: Anchor | None) -> list[dict[str, Any]]:
        # Leave out arrays only once a page was full of them: to check that, the server reads the documents, and
        # not the keys alone.
        between = self._scan.ranges(after, until, descending=False, with_residual=self._met_arrays)
        return list(
            self._jobs.collection.with_options(codec_options=OWN_OPTIONS).find(
                between,
                {"_id": True, _NEXT_RUN_AT: True},
                sort=self._scan.order(descending=False),
                limit=KEYS_IN_A_PAGE,
                batch_size=KEYS_IN_A_PAGE + 1,
                hint=indexes.hint(self._jobs, indexes.CLAIM),
            )
        )

    @staticmethod
    def _cut(page: list[Anchor], unknown: Sequence[ObjectId]) -> tuple[Sequence[ObjectId], list[Anchor]]:
        """Return the first `MOST_READ` of the unknown ids, and the page up to the last of these."""
        if len(unknown) <= MOST_READ:
            return unknown, page
        read = unknown[:MOST_READ]
        end = next(place for place, one in enumerate(page) if one.id == read[-1])
        return read, page[: end + 1]

    def _good(self, ids: Sequence[ObjectId], most: int) -> list[Job]:
        """Return those that can be claimed, earliest first, at most `most`. The others are skipped from now on."""
        due = filter_of(claimable([self._wanted.name], self._wanted.now))
        # A pending job with an owner is met as well: it is logged, and skipped from now on.
        del due[FIELD["claim.by"]]
        light = self._read({**due, **of_ids(ids)}, BUT_HEAVY) if ids else []
        good = in_claim_order(
            job
            for job in light
            if (self._wanted.suspects or not is_suspect(job)) and self._jobs.can_be_claimed(job, (self._wanted.name,))
        )
        found: list[Job] = []
        # Some jobs prove broken only when their large fields are read, or another instance has claimed them meanwhile:
        # the next ones take their places.
        while good and len(found) < most:
            part, good = good[: most - len(found)], good[most - len(found) :]
            found += self._read({**due, **of_ids(job.id for job in part), FIELD["claim.by"]: None}, None)
        return in_claim_order(found)

    def _read(self, wanted: Mapping[str, Any], fields: Mapping[str, bool] | None) -> list[Job]:
        return self._jobs.decoded(lambda collection: collection.find(wanted, fields, hint=BY_ID))


@command("look for the earliest due job", writes=False)
def earliest(jobs: JobCollection, name: str, now: datetime) -> datetime | None:
    """Return when the first due job of the name became due, without skipped documents; None if none is due."""
    part = _Part(jobs, Wanted(name=name, most=1, now=now, suspects=True))
    found = part.look(None, None)
    while not found.jobs and not found.is_end:
        found = part.look(found.place, None)
    return found.jobs[0].next_run_at if found.jobs else None
