"""Which index serves a list of jobs, and which ranges of that index a page reads. No commands.

A list is sorted by a date, with the id as tie-break. The next page goes on behind an anchor, the date x and the id y of
the last job: `date > x`, or `date = x` and `_id > y`. The filter is an `$or` of these two. Each is a range of one
index, in the order of the list. The server merges the ranges (SORT_MERGE): it reads the keys that it returns, and one
more for each range. The shorter filter `date >= x` and (`date > x` or `_id > y`) would read all jobs of the same
millisecond again for each page, and `enqueue_many` makes thousands of those.

Some indexes have the status before the date, or name and status. Then the `$or` has a range for each of their values.
With `$in`, the server makes ranges itself, but not within an `$or`: it would read all matching keys, and sort.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, DESCENDING, IndexModel

from ...jobs.conditional_write import PresentAs, Within
from ...jobs.cursors import Anchor
from ...jobs.job import JobStatus
from ...jobs.job_query import JobFilter, JobQuery
from ...jobs.job_selector import LIVE, one_of
from ...jobs.nursery_scopes import ids_of_children
from ..codec import filter_of
from ..fields import FIELD
from . import indexes

# The server merges two ranges for each prefix. A hundred prefixes take 7 ms, and they find rare jobs; a page that reads
# along the order up to its cap takes 21 ms (measured).
MOST_PREFIXES: Final = 100

_ID: Final = FIELD["id"]
# The first and last values that a job can have. Range conditions match values of their own type only: a document whose
# id or date has another type is not a job, and is not found.
_FIRST_ID, _LAST_ID = ObjectId("0" * 24), ObjectId("f" * 24)
_FIRST_DATE = datetime.min.replace(tzinfo=UTC)
_LAST_DATE = datetime.max.replace(tzinfo=UTC, microsecond=999_000)


@dataclass(frozen=True, kw_only=True)
class IndexScan:
    """One index, and what a query reads along it.

    Attributes:
        index: The name of the index.
        by: The attribute that the list is sorted by.
        prefixes: The values of the fields that stand before that attribute in the index. Each has a range of its own.
        within: The bounds of that attribute.
        residual: The rest of the filter: the server checks it on the documents.
        ids: The first and the last id.
        is_sorted: Whether the index has the order of the list. Otherwise all its matching jobs are read and sorted:
            those that run, in `HELD`, those of some keys, in `UNIQUE_KEY`, and children, in `SCOPES` or by their ids.
        is_index_needed: Whether the scan is made only with its index. Others are made without, if it is missing.
    """

    index: str
    by: str
    prefixes: Sequence[Mapping[str, Any]]
    within: Within
    residual: Mapping[str, Any]
    ids: tuple[ObjectId, ObjectId] = (_FIRST_ID, _LAST_ID)
    is_sorted: bool = True
    is_index_needed: bool = False

    def ranges(
        self, anchor: Anchor | None, until: Anchor | None = None, *, descending: bool, with_residual: bool
    ) -> dict[str, Any]:
        """Return the filter for the jobs behind `anchor`, up to and including `until`."""
        # In each branch: beside the $or, it might keep the server from merging the ranges.
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
            """Return the range of ids: an anchor replaces the first or the last id."""
            first, last = reversed(self.ids) if descending else self.ids
            begin = {f"{behind}e": first} if after is None else {behind: after.id}
            return {**begin, f"{before}e": last if to is None else to.id}

        if self.by == "id":
            yield {_ID: ids(anchor, until)}
            return
        date = FIELD[self.by]
        # The bounds stay beside the anchors: the caller may ask for the next page with other bounds.
        ends = _ends(self.within)
        inner = dict(ends)
        if anchor is not None:
            inner[behind] = _tighter(ends.get(behind), anchor.value, descending=descending)
        if until is not None:
            inner[before] = _tighter(ends.get(before), until.value, descending=not descending)
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


def _tighter(end: Any, value: Any, *, descending: bool) -> Any:
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
    """A scan for jobs at rest, of some statuses and any name.

    The index has the name first, so the scan has a range for each name and status. The names must be read before it.

    Attributes:
        statuses: The statuses of the query.
        by, within, asked: As in `scans_of`.
    """

    statuses: Sequence[JobStatus]
    by: str
    within: Within
    asked: Mapping[str, Any]

    @property
    def names_of(self) -> Sequence[JobStatus]:
        """The statuses whose names the scan needs.

        For several statuses, the names of all jobs at rest: the server skips from name to name for one status, or for
        all statuses of the index, and otherwise reads every key.
        """
        return self.statuses if len(self.statuses) == 1 else indexes.AT_REST

    @property
    def most_names(self) -> int:
        """The number of names up to which each has a range. With more names, the scan reads along the order."""
        return MOST_PREFIXES // len(self.statuses)

    def of_names(self, names: Sequence[str]) -> IndexScan | None:
        """Return the scan for these names; None if there are none. More than `most_names` names are too many."""
        if not names:
            return None
        if len(names) > self.most_names:
            return _scan(
                indexes.LISTING, self.by, [{}], self.within, {**self.asked, "status": one_of((*self.statuses,))}
            )
        prefixes = [{"name": name, "status": status} for name in names for status in self.statuses]
        return _scan(indexes.CLAIM, self.by, prefixes, self.within, self.asked)


def scans_of_fields(query: JobQuery) -> Iterator[IndexScan]:
    """Yield scans. Each finds all jobs of the query alone, if an operator has created its index.

    There is one for each field of the meta or the data that the query asks for, if it is sorted by `created_at`. The
    other conditions are residual.
    """
    given = query.filter
    if query.sort.by != "created_at" or given.has_key or given.instance is not None or given.parent is not None:
        return
    asked = given.guard(given.statuses or tuple(JobStatus))
    within = asked.pop("created_at", Within())
    for path, values in given.field_conditions:
        yield IndexScan(
            index=indexes.name_of(indexes.of_field(path)),
            by=query.sort.by,
            prefixes=[{path: PresentAs((value,))} for value in values],
            within=within,
            residual=filter_of({name: condition for name, condition in asked.items() if name != path}),
            is_index_needed=True,
        )


def scans_of(query: JobQuery) -> Sequence[IndexScan | ScansByName]:
    """Return the scans that together find all jobs of the query, each job once unless it moves meanwhile.

    A query by unique keys reads all jobs with such keys, in `UNIQUE_KEY`, and sorts them; one by the instance all jobs
    that it holds, in `HELD`; one by the parent its live children, in `SCOPES`, or all of them, in a range of `_id`: by
    `id`, both in order. For all others:

    | order         | of all               | of some statuses      | of some names              |
    |---------------|----------------------|-----------------------|----------------------------|
    | `id`          | `_id`                | residual              | residual                   |
    | `created_at`  | `CREATED`            | residual              | residual                   |
    | `next_run_at` | `LISTING`            | `CLAIM`, and `HELD`   | `CLAIM`, and `HELD`        |
    | `updated_at`  | `UPDATED`, and `HELD`| `UPDATED`, and `HELD` | residual of these          |

    "Residual": the scan reads all jobs along the order, up to its cap, and the server checks the condition on each.
    Bounds of the date of the order are bounds of the scan. All other conditions are residual. By `next_run_at`, so are
    the statuses if there are too many names, and the names if the query has too many: the scan is that of `LISTING`.
    """
    by, given = query.sort.by, query.filter
    asked = given.conditions()
    within = asked.pop(by, Within())
    named: Mapping[str, Any] = {} if given.names is None else {"name": one_of(given.names)}
    if given.has_key:
        keys = {**named, "unique_key": asked.pop("unique_key"), "status": one_of(given.among(LIVE))}
        return [_scan(indexes.UNIQUE_KEY, by, [keys], within, asked, is_sorted=False)]
    if given.instance is not None:  # It holds few, so all are read, in whatever order.
        held = {"status": JobStatus.PROCESSING, "claim.by": asked.pop("claim.by")}
        return [_scan(indexes.HELD, by, [held], within, {**asked, **named}, is_sorted=False)]
    if given.parent is not None:
        return [_scan_of_children(given, by, within, {**asked, **named})]
    # A filter with every status is a filter without statuses.
    asks_statuses = given.statuses is not None and set(given.statuses) != set(JobStatus)
    statuses = given.statuses if given.statuses is not None and asks_statuses else tuple(JobStatus)
    in_status: Mapping[str, Any] = {"status": one_of(statuses)} if asks_statuses else {}
    if by in ("id", "created_at"):
        return [_scan("_id_" if by == "id" else indexes.CREATED, by, [{}], within, {**asked, **named, **in_status})]
    at_rest = [status for status in statuses if status is not JobStatus.PROCESSING]
    prefixes: list[Mapping[str, Any]]
    running: list[IndexScan | ScansByName] = []
    if JobStatus.PROCESSING in statuses:
        prefixes = [{"status": JobStatus.PROCESSING}]
        running = [_scan(indexes.HELD, by, prefixes, within, {**asked, **named}, is_sorted=False)]
    if not at_rest:
        return running
    if by == "updated_at":
        prefixes = [{"status": status} for status in at_rest]
        return [*running, _scan(indexes.UPDATED, by, prefixes, within, {**asked, **named})]
    if given.names is None and asks_statuses:
        return [*running, ScansByName(statuses=at_rest, by=by, within=within, asked=asked)]
    if given.names is not None and len(given.names) * len(at_rest) <= MOST_PREFIXES:
        prefixes = [{"name": name, "status": status} for name in given.names for status in at_rest]
        return [*running, _scan(indexes.CLAIM, by, prefixes, within, asked)]
    return [_scan(indexes.LISTING, by, [{}], within, {**asked, **named, **in_status})]


def _scan_of_children(given: JobFilter, by: str, within: Within, asked: Mapping[str, Any]) -> IndexScan:
    is_sorted = by == "id"
    if given.statuses is not None and set(given.statuses) <= set(LIVE):
        family = {name: asked[name] for name in ("child.scope", "child.parent")}
        live = {"status": one_of(given.statuses)}  # In the condition of the index, and in none of its keys.
        others = {name: condition for name, condition in asked.items() if name not in family}
        return _scan(indexes.SCOPES, by, [{**family, **live}], within, others, is_sorted=is_sorted)
    in_status: Mapping[str, Any] = {} if given.statuses is None else {"status": one_of(given.statuses)}
    scan = _scan("_id_", by, [{}], within, {**asked, **in_status}, is_sorted=is_sorted)
    return replace(scan, ids=ids_of_children(given.scope))


def _scan(
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
