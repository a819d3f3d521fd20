"""Group commit: the settlements that arrive while one batch is in flight are the next batch.

No timer gathers them: a settlement that is alone is sent at once.

Races that this file closes:

- The answer to a batch is lost. The batch was prepared once, and is sent again as it is: with the receipts in it, the
  source can tell what the first attempt has written. A batch that was prepared anew would find its own claims gone, and
  report them as lost.
- The settler crashes, or the engine ends, while a handler awaits an early settlement. Every awaited event is set when
  the loop ends, by whatever cause: a handler must not wait for an answer that cannot come.
- `prepare` itself fails for want of memory. It is inside the retry, as this is the only loop that writes ends.
- Settlements arrive while the engine waits for the last one. `wait_all_written` looks at what waits and what is
  being written after each batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import trio

from ..log import logger_of
from .observer import LoopObserver
from .pauses import Pauses
from .progress import Progress
from .source import SettlementSource

logger = logger_of("engine")

SettlementT = TypeVar("SettlementT")
SettlementT_contra = TypeVar("SettlementT_contra", contravariant=True)
BatchT = TypeVar("BatchT")

MOST_IN_A_BATCH: Final = 1000

# After a failed write: long enough not to hammer a server that elects, short enough to be in time for
# what it returns to. Not measured.
FIRST_RETRY: Final = 0.1
LONGEST_RETRY: Final = 2.0


class SettlementQueue(Protocol[SettlementT_contra]):
    """The settler, as the runs see it."""

    def settle(self, settlement: SettlementT_contra, written: Callable[[bool | None], None]) -> None:
        """See `Settler.settle`."""
        ...

    def await_answer(self, answered: trio.Event) -> None:
        """See `Settler.await_answer`."""
        ...

    def forget_answer(self, answered: trio.Event) -> None:
        """See `Settler.forget_answer`."""
        ...


@dataclass(slots=True)  # Not frozen: that would make it dearer, and there is one for each run.
class _Ticket(Generic[SettlementT]):
    settlement: SettlementT
    written: Callable[[bool | None], None]


class Settler(Generic[SettlementT, BatchT]):
    """Writes the ends of runs, in groups. No task waits for that: a task that does costs as much as its run did."""

    def __init__(
        self,
        source: SettlementSource[SettlementT, BatchT],
        observer: LoopObserver,
        pauses: Pauses,
        *,
        is_short_of_time: Callable[[], bool] = lambda: False,
    ) -> None:
        self._source = source
        self._observer = observer
        self._pauses = pauses
        self._is_short_of_time = is_short_of_time
        self._waiting: list[_Ticket[SettlementT]] = []
        self._arrived = trio.Event()
        self._is_gone = False
        self._written = trio.Event()
        self._awaited: set[trio.Event] = set()
        self._is_writing = False
        self.progress = Progress("settler")

    def settle(self, settlement: SettlementT, written: Callable[[bool | None], None]) -> None:
        """Calls `written` when it is known whether the settlement was written under the claim; see `Source.settle`.

        In the order in which they were given, and never after the settler has ended. It must not raise.
        """
        self._waiting.append(_Ticket(settlement, written))
        self._arrived.set()

    async def wait_all_written(self) -> None:
        """Returns when nothing is left to write, or the settler has ended."""
        while (self._waiting or self._is_writing) and not self._is_gone:
            await self._written.wait()

    def await_answer(self, answered: trio.Event) -> None:
        """A task waits for this event: it is set as well when the settler ends."""
        self._awaited.add(answered)
        if self._is_gone:
            answered.set()

    def forget_answer(self, answered: trio.Event) -> None:
        """The task waits no longer."""
        self._awaited.discard(answered)

    async def run(self) -> None:
        try:
            while True:
                await self._arrived.wait()
                batch, self._waiting = self._waiting[:MOST_IN_A_BATCH], self._waiting[MOST_IN_A_BATCH:]
                if not self._waiting:
                    self._arrived = trio.Event()
                self._is_writing = True
                written = await self._commit([ticket.settlement for ticket in batch])
                for ticket, one in zip(batch, written, strict=True):
                    ticket.written(one)
                self._is_writing = False
                self._wake_those_who_wait()
        finally:
            self._is_gone = True
            for answered in self._awaited:
                answered.set()
            self._wake_those_who_wait()

    def _wake_those_who_wait(self) -> None:
        written, self._written = self._written, trio.Event()
        written.set()

    async def _commit(self, settlements: list[SettlementT]) -> list[bool | None]:
        batch: BatchT | None = None
        delay = FIRST_RETRY
        while True:
            self.progress.ask()
            try:
                # Inside as well: too little memory for a moment must not end the only loop that writes ends.
                if batch is None:
                    batch = await self._source.prepare(settlements)
                written = list(await self._source.settle(batch))
            except Exception as error:
                if not self._source.is_transient(error):
                    raise
                if self.progress.fail(error):
                    self._observer.settlement_delayed(error)
            else:
                self.progress.answered(len(written))
                return written
            await self._pauses.after_fault(delay)
            # What is not written by the hard end is left to its lease, and done again.
            delay = FIRST_RETRY if self._is_short_of_time() else min(2 * delay, LONGEST_RETRY)
