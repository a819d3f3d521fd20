"""What may be asked of the jobs, and what the answers look like. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, cast

from bson import ObjectId
from bson.errors import InvalidId

from ..checks import check_count
from ..errors import InvalidOptionError
from .cursors import ORDERS, Anchor, decode
from .job import JobStatus
from .new_job import checked_moment
from .transition import Containing, OneOf, Within

Statuses = JobStatus | str | Iterable[JobStatus | str]
SortField = Literal["id", "created_at", "updated_at", "next_run_at"]


def checked_name(given: object) -> str | None:
    """The name, or None for all; raises InvalidOptionError for anything else."""
    if given is not None and not _is_text(given):
        raise InvalidOptionError("name", given, "must be a string that can be encoded as UTF-8")
    return cast("str | None", given)


def _is_text(given: object) -> bool:
    """Whether the database can be asked for it."""
    if not isinstance(given, str):
        return False
    try:
        given.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_names(given: str | Iterable[str] | None) -> tuple[str, ...] | None:
    """The names as a tuple, each once; raises InvalidOptionError where one is no string."""
    if given is None:
        return None
    try:
        names = tuple(dict.fromkeys([given] if isinstance(given, str) else given))
    except TypeError as error:
        raise InvalidOptionError("name", given, "must be a string, or several") from error
    if not all(map(_is_text, names)):
        raise InvalidOptionError("name", given, "must be a string, or several, that can be encoded as UTF-8")
    return names


def checked_statuses(given: Statuses | None) -> tuple[JobStatus, ...] | None:
    """The statuses as a tuple, each once; raises InvalidOptionError where one is none."""
    if given is None:
        return None
    several: Iterable[Any] = [given] if isinstance(given, str) else given
    try:
        return tuple(dict.fromkeys(JobStatus(one) for one in several))
    except (ValueError, TypeError) as error:
        raise InvalidOptionError("status", given, f"must be among {', '.join(JobStatus)}") from error


@dataclass(frozen=True, kw_only=True)
class JobSelector:
    """Which jobs are meant; what is not given is not asked. Moments are timezone-aware.

    Attributes:
        name: The name, or several.
        status: The status, or several.
        older_than, newer_than: Enqueued before, after this moment (`created_at`).
        fail_reason: A text that `fail_reason` contains, to the letter.
        fail_reason_prefix: A text that it begins with.

    Raises:
        InvalidOptionError: One of them cannot be; names it.
    """

    name: str | Iterable[str] | None = None
    status: Statuses | None = None
    older_than: datetime | None = None
    newer_than: datetime | None = None
    fail_reason: str | None = None
    fail_reason_prefix: str | None = None

    def __post_init__(self) -> None:
        # Frozen also inside: an iterator would be empty when it is asked for the second time.
        object.__setattr__(self, "name", checked_names(self.name))
        object.__setattr__(self, "status", checked_statuses(self.status))
        for option in self._moments():
            if (moment := getattr(self, option)) is not None:
                object.__setattr__(self, option, checked_moment(option, moment))
        for option in ("fail_reason", "fail_reason_prefix"):
            text = getattr(self, option)
            if text is not None and (not _is_text(text) or not text or "\0" in text):
                raise InvalidOptionError(option, text, "must be a text that is not empty")
        if self.fail_reason is not None and self.fail_reason_prefix is not None:
            raise InvalidOptionError("fail_reason", self.fail_reason, "excludes fail_reason_prefix: give one of them")

    @classmethod
    def _moments(cls) -> tuple[str, ...]:
        return ("older_than", "newer_than")

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names that are asked for; None for any."""
        return self.name  # type: ignore[return-value]  # Made one by __post_init__.

    @property
    def statuses(self) -> tuple[JobStatus, ...] | None:
        """The statuses that are asked for; None for any."""
        return self.status  # type: ignore[return-value]

    def conditions(self) -> dict[str, Any]:
        """What it asks beside names and statuses, as the guard of a transition has it."""
        asked: dict[str, Any] = {}
        if self.older_than is not None or self.newer_than is not None:
            asked["created_at"] = Within(above=self.newer_than, below=self.older_than)
        if self.fail_reason is not None:
            asked["fail_reason"] = Containing(self.fail_reason)
        if self.fail_reason_prefix is not None:
            asked["fail_reason"] = Containing(self.fail_reason_prefix, at_the_beginning=True)
        return asked

    def guard(self) -> dict[str, Any]:
        """All that it asks, as the guard of a transition."""
        asked = self.conditions()
        if self.names is not None:
            asked["name"] = self.names[0] if len(self.names) == 1 else OneOf(self.names)
        if self.statuses is not None:
            asked["status"] = self.statuses[0] if len(self.statuses) == 1 else OneOf(self.statuses)
        return asked


