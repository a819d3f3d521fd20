"""Counts the jobs of a selection, for a question before a bulk action. Each count reads a bounded part of an index.

An index has the statuses and names of a selection, and shows how many jobs have them, and how many of those are due.
Ages, changes and fail reasons are in no index beside names: the server reads the documents to check these, `MOST_READ`
of them at most. With an age or a change there is a second way, along the index of that date: the count that reached
its end is the exact one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pymongo import IndexModel

from ...jobs.job import JobStatus
from ...jobs.job_selector import JobSelector, one_of
from ..codec import LENIENT, filter_of
from ..driver.bounded_counts import Stages, first_of, number_by
from ..driver.commands import command
from ..job_collection import JobCollection
from ..jobs import indexes
from .queries import names_at_rest

MOST_COUNTED: Final = 100_000
"""The number up to which jobs are counted: a tenth of a second."""

MOST_READ: Final = 100_000
"""Documents that are read to check what no index has: some tenths of a second."""

MOST_NAMES: Final = 1_000
"""Names whose due jobs are counted along the index that has the names first."""

_BY_ID: Final = "_id_"

# Most jobs of an old collection are completed, and their fail reasons are those of early attempts.
_ORDER: Final = (
    JobStatus.FAILED,
    JobStatus.CANCELLED,
    JobStatus.PENDING,
    JobStatus.PROCESSING,
    JobStatus.COMPLETED,
)


@dataclass(frozen=True, slots=True)
class SelectionCount:
    """How many jobs are selected.

    Attributes:
        number: How many were counted.
        is_capped: There may be more.
    """

    number: int
    is_capped: bool = False

    def __str__(self) -> str:
        if not self.is_capped:
            return f"{self.number:,}"
        if self.number == MOST_COUNTED:
            return f"more than {self.number:,}"
        return f"at least {self.number:,}" if self.number else "an unknown number of"


@dataclass(frozen=True, slots=True)
class _CountedPart:
    """A part of the selection, and the index that leads to it.

    Attributes:
        index: The name of the index.
        leading: The conditions on the fields that lead the index.
        residual: The other conditions, which the server checks on what the index leads to.
    """

    index: str
    leading: Mapping[str, Any]
    residual: Mapping[str, Any]


@command("count the selected jobs", writes=False, aggregates=True)
def count_selected(
    jobs: JobCollection,
    selector: JobSelector,
    statuses: Sequence[JobStatus],
    most_counted: int = MOST_COUNTED,
    most_read: int = MOST_READ,
) -> SelectionCount:
    """Return how many documents the selection has in these statuses, counted up to `most_counted`.

    Documents that are not jobs count too, if they match: a bulk action meets them, and refuses them.
    """
    asked = selector.conditions()
    if "next_run_at" in asked and not selector.has_key:
        return _count(jobs, [*_by_due_date(jobs, selector, statuses, asked)], most_counted, most_read)
    best = _count(jobs, [*_by_status(selector, statuses, asked)], most_counted, most_read)
    for parts in _by_dates(selector, statuses, asked):
        if not best.is_capped or best.number == most_counted:
            break
        counted = _count(jobs, parts, most_counted, most_read)
        best = counted if not counted.is_capped or counted.number > best.number else best
    return best


def _by_due_date(
    jobs: JobCollection, selector: JobSelector, statuses: Sequence[JobStatus], asked: Mapping[str, Any]
) -> Iterator[_CountedPart]:
    """In the index, the due date stands behind the names: without a selection of names, those of pending jobs."""
    names = names_at_rest(jobs, statuses, MOST_NAMES + 1) if selector.names is None else selector.names
    when = {"next_run_at": asked["next_run_at"]}
    others = _without("next_run_at", asked)
    if selector.names is None and len(names) > MOST_NAMES:
        yield _part(indexes.LISTING, when, {**_status(statuses), **others})
    elif names:
        yield _part(indexes.CLAIM, {"name": one_of((*names,)), **_status(statuses), **when}, others)


def _by_dates(
    selector: JobSelector, statuses: Sequence[JobStatus], asked: Mapping[str, Any]
) -> Iterator[Sequence[_CountedPart]]:
    """Yield other ways, along the index of a date: the names and texts are checked on what it leads to."""
    named = _named(selector)
    if "created_at" in asked:
        of_age = {"created_at": asked["created_at"]}
        yield [_part(indexes.CREATED, of_age, {**named, **_status(statuses), **_without("created_at", asked)})]
    if "updated_at" in asked and named:
        changed = {"updated_at": asked["updated_at"]}
        others = {**named, **_without("updated_at", asked)}
        yield [
            _part(indexes.HELD, {"status": status}, {**named, **asked})
            if status is JobStatus.PROCESSING
            else _part(indexes.UPDATED, {"status": status, **changed}, others)
            for status in statuses
        ]


def _without(attribute: str, asked: Mapping[str, Any]) -> dict[str, Any]:
    return {key: condition for key, condition in asked.items() if key != attribute}


def _by_status(
    selector: JobSelector, statuses: Sequence[JobStatus], asked: Mapping[str, Any]
) -> Iterator[_CountedPart]:
    named = _named(selector)
    if selector.has_key:
        keys = {**named, **_status(statuses), "unique_key": asked["unique_key"]}
        yield _part(indexes.UNIQUE_KEY, keys, _without("unique_key", asked))
        return
    if not asked and not named and set(statuses) == set(JobStatus):
        yield _CountedPart(_BY_ID, {}, {})  # Also documents without a status: `delete --everything` meets them.
        return
    for status in _ORDER:
        if status not in statuses:
            continue
        if status is JobStatus.PROCESSING:  # The name stands too far back in this index to lead it.
            yield _part(indexes.HELD, {"status": status}, {**named, **asked})
        elif named:
            yield _part(indexes.CLAIM, {**named, "status": status}, asked)
        else:
            changed = {"updated_at": asked["updated_at"]} if "updated_at" in asked else {}
            yield _part(indexes.UPDATED, {"status": status, **changed}, _without("updated_at", asked))


def _part(index: IndexModel, leading: Mapping[str, Any], residual: Mapping[str, Any]) -> _CountedPart:
    return _CountedPart(indexes.name_of(index), filter_of(leading), filter_of(residual))


def _named(selector: JobSelector) -> dict[str, Any]:
    return {} if selector.names is None else {"name": one_of(selector.names)}


def _status(statuses: Sequence[JobStatus]) -> dict[str, Any]:
    return {} if set(statuses) == set(JobStatus) else {"status": one_of(tuple(statuses))}


def _count(jobs: JobCollection, parts: Sequence[_CountedPart], most_counted: int, most_read: int) -> SelectionCount:
    number, is_capped = 0, False
    for part in parts:
        wanted = most_counted + 1 - number
        if not part.residual:
            number += _number(jobs, part, wanted, [])
        else:
            # One more than may be read shows whether there are more. The index alone answers that.
            led_to = _number(jobs, part, most_read + 1, [])
            is_capped = is_capped or led_to > most_read
            if led_to and most_read:
                number += _number(jobs, part, most_read, first_of(part.residual, wanted))
            most_read -= min(led_to, most_read)
        if number > most_counted:
            return SelectionCount(most_counted, is_capped=True)
    return SelectionCount(number, is_capped)


def _number(jobs: JobCollection, part: _CountedPart, most: int, then: Stages) -> int:
    collection = jobs.collection.with_options(codec_options=LENIENT)
    steps = [*first_of(part.leading, most), *then, number_by(None)]
    rows = indexes.hinted(part.index, lambda hint: list(collection.aggregate(steps, **indexes.hinting(hint))))
    return rows[0]["number"] if rows else 0
