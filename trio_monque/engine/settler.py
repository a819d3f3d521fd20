"""Group commit: whatever piles up while one batch is in flight is the next batch. No timer: alone, nothing waits."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import outcome
import trio

from . import notices
from .pauses import Pauses
from .progress import Progress
from .source import Source

logger = logging.getLogger("trio_monque.engine")

SettlementT = TypeVar("SettlementT")

MOST_IN_A_BATCH: Final = 1000

# After a failed write: long enough not to hammer a server that elects, short enough to be in time for
# what it returns to. Not measured.
FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 2.0


class SettlerGoneError(Exception):
    """The settler crashed: what was handed to it was not written."""


@dataclass(slots=True, eq=False)
class _Ticket(Generic[SettlementT]):
    settlement: SettlementT
    done: trio.Event = field(default_factory=trio.Event)
    result: outcome.Outcome[bool] | None = None

    def resolve(self, result: outcome.Outcome[bool]) -> None:
        self.result = result
        self.done.set()


class Settler(Generic[SettlementT]):
    """Writes the ends of runs, in groups; each run waits for its own."""

    def __init__(self, source: Source[Any, SettlementT], pauses: Pauses) -> None:
        self._source = source
        self._pauses = pauses
        self._waiting: list[_Ticket[SettlementT]] = []
        self._arrived = trio.Event()
        self._gone = False
        self.progress = Progress("settler")

    async def settle(self, settlement: SettlementT) -> bool:
        """Whether it was written under the claim; raises SettlerGoneError where nobody is left to write it."""
        if self._gone:
            raise SettlerGoneError
        ticket = _Ticket(settlement)
        self._waiting.append(ticket)
        self._arrived.set()
        await ticket.done.wait()
        assert ticket.result is not None
        return ticket.result.unwrap()

    async def run(self) -> None:
        batch: list[_Ticket[SettlementT]] = []
        try:
            while True:
                await self._arrived.wait()
                batch, self._waiting = self._waiting[:MOST_IN_A_BATCH], self._waiting[MOST_IN_A_BATCH:]
                if not self._waiting:
                    self._arrived = trio.Event()
                written = await self._commit([ticket.settlement for ticket in batch])
                for ticket, one in zip(batch, written, strict=True):
                    ticket.resolve(outcome.Value(one))
                batch = []
        finally:
            self._gone = True
            for ticket in (*batch, *self._waiting):
                ticket.resolve(outcome.Error(SettlerGoneError()))

    async def _commit(self, settlements: list[SettlementT]) -> list[bool]:
        batch = self._source.prepare(settlements)
        delay = FIRST_RETRY
        while True:
            self.progress.ask()
            try:
                written = list(await self._source.settle(batch))
            except Exception as error:
                if not self._source.is_transient(error):
                    raise
                self.progress.fail(error)
                self._source.tell(notices.SettlementDelayed(error))
            else:
                self.progress.answered(len(written))
                return written
            await self._pauses.after_fault(delay)
            delay = min(2 * delay, LONGEST_RETRY)