@dataclass(frozen=True, kw_only=True)
class JobFilter(JobSelector):
    """Which jobs a page shows; what is not given is not asked. Moments are timezone-aware.

    Attributes:
        name, status, older_than, newer_than, fail_reason, fail_reason_prefix: As in JobSelector.
        created_from, created_to: `created_at` is in this range, ends included.
        updated_from, updated_to: The same of `updated_at`.
        run_from, run_to: The same of `next_run_at`.

    Raises:
        InvalidOptionError: One of them cannot be; names it.
    """

    created_from: datetime | None = None
    created_to: datetime | None = None
    updated_from: datetime | None = None
    updated_to: datetime | None = None
    run_from: datetime | None = None
    run_to: datetime | None = None

    @classmethod
    def _moments(cls) -> tuple[str, ...]:
        ranges = ("created_from", "created_to", "updated_from", "updated_to", "run_from", "run_to")
        return (*super()._moments(), *ranges)

    def conditions(self) -> dict[str, Any]:
        asked = super().conditions()
        for attribute, first, last in (
            ("created_at", self.created_from, self.created_to),
            ("updated_at", self.updated_from, self.updated_to),
            ("next_run_at", self.run_from, self.run_to),
        ):
            if first is not None or last is not None:
                known = asked.get(attribute, Within())
                asked[attribute] = Within(at_least=first, at_most=last, above=known.above, below=known.below)
        return asked


@dataclass(frozen=True, kw_only=True)
class JobSort:
    """In which order a page shows jobs; of equal ones, the smaller id comes first ("desc": the larger).

    Attributes:
        by: "id", "created_at", "updated_at" or "next_run_at".
        direction: "asc" or "desc".

    Raises:
        InvalidOptionError: One of them is something else.
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
    """A number of jobs, in an order, from a place on.

    Attributes:
        filter: Which.
        sort: The order in which they are shown.
        anchor: They lie behind it, in the direction of reading; None for the beginning.
        backward: Read from the end of the order to its beginning.
        limit: So many at most.
        skip: So many jobs are passed over first.
    """

    filter: JobFilter = _ALL
    sort: JobSort = _EARLIEST
    anchor: Anchor | None = None
    backward: bool = False
    limit: int = 100
    skip: int = 0

    @property
    def descending(self) -> bool:
        """Whether it is read from the largest to the smallest."""
        return (self.sort.direction == "desc") != self.backward


def job_query(name: str | None, status: Statuses | None, limit: int, skip: int) -> JobQuery:
    """The query that a call of `get_jobs` asks for; raises InvalidOptionError naming what is wrong with it."""
    check_count("limit", limit, at_least=1)
    check_count("skip", skip, at_least=0)
    return JobQuery(filter=JobFilter(name=checked_name(name), status=status), limit=limit, skip=skip)


def page_query(
    cursor: str | None, limit: int, direction: str, given_filter: JobFilter | None, sort: JobSort | str | None
) -> JobQuery:
    """The query that a call of `get_jobs_with_cursor` asks for.

    Raises:
        InvalidOptionError: Names what is wrong with it.
        InvalidCursorError: The cursor is none, or of another order.
    """
    check_count("limit", limit, at_least=1)
    if direction not in ("forward", "backward"):
        raise InvalidOptionError("direction", direction, 'must be "forward" or "backward"')
    if given_filter is not None and not isinstance(given_filter, JobFilter):
        raise InvalidOptionError("filter", given_filter, "must be a JobFilter")
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
    """The id that was given, as an ObjectId or its hex string; None for what cannot be one."""
    if isinstance(job_id, ObjectId):
        return job_id
    try:
        return ObjectId(job_id)
    except (InvalidId, TypeError):
        return None
