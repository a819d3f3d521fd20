"""The lock in a document: what it says, who holds it, and what it becomes. Pure.

    {by, until, every, token, tries}   held: `by` renews it every `every` milliseconds, and until then nobody else may
    {by: None, until, tries}           free from then on, after so many tries that failed or died
    {by: None, until: NEVER, tries, error}   a dead letter: no attempts are left
    nothing, or None                   free

Programs that know only `by` and `until` read all of these rightly, and write locks that are read here as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from types import NoneType
from typing import Any, Final

from .options import LEASE_IN_BEATS, LONGEST_BEAT, SHORTEST_BEAT

NEVER: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""Until when a dead letter is locked. Not the last date of all: a time zone would move that out of range."""

MOST_TRIES: Final = 1_000_000
"""A number of tries that a lock says is taken for at most this."""

LONGEST_ERROR: Final = 2000
"""Characters of what is kept of the last error of a dead letter."""


class LockState(Enum):
    """What a lock means to whoever wants the document.

    Attributes:
        FREE: Claimable now.
        WAITING: Claimable by itself, later.
        DEAD_LETTER: No attempts are left; `readmit` frees it.
        HELD: By an instance of this library, which renews it.
        FOREIGN: By a program that knows only `by` and `until`.
        UNKNOWN: In no form that anybody here can read: never touched.
    """

    FREE = auto()
    WAITING = auto()
    DEAD_LETTER = auto()
    HELD = auto()
    FOREIGN = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock as it was read, where it is in a form that can be read.

    Attributes:
        by: The holder; None where it is free.
        until: Until when it is held, or from when on it is free; None for at once.
        every: Seconds between its holder's renewals; None where it does not say.
        token: Its holder's fencing token.
        tries: How many tries of the document have failed or died.
        error: What the last one failed with, in a dead letter.
    """

    by: str | None
    until: datetime | None
    every: float | None = None
    token: str | None = None
    tries: int = 0
    error: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether an instance of this library made it: who overwrites `by` and leaves the rest has made it its own."""
        return self.by is not None and self.token is not None and self.token.startswith(f"{self.by}:")

    @property
    def lease(self) -> float:
        """Seconds without a renewal after which its holder is dead, where it is one of ours."""
        every = SHORTEST_BEAT if self.every is None else self.every
        return LEASE_IN_BEATS * min(max(every, SHORTEST_BEAT), LONGEST_BEAT)


def read_lock(value: object) -> Lock | None:
    """The lock that a field's value is; None where it has another form. What `None` and nothing mean is a free one."""
    if value is None:
        return Lock(None, None)
    if not isinstance(value, Mapping):
        return None
    by, until = value.get("by"), value.get("until")
    # By exact type: BSON has subclasses of Python's types that mean something else, such as `Code` of `str`.
    if type(until) not in (datetime, NoneType) or type(by) not in (str, NoneType):
        return None
    if until is None and (by is not None or "by" not in value):
        return None  # Nobody can tell when it ends; or it is something else altogether.
    every, token, error = value.get("every"), value.get("token"), value.get("error")
    return Lock(
        by,
        None if until is None else until.replace(tzinfo=UTC) if until.tzinfo is None else until,
        every / 1000 if isinstance(every, int | float) and type(every) is not bool and every == every else None,
        token if type(token) is str else None,
        _tries(value.get("tries")),
        error if type(error) is str else None,
    )


def _tries(value: object) -> int:
    return min(max(int(value), 0), MOST_TRIES) if isinstance(value, int) and not isinstance(value, bool) else 0


def state_of(lock: Lock | None, now: datetime) -> LockState:
    """What a lock means now; None for one that could not be read."""
    if lock is None:
        return LockState.UNKNOWN
    if lock.by is not None:
        return LockState.HELD if lock.is_ours else LockState.FOREIGN
    if lock.until is None or lock.until <= now:
        return LockState.FREE
    return LockState.DEAD_LETTER if lock.until >= NEVER else LockState.WAITING


# --- What it becomes ---


@dataclass(frozen=True, slots=True)
class LockStamp:
    """What one claim writes into all that it takes.

    Attributes:
        by: The instance.
        token: Which of its claims; begins with the instance, so that nobody takes another's lock for one of ours.
        every: Seconds between renewals.
        until: When it ends unless it is renewed, by the server's time.
    """

    by: str
    token: str
    every: float
    until: datetime

    @classmethod
    def new(cls, by: str, now: datetime, every: float, nonce: str) -> LockStamp:
        return cls(by, f"{by}:{nonce}", every, renewed_until(now, every))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of a held lock but `tries`, which are the document's own."""
        return {"by": self.by, "until": self.until, "every": round(self.every * 1000), "token": self.token}


@dataclass(frozen=True, slots=True)
class Fence:
    """What a lock must say to be that of a claim: every write under the claim is made on this condition.

    Attributes:
        by, token: As in the claim's stamp.
        untils: What `until` may be: what the claim has sent and the database may hold.
    """

    by: str
    token: str
    untils: tuple[datetime, ...]


def renewed_until(now: datetime, every: float) -> datetime:
    """Until when a lock is held that is claimed or renewed now."""
    return now + timedelta(seconds=LEASE_IN_BEATS * every)


def freed(tries: int, claimable_from: datetime) -> dict[str, Any]:
    """A lock that nobody holds."""
    return {"by": None, "until": claimable_from, "tries": tries}


SHORTEST_ERROR: Final = 16
"""Bytes of the error in the lock of a full document."""


def laid_aside(tries: int, error: str) -> dict[str, Any]:
    """The lock of a document whose tries are used up."""
    return {"by": None, "until": NEVER, "tries": tries, "error": error[:LONGEST_ERROR]}


def shortened(error: str) -> str:
    """The beginning of an error, for a document that is full: so the lock is smaller than the one that was held."""
    return error.encode("utf-8", "replace")[:SHORTEST_ERROR].decode("utf-8", "ignore")
