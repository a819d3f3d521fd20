"""Which jobs are meant, as a value: one set of checks, for what a page shows and for what a bulk action does. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypedDict

from ..checks import checked_moment
from ..errors import InvalidOptionError
from .conditional_write import Containing, OneOf, Within
from .job import JobStatus

Statuses = JobStatus | str | Iterable[JobStatus | str]

LONGEST_TEXT: Final = 1000
"""Characters that are looked for in a reason: the server's regular expressions end at 32 kB, escapes included."""


class Selection(TypedDict, total=False):
    """Which jobs: all that is given must hold. What is left out, or None, asks for nothing.

    Attributes:
        name: A name or several.
        status: A status or several, of those that the action is possible for.
        older_than, newer_than: Their `created_at` is before the one and after the other; timezone-aware.
        fail_reason: What stands somewhere in their `fail_reason`, to the letter.
        fail_reason_prefix: What their `fail_reason` begins with, instead.
    """

    name: str | Iterable[str] | None
    status: Statuses | None
    older_than: datetime | None
    newer_than: datetime | None
    fail_reason: str | None
    fail_reason_prefix: str | None


def checked_name(given: object) -> str | None:
    """The name, or None for all; raises InvalidOptionError for anything else."""
    return None if given is None else _text("name", given)


def checked_statuses(given: Statuses | None) -> tuple[JobStatus, ...] | None:
    """The statuses as a tuple, each once; raises InvalidOptionError where one is none, or there are none."""
    if given is None:
        return None
    several = _several("status", given)
    try:
        return tuple(dict.fromkeys(JobStatus(one) for one in several))
    except (ValueError, TypeError) as error:
        raise InvalidOptionError("status", given, f"must be among {', '.join(JobStatus)}") from error


def _several(option: str, given: Any) -> list[Any]:
    """An empty list may be a mistake of the caller's: nothing is meant by it, and least of all everything."""
    if isinstance(given, str):
        return [given]
    try:
        several = list(given)
    except TypeError as error:
        raise InvalidOptionError(option, given, "must be a string or several") from error
    if not several:
        raise InvalidOptionError(option, given, "selects nothing: leave it out where it does not matter")
    return several


def _text(option: str, given: object) -> str:
    if not isinstance(given, str):
        raise InvalidOptionError(option, given, "must be a string")
    if not given:
        raise InvalidOptionError(option, given, "is empty: leave it out where it does not matter")
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
    """The range, with ends that select the same of stored moments, which are whole milliseconds."""
    return Within(above=_down(above), below=_up(below), at_least=_up(at_least), at_most=_down(at_most))


def _down(end: datetime | None) -> datetime | None:
    return None if end is None else end - timedelta(microseconds=end.microsecond % 1000)


def _up(end: datetime | None) -> datetime | None:
    return None if end is None else end + timedelta(microseconds=-end.microsecond % 1000)


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
        InvalidOptionError: One of them cannot be, or selects nothing (an empty list is no way to select all); names it.
    """

    name: str | Iterable[str] | None = None
    status: Statuses | None = None
    older_than: datetime | None = None
    newer_than: datetime | None = None
    fail_reason: str | None = None
    fail_reason_prefix: str | None = None

    def __post_init__(self) -> None:
        # Frozen also inside: an iterator would be empty when it is asked for the second time.
        if self.name is not None:
            names = tuple(dict.fromkeys(_text("name", one) for one in _several("name", self.name)))
            object.__setattr__(self, "name", names)
        object.__setattr__(self, "status", checked_statuses(self.status))
        for first, last, with_ends in self._ranges():
            self._check_range(first, last, with_ends=with_ends)
        if self.fail_reason is not None and self.fail_reason_prefix is not None:
            raise InvalidOptionError(
                "fail_reason_prefix", self.fail_reason_prefix, "cannot be given beside fail_reason: choose one"
            )
        for option in ("fail_reason", "fail_reason_prefix"):
            if getattr(self, option) is not None:
                _text(option, getattr(self, option))

    @classmethod
    def _ranges(cls) -> tuple[tuple[str, str, bool], ...]:
        """What begins and what ends a range, and whether the ends themselves are in it."""
        return (("newer_than", "older_than", False),)

    def _check_range(self, first: str, last: str, *, with_ends: bool) -> None:
        begin, end = getattr(self, first), getattr(self, last)
        for option, moment in ((first, begin), (last, end)):
            if moment is not None:
                checked_moment(option, moment)
                # Two of one time zone are compared by their wall clocks, an hour of which may come twice.
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
        """The names that are asked for; None for any."""
        return self.name  # type: ignore[return-value]  # Made one by __post_init__.

    @property
    def statuses(self) -> tuple[JobStatus, ...] | None:
        """The statuses that are asked for; None for any."""
        return self.status  # type: ignore[return-value]

    @property
    def is_everything(self) -> bool:
        """Whether it asks for nothing."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def among(self, possible: Collection[JobStatus]) -> tuple[JobStatus, ...]:
        """Of these statuses, those that are asked for: maybe none."""
        return tuple(status for status in JobStatus if status in possible and status in (self.statuses or possible))

    def conditions(self) -> dict[str, Any]:
        """What it asks beside names and statuses, as the guard of a transition has it."""
        asked: dict[str, Any] = {}
        if self.older_than is not None or self.newer_than is not None:
            asked["created_at"] = within(above=self.newer_than, below=self.older_than)
        if self.fail_reason is not None:
            asked["fail_reason"] = Containing(self.fail_reason)
        if self.fail_reason_prefix is not None:
            asked["fail_reason"] = Containing(self.fail_reason_prefix, at_the_beginning=True)
        return asked

    def guard(self, statuses: Collection[JobStatus]) -> dict[str, Any]:
        """What a job must be, in one of these statuses. Used to choose, and repeated whole in each write."""
        asked = self.conditions()
        if self.names is not None:
            asked["name"] = one_of(self.names)
        if set(statuses) != set(JobStatus) or self.statuses is not None:
            asked["status"] = one_of(tuple(statuses))
        return asked


def one_of(values: tuple[Any, ...]) -> Any:
    """The condition that a field is one of these."""
    return values[0] if len(values) == 1 else OneOf(values)
