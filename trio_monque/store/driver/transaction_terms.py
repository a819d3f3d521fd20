"""What one transaction asks of its caller: how its claim ends, and what bounds it. See `transaction_attempts.py`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum, auto
from typing import Generic, Protocol, TypeVar

from ...error_types import MonqueError
from .types import ClientSession, Collection

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)


class TransactionTerms(Protocol):
    """What bounds a transaction. Called in its thread."""

    @property
    def is_given_up(self) -> bool:
        """Whether it will not be committed, because its run is cancelled or its limit is over."""
        ...

    def begin(self, session: ClientSession) -> bool:
        """Return whether the function may be called, in this session; asked before each call."""
        ...

    def seconds_left(self) -> float:
        """Return how long the transaction may take, and its run surely holds its claim; negative afterwards."""
        ...

    def overdue(self) -> MonqueError | None:
        """Return the error of a function that takes longer than its limit; None before the limit."""
        ...

    def may_end(self) -> bool:
        """Return whether the run goes on, within the limit. Asked just before the end of the claim is written.

        If it does, the transaction is not given up from there on, until the next `begin`.
        """
        ...

    def pause(self, seconds: float) -> None:
        """Wait before the next attempt."""
        ...

    def leave(self) -> None:
        """Called last: the driver may give the session to others now, whose commands an abort by its id would end."""
        ...

    def beat(self) -> datetime:
        """Return the date of a renewal: later than that of each renewal of this instance before."""
        ...


class FoundCommit(Enum):
    """What became of a transaction whose commit was not acknowledged."""

    NOT_COMMITTED = auto()  # The commit can no longer succeed.
    COMMITTED = auto()
    UNKNOWN = auto()  # The claim is gone, and nothing shows any more how it ended.


class ClaimSettlement(Protocol[R_contra]):
    """The settlement of one claim, as its transaction writes it. Called in its thread."""

    @property
    def item(self) -> str:
        """What the claim is on, in messages: "job 5f0c..."."""
        ...

    @property
    def collection(self) -> Collection:
        """Where that is."""
        ...

    @property
    def operation_timeout(self) -> float:
        """Seconds that one command may take."""
        ...

    def hold(self, beat: datetime, session: ClientSession) -> None:
        """Lock the document in the transaction, by a renewal under the fence. Raises the errors of the driver."""
        ...

    def write(self, value: R_contra, /, session: ClientSession) -> bool:
        """Decide the end, and write it under the fence, in the transaction; return whether it matched.

        `value` is what the function returned. Raises the errors of the driver.
        """
        ...

    def find_out(self, beat: datetime) -> FoundCommit:
        """Find out what became of a transaction whose commit was not acknowledged.

        First by a renewal under the fence, acknowledged by a majority: it waits for a transaction that is still open.
        If it matches, the end in the transaction was not applied, and its commit must fail from now on. A read alone
        would not stop a commit that is still on its way.

        Raises:
            MonqueConnectionError: The database did not answer.
        """
        ...


class CommitFate(Enum):
    """How a transaction ended. Only if it is COMMITTED or UNKNOWN, something may have been written."""

    COMMITTED = auto()
    GIVEN_UP = auto()  # The run was cancelled, or the limit was over, before the end of the claim was written.
    UNMATCHED = auto()  # The end of the claim matched nothing: the claim is gone, or another condition does not hold.
    REFUSED = auto()  # The server will never accept this end of this document.
    UNKNOWN = auto()  # See `FoundCommit`.


@dataclass(frozen=True, slots=True)
class EndedTransaction(Generic[R]):
    """How a transaction ended.

    Attributes:
        fate: What the database did with it.
        value: What the function returned the last time; None if it was not called.
    """

    fate: CommitFate
    value: R
