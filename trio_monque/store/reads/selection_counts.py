"""Counts the jobs of a selection, for a question before a bulk action. Each count reads a bounded part of an index.

An index has the statuses and names of a selection, and shows how many jobs have them. Ages and fail reasons are in no
index beside them: the server reads the documents to check these, `MOST_READ` of them at most. With an age, there is a
second way, along the index of `created_at`: the count that reached its end is the exact one.
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

MOST_COUNTED: Final = 100_000
"""The number up to which jobs are counted: a tenth of a second."""

MOST_READ: Final = 100_000
"""Documents that are read to check what no index has: some tenths of a second."""

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
    by_status = _count(jobs, [*_by_status(selector, statuses, asked)], most_counted, most_read)
    if not by_status.is_capped or by_status.number == most_counted or "created_at" not in asked:
        return by_status
    others = {key: condition for key, condition in asked.items() if key != "created_at"}
    by_age = _part(
        indexes.CREATED, {"created_at": asked["created_at"]}, {**_named(selector), **_status(statuses), **others}
    )
    counted = _count(jobs, [by_age], most_counted, most_read)
    return counted if not counted.is_capped or counted.number > by_status.number else by_status


def _by_status(
    selector: JobSelector, statuses: Sequence[JobStatus], asked: Mapping[str, Any]
) -> Iterator[_CountedPart]:
    named = _named(selector)
    if selector.has_key:
        others = {key: condition for key, condition in asked.items() if key != "unique_key"}
        yield _part(indexes.UNIQUE_KEY, {**named, **_status(statuses), "unique_key": asked["unique_key"]}, others)
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
            yield _part(indexes.UPDATED, {"status": status}, asked)


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
