"""What happened to claimed documents. An event tells what the database has accepted, never what was hoped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..jobs.events import Event


@dataclass(frozen=True, slots=True)
class DocumentFailed(Event):
    """A try failed and that was written. `attempt` is which one it was; with `will_retry` it is claimed again."""

    document_id: Any
    attempt: int
    error: BaseException
    will_retry: bool


@dataclass(frozen=True, slots=True)
class DocumentSetAside(Event):
    """Its tries are used up: nobody claims the document until `readmit`. `error` is what the last one failed with."""

    document_id: Any
    tries: int
    error: str


@dataclass(frozen=True, slots=True)
class ClaimLost(Event):
    """A lock was taken, or could not be renewed in time: the work on the document was cancelled."""

    document_id: Any
    attempt: int


@dataclass(frozen=True, slots=True)
class DocumentsRescued(Event):
    """So many locks of dead holders were taken away; each counts as a try."""

    count: int
