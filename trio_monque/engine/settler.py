"""Group commit: the settlements that arrive while one batch is in flight are the next batch.

No timer gathers them: a settlement that is alone is sent at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

import trio

from ..log import logger_of
from .observer import LoopObserver
from .pauses import FIRST_RETRY, LONGEST_RETRY, Pauses
from .progress import Progress
from .run import Run
from .source import SettlementSource

logger = logger_of("engine")

SettlementT = TypeVar("SettlementT")
SettlementT_contra = TypeVar("SettlementT_contra", contravariant=True)
BatchT = TypeVar("BatchT")

MOST_IN_A_BATCH: Final = 1000


class SettlementQueue(Protocol[SettlementT_contra]):
    """The settler, as the runs see it."""

    def settle(self, settlement: SettlementT_contra, written: Callable[[bool | None], None], run: Run[Any]) -> None:
        """See `Settler.settle`."""
        ...

    def await_answer(self, answered: trio.Event) -> None:
        """See `Settler.await_answer`."""
        ...

    def forget_answer(self, answered: trio.Event) -> None:
        """See `Settler.forget_answer`."""
        ...


@dataclass(slots=True)  # Not frozen: a frozen one takes longer to make, and each run makes one.
class _Ticket(Generic[SettlementT]):
    settlement: SettlementT
    written: Callable[[bool | None], None]
    run: Run[Any]


class Settler(Generic[SettlementT, BatchT]):
    """The loop that writes the ends of runs, in batches, and calls back.

    No task waits for its settlement, except after an early one: a waiting task would cost as much as the run did.
    """

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
        self._has_ended = False
        self._written = trio.Event()
        self._awaited: set[trio.Event] = set()
        self._is_writing = False
        self.progress = Progress("settler")

    def settle(self, settlement: SettlementT, written: Callable[[bool | None], None], run: Run[Any]) -> None:
        """Writes how this run ended.

        Calls `written` when the source knows whether the settlement was written; see `SettlementSource.settle`.

        In the order of these calls, and never after the settler has ended. `written` must not raise.
        """
        self._waiting.append(_Ticket(settlement, written, run))
        self._arrived.set()

    async def wait_all_written(self) -> None:
        """Returns when nothing is left to write, or the settler has ended."""
        # After each batch again: settlements arrive while the last batch is written.
        while (self._waiting or self._is_writing) and not self._has_ended:
            await self._written.wait()

    def await_answer(self, answered: trio.Event) -> None:
        """Sets this event when the settler ends: the task that waits for it may get no answer."""
        self._awaited.add(answered)
        if self._has_ended:
            answered.set()

    def forget_answer(self, answered: trio.Event) -> None:
        """The task does not wait any more."""
        self._awaited.discard(answered)

    async def run(self) -> None:
        try:
            while True:
                await self._arrived.wait()
                await self._write_next()
        finally:
            # However the settler ended, even by a crash, release its waiters: a handler that awaits its early
            # settlement, or the engine in `wait_all_written`, would wait for an answer that cannot come.
            self._has_ended = True
            for answered in self._awaited:
                answered.set()
            self._wake_those_who_wait()

    async def _write_next(self) -> None:
        """Write one batch. Its variables end with it: jobs and their payloads are not kept until others end."""
        # No timer: what arrived while the last batch was written is the next one. Under load the batches grow,
        # and a settlement that comes alone does not wait.
        batch, self._waiting = self._waiting[:MOST_IN_A_BATCH], self._waiting[MOST_IN_A_BATCH:]
        if not self._waiting:
            self._arrived = trio.Event()
        self._is_writing = True
        try:
            written = await self._commit([ticket.settlement for ticket in batch])
        except Exception:
            # One of them has crashed this loop, and it is unknown which: see `Runner._broke`.
            for ticket in batch:
                ticket.run.has_broken_engine = True
            raise
        for ticket, one in zip(batch, written, strict=True):
            ticket.written(one)
        self._is_writing = False
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
                # Prepared once. A batch that was applied and whose answer was lost is sent again as it is: it has the
                # receipts by which the source finds what was written. Prepared anew, it would find its own claims gone,
                # and report them as lost. And inside the `try`, because this is the only loop that writes ends: a
                # moment without memory must not end it.
                if batch is None:
                    batch = await self._source.prepare(settlements)
                written = list(await self._source.settle(batch))
            except Exception as error:
                if not self._pauses.is_transient(error):
                    raise
                if self.progress.fail(error):
                    self._observer.settlement_delayed(error)
            else:
                self.progress.answered(len(written))
                return written
            await self._pauses.after_fault(delay)
            # After a cut there is little time: what is not written by the hard end runs again after its lease.
            delay = FIRST_RETRY if self._is_short_of_time() else min(2 * delay, LONGEST_RETRY)
