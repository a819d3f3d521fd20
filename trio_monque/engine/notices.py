"""What the engine tells its source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RunStarted:
    claim: Any


@dataclass(frozen=True, slots=True)
class RunSettled:
    """The end of a run was written."""

    settlement: Any


@dataclass(frozen=True, slots=True)
class RunLost:
    """The claim was gone, or nobody can tell whether the end was written."""

    claim: Any


@dataclass(frozen=True, slots=True)
class Draining:
    """Nothing more is claimed: the end was asked for."""

    cause: str


@dataclass(frozen=True, slots=True)
class CutShort:
    """These runs were cancelled because the scheduler leaves."""

    claims: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class RenewalFailed:
    error: Exception


@dataclass(frozen=True, slots=True)
class ClaimFailed:
    error: Exception


@dataclass(frozen=True, slots=True)
class ClaimsRescued:
    """Dead claims were taken away; `rescued` is what the source said of them."""

    rescued: Any


@dataclass(frozen=True, slots=True)
class RescueDelayed:
    """The claims of others could not be seen, or a dead one not be taken, this time; it is tried again."""

    error: Exception


@dataclass(frozen=True, slots=True)
class RescueUnanswered:
    """The reaper ends, and what became of its last attempt is not known: claims may have been taken away."""


@dataclass(frozen=True, slots=True)
class StreamConnected:
    """The stream of hints is open."""


@dataclass(frozen=True, slots=True)
class StreamFailed:
    """It could not be opened, or broke; it is tried again."""

    error: Exception


@dataclass(frozen=True, slots=True)
class StreamClosed:
    """It was open, and is so no more."""


@dataclass(frozen=True, slots=True)
class StreamFallback:
    """Polls do its work, for longer than a moment or for good."""

    error: Exception


@dataclass(frozen=True, slots=True)
class SettlementDelayed:
    """A batch could not be written this time; it is sent again."""

    error: Exception
