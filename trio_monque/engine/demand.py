"""What the engine asks a source for, and what it gets: the values of the port. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

ClaimT = TypeVar("ClaimT")
ItemT = TypeVar("ItemT")

# A claim takes a millisecond or two until it is sent. If the engine starts it earlier, it is sent when the item is due.
HEAD_START: Final = 0.003
"""Seconds before an item is due from which on the engine may ask for this item alone. Not in virtual time."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the engine can start now.

    Attributes:
        total: How many items in all.
        groups: How many of each group; items that share a concurrency limit are one group.
        suspects: How many of them may be suspects.
        capacity: How many runs may go on at once; the free ones of these are demanded.
        force_look: Something new was announced: items that were read ahead do not answer this demand.
        withholds: Whether an item must not be claimed now, by its key, because a run of it goes on here. See
            `RunSource.key_of`.
    """

    total: int
    groups: Mapping[str, int]
    suspects: int = 1
    capacity: int = 0
    force_look: bool = True
    withholds: Callable[[Hashable], bool] = lambda key: False


@dataclass(frozen=True, slots=True)
class KnownItem:
    """One item that is known by name: when it is due, the engine can ask for it without a look.

    Attributes:
        key: How the source finds it again. The engine compares keys, and looks into none.
        group: Its group.
    """

    key: Hashable
    group: str


@dataclass(frozen=True, slots=True)
class Due:
    """When the next item is due.

    Attributes:
        moment: On trio's clock, in seconds.
        item: This item, if no other is due at the same moment and the source can claim it alone.
    """

    moment: float
    item: KnownItem | None = None


@dataclass(frozen=True, slots=True)
class Granted(Generic[ClaimT]):
    """The result of a claim.

    Attributes:
        claims: Held from now on.
        more: Whether it is worth asking again at once.
    """

    claims: Sequence[ClaimT]
    more: bool = False


class ClaimState(Enum):
    """What a renewal found of one claim."""

    HELD = auto()
    CANCEL_REQUESTED = auto()
    NOT_RENEWED = auto()  # Held, but the server refuses to renew this one: its lease runs out.
    LOST = auto()


@dataclass(frozen=True, slots=True)
class Found(Generic[ItemT]):
    """The result of a look.

    Attributes:
        items: Candidates, not claims: in their order, at least within each group.
        asked: The groups that were looked at.
        exhausted: The groups that have no other items than these.
        short: The groups that had fewer items than wanted, beyond those that were to be passed over.
        is_whole: The look would also have shown the items that not every claim accepts.
    """

    items: Sequence[ItemT]
    asked: Collection[str]
    exhausted: Collection[str]
    short: Collection[str]
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class Hints(Generic[ClaimT]):
    """What one answer of the stream comes to.

    Attributes:
        look: Something may be due now, or later: a look must find out.
        due: The earliest moment, on trio's clock, at which something is due; it may have passed. Infinity for none.
        last_due: The latest such moment; others may lie between them.
        item: This item, if the answer contains nothing else and the item is new.
        is_asked_to_end: For which claims a user asked to cancel the run; None for no claim.
        ended: The server has closed the stream in order: the engine opens it again.
    """

    look: bool = False
    due: float = math.inf
    last_due: float = -math.inf
    item: KnownItem | None = None
    is_asked_to_end: Callable[[ClaimT], bool] | None = None
    ended: bool = False


class StreamFailedError(Exception):
    """The stream could not be opened, or broke.

    Attributes:
        error: What the source met.
        is_final: The server offers no stream: the engine does not try again.
    """

    def __init__(self, error: Exception, *, is_final: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.is_final = is_final
