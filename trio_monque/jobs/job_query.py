"""Queries for pages of jobs: filter, order, cursor and limit, checked. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, Literal, Self

from bson import ObjectId
from bson.errors import InvalidId

from ..checks import check_count
from ..error_types import InvalidOptionError
from .conditional_write import PresentAs, Within
from .cursors import ORDERS, Anchor, decode
from .field_conditions import Conditions, FieldValue, checked_fields
from .job import JobStatus
from .job_selector import JobSelector, Statuses, checked_instance, checked_name, within

SortField = Literal["id", "created_at", "updated_at", "next_run_at"]


NO_SCOPE: Final = ObjectId("0" * 24)
"""An id that is not the scope of any child."""


@dataclass(frozen=True, kw_only=True)
class JobFilter(JobSelector):
    """The jobs that a page shows. Conditions that are not given match all jobs. Moments are timezone-aware.

    Attributes:
        name, status, older_than, newer_than, updated_from, updated_to, due, fail_reason, fail_reason_prefix,
            unique_key, unique_key_prefix: As in JobSelector.
        created_from, created_to: `created_at` is in this range, ends included.
        run_from, run_to: Likewise for `next_run_at`.
        instance: Running jobs that this instance holds: the `id` of an Instance, or `claimedBy` of Monque for Node.
        parent: Only children that this job has started in a job nursery. An ObjectId, or its hex string. Of a recurring
            job, the children of the last occurrence that has opened a job nursery.
        fields: Values of fields of the meta and of the data: `{"meta.tenant": "acme"}`. The keys are dotted paths of
            letters, digits and `_`. The values are text, numbers, True, False, None and ObjectIds, or a list of
            them: the field must have one of the values. A field with a list matches if the list has the value. None
            matches null, but not a missing field.

    Raises:
        InvalidOptionError: A condition is invalid, or can match no job. The message names it.
    """

    created_from: datetime | None = None
    created_to: datetime | None = None
    run_from: datetime | None = None
    run_to: datetime | None = None
    instance: str | None = None
    parent: ObjectId | str | None = None
    fields: Mapping[str, FieldValue | Collection[FieldValue]] | None = None
    _scope: ObjectId | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.instance is not None:
            checked_instance(self.instance)
            if self.statuses not in (None, (JobStatus.PROCESSING,)):
                statuses = ", ".join(self.statuses or ())
                problem = "cannot be combined with instance: only running jobs are held by one"
                raise InvalidOptionError("status", statuses, problem)
            object.__setattr__(self, "status", (JobStatus.PROCESSING,))
        if self.parent is not None:
            self._check_parent(self.parent)
        if self.fields is not None:
            object.__setattr__(self, "fields", checked_fields(self.fields))

    def _check_parent(self, given: ObjectId | str) -> None:
        parent = object_id(given)
        if parent is None:
            raise InvalidOptionError("parent", given, "must be the id of a job")
        if self.instance is not None or self.has_key:
            raise InvalidOptionError("parent", given, "cannot be combined with an instance or a unique key: choose one")
        object.__setattr__(self, "parent", parent)

    def within_scope(self, scope_of: Callable[[ObjectId], ObjectId | None]) -> Self:
        """Return this filter with the scope of its parent: the index of live children begins with it, and so do the ids
        of all children.

        `scope_of` is called only for a filter by the parent. It returns None if the parent does not have children.
        """
        if not isinstance(self.parent, ObjectId):
            return self
        pinned = copy.copy(self)
        object.__setattr__(pinned, "_scope", scope_of(self.parent) or NO_SCOPE)
        return pinned

    @property
    def scope(self) -> ObjectId:
        """The scope of the parent, of a filter by the parent that has gone through `within_scope`."""
        assert self._scope is not None, "the call reads the scope"
        return self._scope

    @property
    def field_conditions(self) -> Conditions:
        """The conditions on fields of the meta and the data; empty for none."""
        return self.fields or ()  # type: ignore[return-value]  # A tuple since __post_init__.

    @classmethod
    def _ranges(cls) -> tuple[tuple[str, str, bool], ...]:
        ends = (("created_from", "created_to"), ("run_from", "run_to"))
        return (*super()._ranges(), *((first, last, True) for first, last in ends))

    def conditions(self) -> dict[str, Any]:
        asked = super().conditions()
        if self.created_from is not None or self.created_to is not None:
            asked["created_at"] = within(
                above=self.newer_than, below=self.older_than, at_least=self.created_from, at_most=self.created_to
            )
        if self.run_from is not None or self.run_to is not None:
            other = asked.get("next_run_at", Within())
            ends = within(at_least=self.run_from, at_most=self.run_to)
            latest = [end for end in (other.at_most, ends.at_most) if end is not None]
            asked["next_run_at"] = replace(ends, above=other.above, at_most=min(latest, default=None))
        if self.instance is not None:
            asked["claim.by"] = self.instance
        if self.parent is not None:
            asked |= {"child.scope": self.scope, "child.parent": self.parent}
        for path, values in self.field_conditions:
            asked[path] = PresentAs(values)
        return asked


@dataclass(frozen=True, kw_only=True)
class JobSort:
    """The order of the jobs on a page. Ties are broken by id: the smaller one first ("desc": the larger).

    Attributes:
        by: "id", "created_at", "updated_at" or "next_run_at".
        direction: "asc" or "desc".

    Raises:
        InvalidOptionError: A value is not one of these.
    """

    by: SortField = "id"
    direction: Literal["asc", "desc"] = "asc"

    def __post_init__(self) -> None:
        if self.by not in list(ORDERS):
            raise InvalidOptionError("sort", self.by, f"must be by {', '.join(ORDERS)}")
        if self.direction not in ("asc", "desc"):
            raise InvalidOptionError("sort", self.direction, 'must have the direction "asc" or "desc"')


_EARLIEST: Final = JobSort(by="next_run_at")
_ALL: Final = JobFilter()


@dataclass(frozen=True, kw_only=True)
class JobQuery:
    """A query for a page or a list of jobs.

    Attributes:
        filter: The conditions.
        sort: The order of the jobs in the answer.
        anchor: The place after which the jobs are read, in the direction of reading; None for the beginning.
        backward: Whether the order is read from its end to its beginning.
        limit: The maximum number of jobs.
        skip: The number of jobs to skip first.
    """

    filter: JobFilter = _ALL
    sort: JobSort = _EARLIEST
    anchor: Anchor | None = None
    backward: bool = False
    limit: int = 100
    skip: int = 0

    @property
    def descending(self) -> bool:
        """Whether the jobs are read from the largest sort key to the smallest."""
        return (self.sort.direction == "desc") != self.backward


def job_query(name: str | None, status: Statuses | None, limit: int, skip: int) -> JobQuery:
    """The query of a call of `get_jobs`. Raises InvalidOptionError, which names the invalid argument."""
    check_count("limit", limit, at_least=1)
    check_count("skip", skip, at_least=0)
    return JobQuery(filter=JobFilter(name=checked_name(name), status=status), limit=limit, skip=skip)


def page_query(
    cursor: str | None, limit: int, direction: str, given_filter: JobFilter | None, sort: JobSort | str | None
) -> JobQuery:
    """The query of a call of `get_jobs_with_cursor`.

    Raises:
        InvalidOptionError: An argument is invalid; the message names it.
        InvalidCursorError: The cursor is invalid, or belongs to another order.
    """
    check_count("limit", limit, at_least=1)
    if direction not in ("forward", "backward"):
        raise InvalidOptionError("direction", direction, 'must be "forward" or "backward"')
    if given_filter is not None and not isinstance(given_filter, JobFilter):
        raise InvalidOptionError("filter", given_filter, "must be a JobFilter, for example JobFilter(status='failed')")
    order = _sort(sort)
    return JobQuery(
        filter=given_filter or _ALL,
        sort=order,
        anchor=None if cursor is None else decode(cursor, order.by, order.direction),
        backward=direction == "backward",
        limit=limit,
    )


def _sort(given: JobSort | str | None) -> JobSort:
    if given is None:
        return JobSort()
    if isinstance(given, str):
        descends = given.startswith("-")
        return JobSort(by=given.removeprefix("-"), direction="desc" if descends else "asc")  # type: ignore[arg-type]
    if not isinstance(given, JobSort):
        raise InvalidOptionError("sort", given, 'must be a JobSort, or a string such as "-created_at"')
    return given


def object_id(job_id: ObjectId | str) -> ObjectId | None:
    """Converts a job id, an ObjectId or its hex string, to an ObjectId; None if it is not a valid id.

    Raises:
        InvalidOptionError: A job was passed instead of its id. With None, that would look like a missing job.
    """
    if isinstance(job_id, ObjectId):
        return job_id
    if isinstance(getattr(job_id, "id", None), ObjectId):
        raise InvalidOptionError("job_id", job_id, "must be the id of a job: pass job.id")
    try:
        return ObjectId(job_id)
    except (InvalidId, TypeError):
        return None
