"""`--processes`: a parent that starts worker processes, restarts those that die, and passes signals on."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Sequence
from itertools import count
from typing import Final

import trio

from ...log import logger_of
from ..exit_statuses import FAILED
from .child_process import ChildProcess, start_child
from .health import HealthReport, ProcessReport, report_of_processes
from .parent_link import HEALTH
from .restarts import GiveUp, ProcessEnd, Restart, decide, described, exit_status, worst

logger = logger_of("cli")

_ANSWER_WITHIN: Final = 0.8
"""Seconds. Probes of Kubernetes wait for one second."""


class Supervisor:
    """Keeps worker processes running until a signal, or until the first of them fails at the very first start.

    Args:
        arguments: Those of this command, from "run" on.
        processes: How many.
    """

    def __init__(self, arguments: Sequence[str], processes: int) -> None:
        self._arguments = arguments
        self._numbers = range(1, processes + 1)
        self._children: dict[int, ChildProcess] = {}
        self._statuses: dict[int, int] = {}
        self._signals = 0
        self._ending = trio.Event()
        self._any_started = trio.Event()

    async def run(self) -> int:
        """Return the worst exit status of the processes when all have ended."""
        logger.info("runs %d worker processes", len(self._numbers))
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pass_on, signals)
                async with trio.open_nursery() as places:
                    # The first one shows whether target and database can be used: the error is printed once.
                    places.start_soon(self._keep, 1)
                    places.start_soon(self._keep_others, places)
                nursery.cancel_scope.cancel(reason="all worker processes have ended")
        status = worst(self._statuses.values())
        logger.info("all worker processes have ended; the exit status is %d", status)
        return status

    def report(self) -> HealthReport:
        """Ask all processes for their health. From any thread; it blocks for a moment."""
        deadline = time.monotonic() + _ANSWER_WITHIN
        children = dict(self._children)
        questions = {number: child.ask(HEALTH) for number, child in children.items()}
        reports = []
        for number in self._numbers:
            if (child := children.get(number)) is None:
                reports.append(ProcessReport(number))
            else:
                answer = questions[number].answer_by(deadline)
                reports.append(ProcessReport(number, child.pid, answer, child.silent_for()))
        return report_of_processes(reports)

    async def _keep_others(self, places: trio.Nursery) -> None:
        await self._any_started.wait()
        for number in self._numbers[1:]:
            places.start_soon(self._keep, number)

    async def _keep(self, number: int) -> None:
        """Keep one process running in this place."""
        ends = 0
        for start in count(1):
            if self._ending.is_set():
                return
            returncode, ran_for = await self._run_one(number, start)
            self._statuses[number] = exit_status(returncode)
            if self._ending.is_set():
                return
            how = described(returncode)
            match decide(ProcessEnd(ran_for, ends, self._any_started.is_set())):
                case GiveUp():
                    logger.error("worker process %d %s before a scheduler started; restarting nothing", number, how)
                    self._end("the first start failed")
                case Restart(after, ends):
                    logger.warning(
                        "worker process %d %s after %.1f s; restarting it in %.1f s", number, how, ran_for, after
                    )
                    with trio.move_on_after(after):
                        await self._ending.wait()

    async def _run_one(self, number: int, start: int) -> tuple[int, float]:
        """Return the return code of a process, and how many seconds it ran."""
        # After a crash, the id of the dead process is taken until its lease has run out.
        name = str(number) if start == 1 else f"{number}-{start}"
        try:
            child = await start_child(self._arguments, name)
        except OSError as error:
            logger.error("could not start worker process %d: %s", number, error)
            return FAILED, 0.0
        logger.info("started worker process %d (pid %d)", number, child.pid)
        self._children[number] = child
        for at in range(self._signals):  # They came while it was started.
            child.send(_signal_for(at))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._note_start, child)
            returncode = await child.wait()
            nursery.cancel_scope.cancel(reason="the process has ended")
        del self._children[number]
        return returncode, trio.current_time() - child.began_at

    async def _note_start(self, child: ChildProcess) -> None:
        await child.started.wait()
        self._any_started.set()

    async def _pass_on(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            self._end(f"{signal.Signals(number).name} was received")

    def _end(self, why: str) -> None:
        """Let running jobs finish (drain); the second time, cut them short."""
        at = self._signals
        self._signals += 1
        self._ending.set()
        self._any_started.set()  # The task that waits for it ends.
        what = "draining" if at == 0 else "cutting short"
        logger.info("%s: %s %d worker processes", why, what, len(self._children))
        for child in self._children.values():
            child.send(_signal_for(at))


def _signal_for(at: int) -> signal.Signals:
    """Two signals in turn: of two pending ones with the same number, a process gets only one."""
    return (signal.SIGTERM, signal.SIGINT)[at % 2]
