"""The values of the port: what the engine asks a source for, and what it gets. Pure.

An *item* is what can be claimed: a job, a document. A *candidate* is an item that a look has shown as due; others may
claim it too. A *claim* is granted by the source: from then on this instance holds the item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, NamedTuple, TypeVar

ClaimT = TypeVar("ClaimT")
ItemT = TypeVar("ItemT")

# A claim takes a millisecond or two until it is sent. Started this much earlier, it is sent when the item is due.
HEAD_START: Final = 0.003
"""Seconds before an item is due from which on the engine may ask for this item alone. Not in virtual time."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What the engine can start now.

    Attributes:
        total: How many items in all.
        groups: How many of each group; items that share a concurrency limit are one group.
        suspects: How many of them may be suspects, see `ClaimTraits.is_suspect`.
        capacity: How many runs may go on at once, including those that go on now.
        force_look: Something new was announced, so that what was read ahead does not suffice.
        is_running_here: Takes the key of an item (`ClaimTraits.key`). Returns whether this instance already runs the
            item; such items must not be claimed again.
    """

    total: int
    groups: Mapping[str, int]
    suspects: int = 1
    capacity: int = 0
    force_look: bool = True
    is_running_here: Callable[[Hashable], bool] = lambda key: False


@dataclass(frozen=True, slots=True)
class KnownItem:
    """One item whose key is known, so that the engine can claim it without a look when it is due.

    Attributes:
        key: How the source finds it again. The engine only compares keys.
        group: Its group.
    """

    key: Hashable
    group: str


@dataclass(frozen=True, slots=True)
class Due:
    """When the next item is due.

    Attributes:
        moment: On trio's clock, in seconds.
        item: This item, if no other is due at the same moment and the source can claim it by its key.
    """

    moment: float
    item: KnownItem | None = None


@dataclass(frozen=True, slots=True)
class Granted(Generic[ClaimT]):
    """The result of a claim.

    Attributes:
        claims: The engine holds them from now on.
        more: Whether more may be due: it is worth asking again at once.
        exhausted: The groups that have no other due items, as far as is known.
    """

    claims: Sequence[ClaimT]
    more: bool = False
    exhausted: Set[str] = frozenset()


class ClaimTraits(NamedTuple):
    """What the engine must know about a claim. A tuple: each claim has one, and it costs one call.

    Attributes:
        key: What identifies the item: the same for all claims on it, over time.
        group: The group whose concurrency limit the claim counts against.
        is_suspect: Whether the item may have killed its holders: an instance runs one such item at a time.
        time_limit: Seconds that its run may take; infinity for no limit.
        renewal_limit: Seconds after which the engine stops renewing the claim, even if its run goes on; infinity for no
            limit.
        start_limit: The moment, on trio's clock, at which its handler must have been called; infinity for no limit.
    """

    key: Hashable
    group: str
    is_suspect: bool = False
    time_limit: float = math.inf
    renewal_limit: float = math.inf
    start_limit: float = math.inf


class ClaimState(Enum):
    """What a renewal found of one claim."""

    HELD = auto()
    CANCEL_REQUESTED = auto()
    NOT_RENEWED = auto()  # Held, but the server refuses to renew this one (too large, say): its lease ends.
    LOST = auto()


@dataclass(frozen=True, slots=True)
class Reading:
    """What a look is to read.

    Attributes:
        wanted: How many items of each group; also for the next claims, so it may be more than is demanded.
        passed_over: How many of the first items of a group to skip.
        enough: With this number of items, the look may end early if they are large. The rest would be read ahead.
        in_flight: The keys of the items that claims in flight have. They do not count, and may be left out.
    """

    wanted: Mapping[str, int]
    passed_over: Mapping[str, int]
    enough: int
    in_flight: Set[Hashable] = frozenset()


@dataclass(frozen=True, slots=True)
class FoundItems(Generic[ItemT]):
    """The result of a look.

    Attributes:
        items: Candidates, in the order in which they would start, at least within each group.
        asked: The groups that were looked at.
        exhausted: The groups that have no other due items than these.
        short: The groups that had fewer items than wanted behind those that were passed over.
        is_whole: Whether the look also shows items that some claims do not accept (see `Finder.accepts`).
        unread: The groups that were not read to the end, because the look had enough before.
    """

    items: Sequence[ItemT]
    asked: Collection[str]
    exhausted: Collection[str]
    short: Collection[str]
    is_whole: bool = True
    unread: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Hints(Generic[ClaimT]):
    """What one answer of the stream contains.

    Attributes:
        look: Something may be due now, or later: a look must find out.
        due: The earliest moment, on trio's clock, at which something is due; it may have passed. Infinity for none.
        last_due: The latest such moment; others may lie between them.
        item: This item, if the answer contains nothing else and the item is new.
        is_cancel_requested: Whether a user may have asked to cancel the run of a claim; None for no claim.
        ended: The server has closed the stream in order, so the engine opens it again.
    """

    look: bool = False
    due: float = math.inf
    last_due: float = -math.inf
    item: KnownItem | None = None
    is_cancel_requested: Callable[[ClaimT], bool] | None = None
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
