"""The processes of one parent: what it sends to them, how their ends are noticed, and what it asks all of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.testing

from trio_monque import process_signals
from trio_monque.cli.exit_statuses import FAILED
from trio_monque.cli.run import children
from trio_monque.cli.run.children import Children


class Stand:
    """Stands for a process that runs until it has got two signals, or more."""

    def __init__(self, ends_after: int = 2) -> None:
        self.pid = 1
        self.began_at = trio.current_time()
        self.started = trio.Event()
        self.sent: list[signal.Signals] = []
        self.deadlines: list[float] = []
        self.silence: float | None = None
        self._ends_after = ends_after
        self._ends = trio.Event()

    def send(self, number: signal.Signals) -> None:
        self.sent.append(number)
        if len(self.sent) == self._ends_after:
            self._ends.set()

    async def wait(self) -> int:
        await self._ends.wait()
        return 0

    def ask(self, what: str) -> Any:
        return self

    def answer_by(self, deadline: float) -> None:
        self.deadlines.append(deadline)

    def silent_for(self) -> float | None:
        return self.silence


Start = Callable[..., Any]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Start], None]:
    return partial(monkeypatch.setattr, children, "start_child")


async def test_signals_that_come_while_a_process_is_started_are_sent_to_it_then(
    starts: Callable[[Start], None],
) -> None:
    several, stand = Children(["run"]), Stand()

    async def start(_arguments: list[str], _name: str, *, sends_changes: bool) -> Stand:
        several.end("a signal was received")
        several.end("a signal was received")
        return stand

    starts(start)
    with trio.fail_after(30):
        assert (await several.run_one(1, 1, lambda: None))[0] == 0
    # Two kinds: of two pending ones of one kind, a process gets only one.
    assert stand.sent == [signal.SIGTERM, signal.SIGINT]
    assert several.report().not_ready == ("process 1: the process is not running",)


async def test_each_further_signal_is_sent_too(starts: Callable[[Start], None]) -> None:
    several, stand = Children(["run"]), Stand(ends_after=3)

    async def start(_arguments: list[str], _name: str, *, sends_changes: bool) -> Stand:
        return stand

    starts(start)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(several.run_one, 1, 1, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(3):
            several.end("a signal was received")
    assert stand.sent == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM]


async def test_signal_that_a_process_manager_repeats_is_passed_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice would mean to cut running jobs short. However slow this machine is, the second one is a repeat here."""
    monkeypatch.setattr(process_signals, "REPEAT_WITHIN", float("inf"))
    several = Children(["run"])
    whys: list[str] = []
    monkeypatch.setattr(several, "end", whys.append)
    with several.signals_received() as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(several.pass_on, signals)
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                signal.raise_signal(number)
                await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert whys == ["SIGTERM was received", "SIGINT was received"]


def test_signal_for_a_place_without_a_process_has_no_effect() -> None:
    """A file may change while the next process is started."""
    Children(["run"]).send(1, signal.SIGTERM)


async def test_process_that_replaces_another_one_has_a_name_of_its_own(starts: Callable[[Start], None]) -> None:
    names = []

    async def start(_arguments: list[str], name: str, *, sends_changes: bool) -> Stand:
        names.append(name)
        raise OSError

    starts(start)
    several = Children(["run"], 2)
    for place, number in ((1, 1), (2, 1), (2, 2), (2, 13)):
        await several.run_one(place, number, lambda: None)
    assert names == ["1", "2", "2-2", "2-13"]


async def test_process_that_the_system_cannot_start_has_failed(
    starts: Callable[[Start], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def start(_arguments: list[str], _name: str, *, sends_changes: bool) -> Stand:
        raise OSError(12, "Cannot allocate memory")

    starts(start)
    assert await Children(["run"]).run_one(1, 1, lambda: None) == (FAILED, 0.0)
    assert "could not start worker process 1: [Errno 12] Cannot allocate memory" in caplog.text


async def test_processes_that_do_not_answer_are_awaited_together(starts: Callable[[Start], None]) -> None:
    """One after the other, several frozen ones would take longer than a probe waits."""
    several, stands = Children(["run"], 3), [Stand() for _ in range(3)]

    async def start(_arguments: list[str], name: str, *, sends_changes: bool) -> Stand:
        return stands[int(name) - 1]

    starts(start)
    async with trio.open_nursery() as nursery:
        for place in (1, 2, 3):
            nursery.start_soon(several.run_one, place, 1, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        stands[2].silence = 1.5
        reasons = several.report().not_ready
        answered_at = time.monotonic()
        metrics = several.metrics()
        several.end("enough")
        several.end("enough")
    assert reasons == (
        "process 1: the process is starting",
        "process 2: the process is starting",
        "process 3: the process has not answered for 1.5 s",
    )
    assert metrics == {}
    of_health, of_metrics = ({stand.deadlines[question] for stand in stands} for question in (0, 1))
    assert (len(of_health), len(of_metrics)) == (1, 1)
    # A probe of Kubernetes waits for one second. The answer came after the question: to be slow fails nothing here.
    assert max(of_health) < answered_at + 1.0 < max(of_metrics)
