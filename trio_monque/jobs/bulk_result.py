"""What a bulk action did, as a value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MOST_ERRORS_LISTED: Final = 100
MOST_NAMES_COUNTED: Final = 100


@dataclass(frozen=True, slots=True)
class BulkFailure:
    """A document that was selected and refused.

    Attributes:
        job_id: Its `_id`, as a hex string.
        reason: Why.
    """

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What a bulk action did; for `on_progress`, so far.

    A job that was no longer selected when its turn came is left alone, and counts nowhere.

    Attributes:
        count: How many jobs it changed or deleted, for certain.
        errors: The first 100 of those that were refused, and why.
        refused: How many were refused in all.
        unknown: How many may have been changed or deleted: the answer was lost, and they have changed again or
            are gone.
    """

    count: int = 0
    errors: tuple[BulkFailure, ...] = ()
    refused: int = 0
    unknown: int = 0


@dataclass(slots=True)
class Tally:
    """The same while it grows."""

    count: int = 0
    refused: int = 0
    unknown: int = 0
    errors: list[BulkFailure] = field(default_factory=list)
    by_name: Counter[str] = field(default_factory=Counter)

    def add(self, count: int, by_name: Mapping[str, int]) -> None:
        self.count += count
        for name, number in by_name.items():
            if name in self.by_name or len(self.by_name) < MOST_NAMES_COUNTED:
                self.by_name[name] += number

    def refuse(self, document_id: object, reason: str) -> None:
        self.refused += 1
        if len(self.errors) < MOST_ERRORS_LISTED:
            self.errors.append(BulkFailure(str(document_id), reason))

    def result(self) -> BulkResult:
        return BulkResult(self.count, tuple(self.errors), self.refused, self.unknown)
