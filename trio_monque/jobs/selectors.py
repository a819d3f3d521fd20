"""Which jobs a bulk action is for, as a value. Pure; the codec turns its conditions into a filter."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TypedDict

from ..errors import InvalidOptionError
from .job import JobStatus
from .new_job import checked_moment
from .transition import Containing, OneOf, Within

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
    status: JobStatus | str | Iterable[JobStatus | str] | None
    older_than: datetime | None
    newer_than: datetime | None
    fail_reason: str | None
    fail_reason_prefix: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkSelector:
    """A selection, checked. Moments are in whole milliseconds, as they are compared."""

    names: tuple[str, ...] | None = None
    statuses: tuple[JobStatus, ...] | None = None
    created: Within | None = None
    fail_reason: Containing | None = None

    @property
    def is_everything(self) -> bool:
        return self == BulkSelector()

    def among(self, possible: Collection[JobStatus]) -> tuple[JobStatus, ...]:
        """Of these statuses, those that are asked for: maybe none."""
        return tuple(status for status in JobStatus if status in possible and status in (self.statuses or possible))

    def guard(self, statuses: Collection[JobStatus]) -> dict[str, Any]:
        """What a job must be, in one of these statuses. Used to choose, and repeated whole in each write."""
        guard: dict[str, Any] = {}
        if set(statuses) != set(JobStatus) or self.statuses is not None:
            guard["status"] = _one_of(tuple(statuses))
        if self.names is not None:
            guard["name"] = _one_of(self.names)
        if self.created is not None:
            guard["created_at"] = self.created
        if self.fail_reason is not None:
            guard["fail_reason"] = self.fail_reason
        return guard


def _one_of(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else OneOf(values)


def job_selector(
    *,
    name: str | Iterable[str] | None = None,
    status: JobStatus | str | Iterable[JobStatus | str] | None = None,
    older_than: datetime | None = None,
    newer_than: datetime | None = None,
    fail_reason: str | None = None,
    fail_reason_prefix: str | None = None,
) -> BulkSelector:
    """The selector that a call means; raises InvalidOptionError naming what is wrong with it."""
    return BulkSelector(
        names=None if name is None else _names(name),
        statuses=None if status is None else _statuses(status),
        created=_created(older_than, newer_than),
        fail_reason=_fail_reason(fail_reason, fail_reason_prefix),
    )


def _names(given: Any) -> tuple[str, ...]:
    return tuple(dict.fromkeys(_text("name", one) for one in _several("name", given)))


def _statuses(given: Any) -> tuple[JobStatus, ...]:
    try:
        return tuple(dict.fromkeys(JobStatus(one) for one in _several("status", given)))
    except InvalidOptionError:
        raise
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


def _created(older_than: datetime | None, newer_than: datetime | None) -> Within | None:
    if older_than is None and newer_than is None:
        return None
    before = None if older_than is None else checked_moment("older_than", older_than)
    after = None if newer_than is None else checked_moment("newer_than", newer_than)
    if older_than is not None and newer_than is not None and newer_than >= older_than:
        raise InvalidOptionError("newer_than", newer_than, f"selects nothing: it must be before {older_than!r}")
    if before is not None and older_than is not None and older_than.microsecond % 1000:
        # Stored moments are whole milliseconds: the one that was cut off is before it as well.
        before += timedelta(milliseconds=1)
    return Within(above=after, below=before)


def _fail_reason(text: str | None, prefix: str | None) -> Containing | None:
    if text is not None and prefix is not None:
        raise InvalidOptionError("fail_reason_prefix", prefix, "cannot be given beside fail_reason: choose one")
    if text is not None:
        return Containing(_text("fail_reason", text))
    return None if prefix is None else Containing(_text("fail_reason_prefix", prefix), at_the_beginning=True)
