"""The worker processes of one parent: it starts them, passes signals on to them, and asks them for their health."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import trio

from ...log import logger_of
from ...process_signals import WithoutRepeats
from ..exit_statuses import FAILED
from .change_relay import ChangeRelay
from .child_process import ChildProcess, start_child
from .health_answers import HealthReport, ProcessReport, report_of_processes
from .parent_link import HEALTH, METRICS

logger = logger_of("cli")

_HEALTH_WITHIN: Final = 0.8
"""Seconds. Probes of Kubernetes wait for one second."""
_METRICS_WITHIN: Final = 3.0
"""Seconds. Prometheus waits for ten; the numbers of the collection come within one, or are those of before."""


class Children:
    """The worker processes of this parent, each in its place.

    Args:
        arguments: Those of this command, from "run" on.
        places: How many there are at a time.
        relay: Sends them what has changed; None if each has a change stream of its own.

    Attributes:
        ending: Set when the parent has begun to end them all.
        relay: That relay.
    """

    def __init__(self, arguments: Sequence[str], places: int = 1, relay: ChangeRelay | None = None) -> None:
        self.ending = trio.Event()
        self._arguments = arguments
        self._places = range(1, places + 1)
        self._running: dict[int, ChildProcess] = {}
        self._signals = 0
        self.relay = relay

    @contextmanager
    def signals_received(self) -> Iterator[AsyncIterator[int]]:
        """Receive SIGTERM and SIGINT, for `pass_on`. Repeats count once."""
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            yield WithoutRepeats(signals)

    async def pass_on(self, signals: AsyncIterator[int]) -> None:
        """Pass on each signal, until cancelled."""
        async for number in signals:
            self.end(f"{signal.Signals(number).name} was received")

    def end(self, why: str) -> None:
        """Let running jobs finish (drain); the second time, cut them short."""
        at = self._signals
        self._signals += 1
        self.ending.set()
        logger.info("%s: %s %d worker processes", why, "draining" if at == 0 else "cutting short", len(self._running))
        for child in self._running.values():
            child.send(_signal_for(at))

    def send(self, place: int, number: signal.Signals) -> None:
        """Send a signal to the process in this place, if one runs there."""
        if (child := self._running.get(place)) is not None:
            child.send(number)

    async def run_one(self, place: int, start: int, started: Callable[[], object]) -> tuple[int, float]:
        """Run a process in this place to its end.

        Args:
            place: From 1.
            start: How many processes have been started in this place, with this one.
            started: Called when its scheduler has started.

        Returns:
            Its return code, and how many seconds it ran.
        """
        # After a crash, the id of the dead process is taken until its lease has run out.
        name = str(place) if start == 1 else f"{place}-{start}"
        try:
            child = await start_child(self._arguments, name, sends_changes=self.relay is not None)
        except OSError as error:
            logger.error("could not start worker process %d: %s", place, error)
            return FAILED, 0.0
        logger.info("started worker process %d (pid %d)", place, child.pid)
        self._running[place] = child
        for at in range(self._signals):  # They came while it was started.
            child.send(_signal_for(at))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_call_when_started, child, started)
            if self.relay is not None and child.changes is not None:
                nursery.start_soon(self.relay.serve, child.changes)
            returncode = await child.wait()
            nursery.cancel_scope.cancel(reason="the process has ended")
        del self._running[place]
        return returncode, trio.current_time() - child.began_at

    def report(self) -> HealthReport:
        """Ask all processes for their health. From any thread; it blocks for a moment."""
        answers, running = self._ask_all(HEALTH, _HEALTH_WITHIN), dict(self._running)
        reports = []
        for place in self._places:
            if (child := running.get(place)) is None:
                reports.append(ProcessReport(place))
            else:
                reports.append(ProcessReport(place, child.pid, answers.get(place), child.silent_for()))
        return report_of_processes(reports)

    def metrics(self) -> Mapping[int, Any]:
        """Ask all processes for their metrics; give those that answer, by their places. From any thread; it blocks."""
        return self._ask_all(METRICS, _METRICS_WITHIN)

    def _ask_all(self, what: str, seconds: float) -> dict[int, Any]:
        deadline = time.monotonic() + seconds
        questions = {place: child.ask(what) for place, child in sorted(dict(self._running).items())}
        answers = {place: question.answer_by(deadline) for place, question in questions.items()}
        return {place: answer for place, answer in answers.items() if answer is not None}


async def first_of(*events: trio.Event) -> None:
    """Wait for one of these events."""
    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(_wait_and_cancel, event, nursery.cancel_scope)


async def _wait_and_cancel(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel(reason="one of the events has come")


async def _call_when_started(child: ChildProcess, started: Callable[[], object]) -> None:
    await child.started.wait()
    started()


def _signal_for(at: int) -> signal.Signals:
    """Two signals in turn: of two pending ones with the same number, a process gets only one."""
    return (signal.SIGTERM, signal.SIGINT)[at % 2]
