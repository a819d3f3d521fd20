"""Failures grouped by the name of the job and by the error: a thousand jobs with one cause are one line. Pure."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from ..safe_text import one_line

T = TypeVar("T")

LONGEST_ERROR: Final = 160
"""Characters of an error that are shown."""

LONGEST_ESSENCE: Final = 500
"""Characters of an error, without its variable parts, that distinguish it from others."""

MINUTES: Final = 60
"""The minutes for which an error group has a count of its own."""

LONGEST_READ: Final = 2 * LONGEST_ESSENCE
"""Characters of an error that are looked at: a program may put a whole file into its first line."""

# Addresses of people and of memory, ids and numbers: what differs between two errors with one cause.
#
# Linear in the length of the error, also for a line without a space: an address is tried at the begin of a word only,
# nothing is given back (`++`), and the digit that makes an id of a word is near its begin. Without that, five thousand
# errors of three thousand letters each took twenty seconds.
_VARIABLE: Final = re.compile(
    r"(?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++"
    r"|0x[0-9a-fA-F]++"
    r"|\b(?=[0-9a-fA-F]{8})(?=[a-f-]{0,40}\d)[0-9a-fA-F-]+\b"
    r"|\d++"
)


@dataclass(frozen=True, kw_only=True)
class FailedJob:
    """The last failure of one job.

    Attributes:
        id, name: Of the job.
        reason: Why it failed; None if unknown.
        at: When the job was written last: when it failed, for one that has ended.
    """

    id: Any
    name: str
    reason: str | None
    at: datetime


@dataclass(frozen=True, kw_only=True)
class FailureGroup:
    """Jobs of one name that failed with one error.

    Attributes:
        name: Of the jobs.
        error: What their errors have in common: an ellipsis stands for each number and id.
        count: How many jobs.
        example: The id of the job that failed last.
        first, last: When the first and the last of them failed.
    """

    name: str
    error: str
    count: int
    example: Any
    first: datetime
    last: datetime


def error_kind(reason: str | None) -> str:
    """Return what an error has in common with others of the same cause: its first line without numbers and ids."""
    return one_line(error_essence(reason)[:LONGEST_ERROR]) or "an unknown error"


def error_essence(reason: str | None) -> str:
    """Return what distinguishes an error from those of other causes: `error_kind`, and what follows behind it."""
    first = (reason or "").strip().partition("\n")[0]
    return _VARIABLE.sub("…", first[:LONGEST_READ])[:LONGEST_ESSENCE]


@dataclass(frozen=True, kw_only=True)
class ErrorGroup:
    """Failed jobs with one error, of any names.

    Attributes:
        error: What their errors have in common: an ellipsis stands for each number and id.
        prefix: What all their errors begin with: jobs are selected by it as `fail_reason_prefix`. It may select others,
            whose errors differ behind it.
        names: How many jobs of each name, the most first.
        count: How many jobs.
        example: The id of the job that failed last.
        first, last: When the first and the last of them failed, UTC.
        by_minute: How many failed in each of the last sixty minutes, the earliest first.
        by_name: The jobs of each name, the most first.
    """

    error: str
    prefix: str
    names: Mapping[str, int]
    count: int
    example: Any
    first: datetime
    last: datetime
    by_minute: Sequence[int]
    by_name: Sequence[FailureGroup]


@dataclass(frozen=True, kw_only=True)
class ErrorGroups:
    """Failed jobs by their errors.

    Attributes:
        groups: The groups, the largest first.
        looked_at: How many failed jobs were looked at: the latest ones.
        is_capped: There are more failed jobs, or more groups.
    """

    groups: Sequence[ErrorGroup]
    looked_at: int
    is_capped: bool = False


def error_groups(failures: Sequence[FailedJob], now: datetime, most: int, *, is_capped: bool) -> ErrorGroups:
    """Return the groups of these failures, `most` at most."""
    groups = group_by(failures, lambda one: error_essence(one.reason))
    return ErrorGroups(
        groups=[_error_group(group, now) for group in groups[:most]],
        looked_at=len(failures),
        is_capped=is_capped or len(groups) > most,
    )


def _error_group(group: Sequence[FailedJob], now: datetime) -> ErrorGroup:
    last = max(group, key=lambda one: one.at)
    by_minute = [0] * MINUTES
    for one in group:
        ago = int((now - one.at).total_seconds() // 60)
        if ago < MINUTES:
            by_minute[MINUTES - 1 - max(0, ago)] += 1
    return ErrorGroup(
        error=error_kind(last.reason),
        prefix=_common_prefix([one.reason or "" for one in group]),
        names=dict(Counter(one.name for one in group).most_common()),
        count=len(group),
        example=last.id,
        first=min(one.at for one in group),
        last=last.at,
        by_minute=by_minute,
        by_name=[_of_one_name(some) for some in group_by(group, lambda one: one.name)],
    )


def _common_prefix(texts: Sequence[str]) -> str:
    first, last = min(texts), max(texts)
    shared = next((place for place, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), None)
    return first if shared is None and len(first) <= len(last) else last[:shared]


def group_by(items: Iterable[T], key: Callable[[T], object]) -> Sequence[Sequence[T]]:
    """Return the items that have one key together, the largest group first."""
    groups: dict[object, list[T]] = defaultdict(list)
    for one in items:
        groups[key(one)].append(one)
    return sorted(groups.values(), key=len, reverse=True)


def _of_one_name(group: Sequence[FailedJob]) -> FailureGroup:
    last = max(group, key=lambda one: one.at)
    return FailureGroup(
        name=last.name,
        error=error_kind(last.reason),
        count=len(group),
        example=last.id,
        first=min(one.at for one in group),
        last=last.at,
    )
