"""Which index answers a question about a list of jobs, and where in it one begins to read. No commands.

A list is sorted by a date, with the id as tie-break, and goes on behind an anchor (x, y). In MongoDB's terms that is
`date > x`, or `date = x` and `_id > y`. Written as an `$or` of these two, each a range of one index that is in the
order that is asked for, the server merges both (SORT_MERGE) and reads what it returns and one key for each range.
The shorter `date >= x` and (`date > x` or `_id > y`) would read all jobs of the same millisecond again for each
page, and `enqueue_many` makes thousands of those.

Where the index has the status before the date, or name and status, there is a range for each of them, spelled one
by one: of `$in` the server makes ranges itself, but not within an `$or`. Then it would sort, and read all there is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel

from ..jobs.conditional_write import Within
from ..jobs.cursors import Anchor
from ..jobs.job import JobStatus
from ..jobs.job_query import JobQuery
from ..jobs.job_selector import one_of
from . import indexes
from .codec import filter_of
from .fields import FIELD

# Two ranges each are merged. A hundred take the server a third as long as looking at as much along the order as a page
# may (7 ms and 21, measured), and find what is rare.
MOST_PREFIXES: Final = 100

_ID: Final = FIELD["id"]
# What a job can have. Range conditions match values of their own type only, so a document whose id or date is not
# that of a job is not seen.
_FIRST_ID, _LAST_ID = ObjectId("0" * 24), ObjectId("f" * 24)
_FIRST_DATE = datetime.min.replace(tzinfo=UTC)
_LAST_DATE = datetime.max.replace(tzinfo=UTC, microsecond=999_000)


@dataclass(frozen=True, kw_only=True)
class IndexScan:
    """One index, and what is read along it.

    Attributes:
        index: Its name.
        by: The order that is asked for.
        prefixes: What its fields before that of the order are equal to; a range of it for each.
        within: The ends of the order that are asked for.
        residual: What else is asked; the documents say whether it holds.
        is_sorted: Whether it gives the order. Otherwise all that it has is read and sorted: of `HELD`, what runs.
    """

    index: str
    by: str
    prefixes: Sequence[Mapping[str, Any]]
    within: Within
    residual: Mapping[str, Any]
    is_sorted: bool = True

    def ranges(
        self, anchor: Anchor | None, until: Anchor | None = None, *, descending: bool, with_residual: bool
    ) -> dict[str, Any]:
        """The filter for what lies behind the anchor, up to the other one and with it."""
        # In each branch and not beside the $or, where it might keep the server from merging.
        residual = self.residual if with_residual else {}
        branches = [
            {**filter_of(prefix), **end, **residual}
            for prefix in self.prefixes
            for end in self._between(anchor, until, descending=descending)
        ]
        return branches[0] if len(branches) == 1 else {"$or": branches}

    def _between(self, anchor: Anchor | None, until: Anchor | None, *, descending: bool) -> Iterator[dict[str, Any]]:
        behind, before = ("$lt", "$gt") if descending else ("$gt", "$lt")

        def ids(after: Anchor | None, to: Anchor | None) -> dict[str, Any]:
            """An anchor takes the place of the end on its side."""
            first, last = (_LAST_ID, _FIRST_ID) if descending else (_FIRST_ID, _LAST_ID)
            begin = {f"{behind}e": first} if after is None else {behind: after.id}
            return {**begin, f"{before}e": last if to is None else to.id}

        if self.by == "id":
            yield {_ID: ids(anchor, until)}
            return
        date = FIELD[self.by]
        # The ends stay beside the anchors: they may have been changed since the page of the one.
        ends = _ends(self.within)
        inner = dict(ends)
        if anchor is not None:
            inner[behind] = _inner(ends.get(behind), anchor.value, descending=descending)
        if until is not None:
            inner[before] = _inner(ends.get(before), until.value, descending=not descending)
        yield {date: inner, _ID: ids(None, None)}
        if anchor is not None and until is not None and anchor.value == until.value:
            if _holds(ends, anchor.value):
                yield {date: anchor.value, _ID: ids(anchor, until)}
            return
        if anchor is not None and _holds(ends, anchor.value):
            yield {date: anchor.value, _ID: ids(anchor, None)}
        if until is not None and _holds(ends, until.value):
            yield {date: until.value, _ID: ids(None, until)}

    def order(self, *, descending: bool) -> list[tuple[str, int]]:
        towards = DESCENDING if descending else ASCENDING
        return [(FIELD[name], towards) for name in dict.fromkeys((self.by, "id"))]


def _ends(within: Within) -> dict[str, Any]:
    ends = filter_of({"id": within})[_ID]
    assert isinstance(ends, dict)
    if not {"$gte", "$gt"} & ends.keys():
        ends["$gte"] = _FIRST_DATE
    if not {"$lte", "$lt"} & ends.keys():
        ends["$lte"] = _LAST_DATE
    return ends


def _inner(end: Any, value: Any, *, descending: bool) -> Any:
    if end is None:
        return value
    return min(end, value) if descending else max(end, value)


def _holds(ends: Mapping[str, Any], value: Any) -> bool:
    return (
        ("$gte" not in ends or value >= ends["$gte"])
        and ("$gt" not in ends or value > ends["$gt"])
        and ("$lte" not in ends or value <= ends["$lte"])
        and ("$lt" not in ends or value < ends["$lt"])
    )


@dataclass(frozen=True, kw_only=True)
class ScansByName:
    """What rests, of some statuses and whatever name: which path it is depends on the names that there are.

    The index has the name first, so there is a range for each name and status.

    Attributes:
        statuses: The statuses that are asked for.
        by, within, asked: As `scans_of` has them.
    """

    statuses: Sequence[JobStatus]
    by: str
    within: Within
    asked: Mapping[str, Any]

    @property
    def names_of(self) -> Sequence[JobStatus]:
        """It needs the names of jobs of these statuses.

        Of several, those of all that rest: the server steps from name to name for one status, or for all that the
        index has, and otherwise reads every key. A job that moves between two of them is of the same name.
        """
        return self.statuses if len(self.statuses) == 1 else indexes.AT_REST

    @property
    def most_names(self) -> int:
        """With more, it is looked for on the way."""
        return MOST_PREFIXES // len(self.statuses)

    def path(self, names: Sequence[str]) -> IndexScan | None:
        """The path; None where nothing has to be read. One name more than `most_names` says that there are too many."""
        if not names:
            return None
        if len(names) > self.most_names:
            return _path(
                indexes.LISTING, self.by, [{}], self.within, {**self.asked, "status": one_of((*self.statuses,))}
            )
        prefixes = [{"name": name, "status": status} for name in names for status in self.statuses]
        return _path(indexes.CLAIM, self.by, prefixes, self.within, self.asked)


def scans_of(query: JobQuery) -> Sequence[IndexScan | ScansByName]:
    """Where what is asked for lies; together they have all of it, and nothing twice but what moves meanwhile.

    | order         | of all               | of some statuses      | of some names              |
    |---------------|----------------------|-----------------------|----------------------------|
    | `id`          | `_id`                | on the way            | on the way                 |
    | `created_at`  | `CREATED`            | on the way            | on the way                 |
    | `next_run_at` | `LISTING`            | `CLAIM`, and `HELD`   | `CLAIM`, and `HELD`        |
    | `updated_at`  | `UPDATED`, and `HELD`| `UPDATED`, and `HELD` | on the way of these        |

    "On the way": it is looked for among all along the order, which is capped. Ranges of the order's own date are
    ends of what is read; all else that a filter may ask is looked for on the way. So are the statuses by
    `next_run_at` where there are too many names, or too many are asked for: on the way of `LISTING`.
    """
    by, given = query.sort.by, query.filter
    asked = given.conditions()
    within = asked.pop(by, Within())
    named: Mapping[str, Any] = {} if given.names is None else {"name": one_of(given.names)}
    # Who asks for every status asks for none.
    asks_statuses = given.statuses is not None and set(given.statuses) != set(JobStatus)
    statuses = given.statuses if given.statuses is not None and asks_statuses else tuple(JobStatus)
    in_status: Mapping[str, Any] = {"status": one_of(statuses)} if asks_statuses else {}
    if by in ("id", "created_at"):
        return [_path("_id_" if by == "id" else indexes.CREATED, by, [{}], within, {**asked, **named, **in_status})]
    at_rest = [status for status in statuses if status is not JobStatus.PROCESSING]
    prefixes: list[Mapping[str, Any]]
    running: list[IndexScan | ScansByName] = []
    if JobStatus.PROCESSING in statuses:
        prefixes = [{"status": JobStatus.PROCESSING}]
        running = [_path(indexes.HELD, by, prefixes, within, {**asked, **named}, is_sorted=False)]
    if not at_rest:
        return running
    if by == "updated_at":
        prefixes = [{"status": status} for status in at_rest]
        return [*running, _path(indexes.UPDATED, by, prefixes, within, {**asked, **named})]
    if given.names is None and asks_statuses:
        return [*running, ScansByName(statuses=at_rest, by=by, within=within, asked=asked)]
    if given.names is not None and len(given.names) * len(at_rest) <= MOST_PREFIXES:
        prefixes = [{"name": name, "status": status} for name in given.names for status in at_rest]
        return [*running, _path(indexes.CLAIM, by, prefixes, within, asked)]
    return [_path(indexes.LISTING, by, [{}], within, {**asked, **named, **in_status})]


def _path(
    index: IndexModel | str,
    by: str,
    prefixes: Sequence[Mapping[str, Any]],
    within: Within,
    asked: Mapping[str, Any],
    *,
    is_sorted: bool = True,
) -> IndexScan:
    name = index if isinstance(index, str) else indexes.name_of(index)
    return IndexScan(
        index=name, by=by, prefixes=prefixes, within=within, residual=filter_of(asked), is_sorted=is_sorted
    )
