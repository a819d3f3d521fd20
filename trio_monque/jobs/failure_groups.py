"""Failures grouped by the name of the job and by the error: a thousand jobs with one cause are one line. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from ..safe_text import one_line

T = TypeVar("T")

LONGEST_ERROR: Final = 160
"""Characters of an error that distinguish it from others, and that are shown."""

# Ids, addresses and numbers: what differs between two errors with one cause.
_VARIABLE: Final = re.compile(r"0x[0-9a-fA-F]+|\b(?=[a-f-]*\d)[0-9a-fA-F]{8}[0-9a-fA-F-]*\b|\d+")


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
    first = (reason or "").strip().partition("\n")[0]
    return one_line(_VARIABLE.sub("…", first)[:LONGEST_ERROR]) or "an unknown error"


def group_by(items: Iterable[T], key: Callable[[T], object]) -> Sequence[Sequence[T]]:
    """Return the items that have one key together, the largest group first."""
    groups: dict[object, list[T]] = defaultdict(list)
    for one in items:
        groups[key(one)].append(one)
    return sorted(groups.values(), key=len, reverse=True)


def grouped_failures(failures: Iterable[FailedJob]) -> Sequence[FailureGroup]:
    """Return the failures by name and error, the most frequent first."""
    found = []
    for group in group_by(failures, lambda one: (one.name, error_kind(one.reason))):
        last = max(group, key=lambda one: one.at)
        found.append(
            FailureGroup(
                name=last.name,
                error=error_kind(last.reason),
                count=len(group),
                example=last.id,
                first=min(one.at for one in group),
                last=last.at,
            )
        )
    return found
