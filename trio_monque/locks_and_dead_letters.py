"""The lock in a document of any collection: its forms, its states, and the condition of its holder. Pure.

    {by, until, every, token, tries}         held: `by` renews it every `every` milliseconds; others wait until `until`
    {by: None, until, tries}                 free from `until` on; `tries` attempts failed or died before
    {by: None, until: NEVER, tries, error}   dead letter: its attempts are used up
    absent, or None                          free

Programs that know only `by` and `until` read all of these correctly, and this library reads the locks that they write.

Races, and the field that closes each:

- A holds a document and is suspended. The lock expires, B claims the document, then A wakes up and writes its result.
  Without the fence, A would end B's claim. `by` alone is not enough: B may be the same instance, which claimed the
  document a second time without knowing that it had lost the first claim. So there is `token`, a new one each time.
- A holds a document and its lock expires. A program that knows only `by` and `until`, configured with the same name,
  overwrites these two and leaves our `token` in place. `by` and `token` are equal then. Only `until` shows that the
  lock is not A's any more. So the fence compares `until` with every value that A has sent.
- A renews its lock and the answer is lost. The database holds the old `until` or the new one. If the fence had only one
  of them, A would take its own lock for a lost one. So the fence has all values that the database may hold.
- A program that knows only `by` and `until` claims a document whose `token` is left over from us, under a name of its
  own. A token counts only if it begins with the current `by`; otherwise an observer would expect renewals that the
  program never makes, and would take the document from its live holder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from types import NoneType
from typing import Any, Final

from .options_and_defaults import LEASE_IN_BEATS, LONGEST_BEAT, SHORTEST_BEAT

NEVER: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""`until` of a dead letter. Not the last possible date: a conversion to a time zone would move that out of range."""

MOST_TRIES: Final = 1_000_000
"""A larger number of attempts in a lock, which another program may have written, is read as this."""

LONGEST_ERROR: Final = 2000
"""Characters of the last error that the lock of a dead letter keeps."""


class LockState(Enum):
    """What a lock means for an instance that wants the document.

    Attributes:
        FREE: Claimable now.
        WAITING: Becomes claimable later, without any action.
        DEAD_LETTER: Its attempts are used up; only `readmit` makes it claimable again.
        HELD: An instance of this library holds it and renews the lock.
        FOREIGN: A program that knows only `by` and `until` holds it.
        UNKNOWN: This library cannot read its form, and never changes it.
    """

    FREE = auto()
    WAITING = auto()
    DEAD_LETTER = auto()
    HELD = auto()
    FOREIGN = auto()
    UNKNOWN = auto()


@dataclass(frozen=True, slots=True)
class Lock:
    """A lock as it was read, if it has a form that can be read.

    Attributes:
        by: The holder; None if the document is free.
        until: Until when it is held, or from when on it is free; None for at once.
        every: Seconds between the renewals; None if the lock does not have it.
        token: The fencing token of the holder.
        tries: How many attempts at the document failed or died.
        error: The last error of a dead letter.
    """

    by: str | None
    until: datetime | None
    every: float | None = None
    token: str | None = None
    tries: int = 0
    error: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether an instance of this library made the current lock."""
        # A program that knows only `by` and `until` leaves our token behind: then the token does not begin with `by`.
        return self.by is not None and self.token is not None and self.token.startswith(f"{self.by}:")

    @property
    def lease(self) -> float:
        """Seconds without a renewal after which the holder counts as dead. For locks of ours only."""
        every = SHORTEST_BEAT if self.every is None else self.every
        return LEASE_IN_BEATS * min(max(every, SHORTEST_BEAT), LONGEST_BEAT)


def read_lock(value: object) -> Lock | None:
    """Reads the value of a lock field; None if it has another form. An absent or null field is a free lock."""
    if value is None:
        return Lock(None, None)
    if not isinstance(value, Mapping):
        return None
    by, until = value.get("by"), value.get("until")
    # Exact types: bson has subclasses of Python's types with another meaning, such as `Code`, a subclass of `str`.
    if type(until) not in (datetime, NoneType) or type(by) not in (str, NoneType):
        return None
    if until is None and (by is not None or "by" not in value):
        return None  # A holder without an end, or a document that is not a lock at all.
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
    """The state of a lock at `now`. Pass None for a lock that could not be read."""
    if lock is None:
        return LockState.UNKNOWN
    if lock.by is not None:
        return LockState.HELD if lock.is_ours else LockState.FOREIGN
    if lock.until is None or lock.until <= now:
        return LockState.FREE
    return LockState.DEAD_LETTER if lock.until >= NEVER else LockState.WAITING


# --- Locks that this library writes ---


@dataclass(frozen=True, slots=True)
class LockStamp:
    """What a claim writes into each document that it takes.

    Attributes:
        by: The instance.
        token: Identifies the claim. It begins with `by`, so that it does not fit if another program overwrites `by`.
        every: Seconds between renewals.
        until: When the lock ends unless it is renewed; server time.
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
        """The fields of a held lock except `tries`, which differs from document to document."""
        return {"by": self.by, "until": self.until, "every": round(self.every * 1000), "token": self.token}


@dataclass(frozen=True, slots=True)
class Fence:
    """The condition that a claim still holds its lock. Every write under the claim has it.

    Attributes:
        by, token: As in the stamp of the claim.
        untils: The values of `until` that the claim has sent and that the database may hold.
    """

    by: str
    token: str
    untils: tuple[datetime, ...]


def renewed_until(now: datetime, every: float) -> datetime:
    """The end of a lock that is claimed or renewed at `now`."""
    return now + timedelta(seconds=LEASE_IN_BEATS * every)


def freed(tries: int, claimable_from: datetime) -> dict[str, Any]:
    """A lock without a holder."""
    return {"by": None, "until": claimable_from, "tries": tries}


SHORTEST_ERROR: Final = 16
"""Bytes of the error in the lock of a document that has no room for more."""


def dead_letter_lock(tries: int, error: str) -> dict[str, Any]:
    """The lock of a dead letter."""
    return {"by": None, "until": NEVER, "tries": tries, "error": error[:LONGEST_ERROR]}


def shortened(error: str) -> str:
    """The beginning of an error. In a full document, the new lock must be smaller than the one that was held."""
    return error.encode("utf-8", "replace")[:SHORTEST_ERROR].decode("utf-8", "ignore")
