"""Selections of jobs, checked: the same conditions for pages and for bulk actions. Pure."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self, TypedDict

from ..checks import LAST_MOMENT, checked_moment
from ..error_types import InvalidOptionError
from .conditional_write import Containing, OneOf, Within
from .job import JobStatus

Statuses = JobStatus | str | Iterable[JobStatus | str]

LONGEST_TEXT: Final = 1000
"""Characters of a search text: the server limits regular expressions to 32 kB, escapes included."""


class Selection(TypedDict, total=False):
    """The jobs that a bulk action selects: those that satisfy all conditions. None is the same as no condition.

    Attributes:
        name: A name or several.
        status: A status or several. Jobs in a status that the action cannot change are not selected.
        older_than, newer_than: `created_at` is before, after this moment; timezone-aware.
        updated_from, updated_to: `updated_at` is in this range, ends included.
        due: True for pending jobs that are due when the call is made, False for those that are due later.
        fail_reason: A text that `fail_reason` contains, in exactly this spelling.
        fail_reason_prefix: A text that `fail_reason` begins with. Give one of the two.
        unique_key: The unique key of a pending or running job. It needs a name: another name may have the same key.
        unique_key_prefix: A text that the unique key begins with; as `unique_key`. Give one of the two.
    """

    name: str | Iterable[str] | None
    status: Statuses | None
    older_than: datetime | None
    newer_than: datetime | None
    updated_from: datetime | None
    updated_to: datetime | None
    due: bool | None
    fail_reason: str | None
    fail_reason_prefix: str | None
    unique_key: str | None
    unique_key_prefix: str | None


LIVE: Final = (JobStatus.PENDING, JobStatus.PROCESSING)
"""The statuses in which a job has its unique key for itself. The index of the keys has only these jobs."""


def checked_name(given: object) -> str | None:
    """Returns a valid name, or None for all names. Raises InvalidOptionError otherwise."""
    return None if given is None else _text("name", given)


def checked_instance(given: object) -> str:
    """Returns the valid id of an instance. Raises InvalidOptionError otherwise."""
    return _text("instance", given)


def checked_statuses(given: Statuses | None) -> tuple[JobStatus, ...] | None:
    """The statuses as a tuple without duplicates. Raises InvalidOptionError for an invalid status, or an empty list."""
    if given is None:
        return None
    several = _several("status", given)
    try:
        return tuple(dict.fromkeys(JobStatus(one) for one in several))
    except (ValueError, TypeError) as error:
        raise InvalidOptionError("status", given, f"must be one of {', '.join(JobStatus)}") from error


def _several(option: str, given: Any) -> list[Any]:
    """The values as a list. An empty list is refused: it may be a mistake of the caller, and must not select all."""
    if isinstance(given, str):
        return [given]
    try:
        several = list(given)
    except TypeError as error:
        raise InvalidOptionError(option, given, "must be a string or a list of strings") from error
    if not several:
        raise InvalidOptionError(option, given, "selects nothing: to select all, leave it out")
    return several


def _text(option: str, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidOptionError(option, given, "must be a string")
    if not given:
        raise InvalidOptionError(option, given, "is empty: to select all, leave it out")
    if len(given) > LONGEST_TEXT:
        raise InvalidOptionError(option, f"{given[:40]}...", f"is longer than {LONGEST_TEXT} characters")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise InvalidOptionError(option, given, "cannot be encoded as UTF-8") from error
    return given


def within(
    *,
    above: datetime | None = None,
    below: datetime | None = None,
    at_least: datetime | None = None,
    at_most: datetime | None = None,
) -> Within:
    """The range with ends in whole milliseconds, as stored moments are: it selects the same jobs."""
    return Within(above=_down(above), below=_up(below), at_least=_up(at_least), at_most=_down(at_most))


_MILLISECOND: Final = timedelta(milliseconds=1)


def _down(end: datetime | None) -> datetime | None:
    return None if end is None else end - timedelta(microseconds=end.microsecond % 1000)


def _up(end: datetime | None) -> datetime | None:
    if end is None or end > LAST_MOMENT - _MILLISECOND:  # No later millisecond can be stored.
        return _down(end)
    return end + timedelta(microseconds=-end.microsecond % 1000)


@dataclass(frozen=True, kw_only=True)
class JobSelector:
    """A selection of jobs. Conditions that are not given match all jobs. Moments are timezone-aware.

    Attributes:
        name: A name or several.
        status: A status or several.
        older_than, newer_than: Enqueued before, after this moment (`created_at`).
        updated_from, updated_to: `updated_at` is in this range, ends included.
        due: True for pending jobs that are due, False for those that are due later. It is judged when a call is made
            with the selection, and once for the whole call.
        fail_reason: A text that `fail_reason` contains, in exactly this spelling.
        fail_reason_prefix: A text that it begins with.
        unique_key: The unique key of a pending or running job. It needs a name: another name may have the same key.
        unique_key_prefix: A text that the unique key begins with; as `unique_key`. Give one of the two.

    Raises:
        InvalidOptionError: A condition is invalid, or can match no job, such as an empty list. The message names it.
    """

    name: str | Iterable[str] | None = None
    status: Statuses | None = None
    older_than: datetime | None = None
    newer_than: datetime | None = None
    updated_from: datetime | None = None
    updated_to: datetime | None = None
    due: bool | None = None
    fail_reason: str | None = None
    fail_reason_prefix: str | None = None
    unique_key: str | None = None
    unique_key_prefix: str | None = None
    _as_of: datetime | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Tuples, because an iterator would be empty at its second use.
        if self.name is not None:
            names = tuple(dict.fromkeys(_text("name", one) for one in _several("name", self.name)))
            object.__setattr__(self, "name", names)
        object.__setattr__(self, "status", checked_statuses(self.status))
        for first, last, with_ends in self._ranges():
            self._check_range(first, last, with_ends=with_ends)
        for option in ("fail_reason", "unique_key"):
            text, prefix = getattr(self, option), getattr(self, f"{option}_prefix")
            if text is not None and prefix is not None:
                raise InvalidOptionError(f"{option}_prefix", prefix, f"cannot be combined with {option}: choose one")
            if text is not None:
                _text(option, text)
            if prefix is not None:
                _text(f"{option}_prefix", prefix)
        if self.has_key:
            self._check_key()
        if self.due is not None:
            self._check_due()

    def _check_key(self) -> None:
        option = "unique_key" if self.unique_key is not None else "unique_key_prefix"
        if self.names is None:
            raise InvalidOptionError(option, getattr(self, option), "needs a name: keys are unique within a name")
        if self.statuses is not None and not set(self.statuses) <= set(LIVE):
            raise InvalidOptionError(
                "status",
                ", ".join(self.statuses),
                f"cannot be combined with {option}: only pending and running jobs own their key",
            )

    def _check_due(self) -> None:
        if not isinstance(self.due, bool):
            raise InvalidOptionError("due", self.due, "must be True or False")
        if self.statuses not in (None, (JobStatus.PENDING,)):
            statuses = ", ".join(self.statuses or ())
            raise InvalidOptionError("status", statuses, "cannot be combined with due: only pending jobs are due")
        object.__setattr__(self, "status", (JobStatus.PENDING,))

    @classmethod
    def _ranges(cls) -> tuple[tuple[str, str, bool], ...]:
        """The attributes that begin and end each range, and whether the range includes its ends."""
        return (("newer_than", "older_than", False), ("updated_from", "updated_to", True))

    def _check_range(self, first: str, last: str, *, with_ends: bool) -> None:
        begin, end = getattr(self, first), getattr(self, last)
        for option, moment in ((first, begin), (last, end)):
            if moment is not None:
                # The end of time is how programs spell "without an end".
                checked_moment(option, moment, latest=LAST_MOMENT)
                # Python compares two datetimes of one zone by wall clock, and an hour of it may occur twice.
                object.__setattr__(self, option, moment.astimezone(UTC))
        if begin is None or end is None:
            return
        first_in_time, last_in_time = getattr(self, first), getattr(self, last)
        if with_ends and first_in_time > last_in_time:
            raise InvalidOptionError(first, begin, f"selects nothing: it must not be after {end!r}")
        if not with_ends and first_in_time >= last_in_time:
            raise InvalidOptionError(first, begin, f"selects nothing: it must be before {end!r}")

    @property
    def names(self) -> tuple[str, ...] | None:
        """The selected names; None for all."""
        return self.name  # type: ignore[return-value]  # A tuple since __post_init__.

    @property
    def statuses(self) -> tuple[JobStatus, ...] | None:
        """The selected statuses; None for all."""
        return self.status  # type: ignore[return-value]

    def as_of(self, now: Callable[[], datetime]) -> Self:
        """Return this selection with the moment by which it judges what is due; `now` is called only for that."""
        if self.due is None:
            return self
        pinned = copy.copy(self)
        object.__setattr__(pinned, "_as_of", now())
        return pinned

    @property
    def has_key(self) -> bool:
        """Whether it selects by the unique key. Then it has names, and selects statuses of `LIVE` only."""
        return self.unique_key is not None or self.unique_key_prefix is not None

    @property
    def is_everything(self) -> bool:
        """Whether it has no condition, so that it selects all jobs."""
        return all(getattr(self, one.name) is None for one in fields(self))

    def among(self, possible: Collection[JobStatus]) -> tuple[JobStatus, ...]:
        """The selected ones of these statuses; may be empty."""
        selected = self.statuses or (LIVE if self.has_key else possible)
        return tuple(status for status in JobStatus if status in possible and status in selected)

    def conditions(self) -> dict[str, Any]:
        """Its conditions on other fields than name and status, in the form of a guard. See `as_of` for what is due."""
        asked: dict[str, Any] = {}
        if self.older_than is not None or self.newer_than is not None:
            asked["created_at"] = within(above=self.newer_than, below=self.older_than)
        if self.updated_from is not None or self.updated_to is not None:
            asked["updated_at"] = within(at_least=self.updated_from, at_most=self.updated_to)
        if (moments := self._due_within()) is not None:
            asked["next_run_at"] = moments
        if self.fail_reason is not None:
            asked["fail_reason"] = Containing(self.fail_reason)
        if self.fail_reason_prefix is not None:
            asked["fail_reason"] = Containing(self.fail_reason_prefix, at_the_beginning=True)
        if self.unique_key is not None:
            asked["unique_key"] = self.unique_key
        if self.unique_key_prefix is not None:
            asked["unique_key"] = Containing(self.unique_key_prefix, at_the_beginning=True)
        return asked

    def _due_within(self) -> Within | None:
        if self.due is None:
            return None
        assert self._as_of is not None, "the call says by which moment"
        return within(at_most=self._as_of) if self.due else within(above=self._as_of)

    def guard(self, statuses: Collection[JobStatus]) -> dict[str, Any]:
        """The condition of this selection for these statuses. It chooses the jobs, and each write repeats all of it."""
        asked = self.conditions()
        if self.names is not None:
            asked["name"] = one_of(self.names)
        if set(statuses) != set(JobStatus) or self.statuses is not None:
            asked["status"] = one_of(tuple(statuses))
        return asked


def one_of(values: tuple[Any, ...]) -> Any:
    """The condition that a field is one of these."""
    return values[0] if len(values) == 1 else OneOf(values)
