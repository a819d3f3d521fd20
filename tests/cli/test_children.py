"""The processes of one parent: what it asks of them, what it still sends to them, and how their ends are noticed."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_monque.cli.exit_statuses import FAILED
from trio_monque.cli.run import children
from trio_monque.cli.run.child_process import ChildProcess, Question, start_child
from trio_monque.cli.run.children import Children
from trio_monque.cli.run.parent_link import HEALTH, METRICS

MOST_UNANSWERED = 100
"""Questions of one kind that a process has at a time."""


class Peer:
    """A process that runs, and its end of the socket, which the test holds."""

    def __init__(self, child: ChildProcess, process: trio.Process, its_end: socket.socket) -> None:
        self.child = child
        self.process = process
        self.socket = its_end
        self._connection = Connection(os.dup(its_end.fileno()))

    def leave(self) -> None:
        self.socket.close()
        self._connection.close()

    def received(self) -> list[Any]:
        """What has been asked since the last time."""
        found = []
        while self._connection.poll():
            found.append(self._connection.recv()[1])
        return found

    async def answered(self, what: str, answer: Any) -> Any:
        """What the parent gets for a question that the process answers."""
        question = self.child.ask(what)
        number, _ = self._connection.recv()
        self._connection.send((number, answer))
        return await answer_of(question)


async def answer_of(question: Question, seconds: float = 30.0) -> Any:
    return await trio.to_thread.run_sync(question.answer_by, time.monotonic() + seconds)


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    own_end, its_end = socket.socketpair()
    process = await trio.lowlevel.open_process(["sleep", "600"])
    one = Peer(ChildProcess(process, own_end), process, its_end)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one.child.wait)
            yield one
            process.kill()
    finally:
        process.kill()
        one.leave()


# --- Questions ---


async def test_process_that_reads_no_questions_does_not_block_those_who_ask() -> None:
    """A frozen one: the buffer of its socket has room for a few hundred."""

    def ask_often() -> None:
        for _ in range(5000):
            one.child.ask(HEALTH)

    async with peer() as one:
        with trio.fail_after(30):
            await trio.to_thread.run_sync(ask_often, abandon_on_cancel=True)
        # Those of another kind are still sent.
        one.child.ask(METRICS)
        assert one.received() == [*[HEALTH] * MOST_UNANSWERED, METRICS]


async def test_answered_questions_do_not_count_against_further_ones() -> None:
    async with peer() as one:
        for number in range(2 * MOST_UNANSWERED):
            assert await one.answered(HEALTH, number) == number


async def test_question_to_a_process_that_has_left_has_no_answer() -> None:
    async with peer() as one:
        one.leave()
        assert one.child.ask(HEALTH).answer_by(0.0) is None


async def test_process_is_silent_while_a_question_about_its_health_waits_and_no_other() -> None:
    async with peer() as one:
        one.child.ask(HEALTH)
        assert one.child.silent_for() is None  # It starts.
        one.received()
        await one.answered(METRICS, [])
        assert (one.child.silent_for() or 0.0) > 0.0
    async with peer() as other:
        await other.answered(HEALTH, "good")
        other.child.ask(METRICS)
        assert other.child.silent_for() == 0.0


# --- Its end ---


async def test_end_of_a_process_is_noticed_although_one_that_it_has_forked_holds_its_socket() -> None:
    own_end, its_end = socket.socketpair()
    with its_end:
        child = ChildProcess(await trio.lowlevel.open_process(["true"]), own_end)
        with trio.fail_after(30):
            assert await child.wait() == 0


async def test_wait_for_a_process_that_is_cancelled_ends_and_lets_the_process_see_it() -> None:
    async with peer() as one:
        pass_on = trio.CancelScope(deadline=trio.current_time() + 0.0)
        own_end, its_end = socket.socketpair()
        with its_end, trio.fail_after(30):
            with pass_on:
                await ChildProcess(one.process, own_end).wait()
            assert its_end.recv(1) == b""


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open descriptors as Linux shows them")
async def test_process_that_was_started_and_has_ended_leaves_no_descriptor_open(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async def run_one() -> None:
        child = await start_child(["no-such-command"], "1")
        assert await child.wait() != 0

    await run_one()  # trio opens what it needs to watch processes.
    before = open_descriptors()
    await run_one()
    assert open_descriptors() == before


# --- Several ---


class Stand:
    """Stands for a process that runs until it has got two signals."""

    def __init__(self) -> None:
        self.pid = 1
        self.began_at = trio.current_time()
        self.started = trio.Event()
        self.sent: list[signal.Signals] = []
        self.deadlines: list[float] = []
        self._ends = trio.Event()

    def send(self, number: signal.Signals) -> None:
        self.sent.append(number)
        if len(self.sent) == 2:
            self._ends.set()

    async def wait(self) -> int:
        await self._ends.wait()
        return 0

    def ask(self, what: str) -> Any:
        return self

    def answer_by(self, deadline: float) -> None:
        self.deadlines.append(deadline)

    def silent_for(self) -> None:
        return None


Start = Callable[[list[str], str], Any]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Start], None]:
    return partial(monkeypatch.setattr, children, "start_child")


async def test_signals_that_come_while_a_process_is_started_are_sent_to_it_then(
    starts: Callable[[Start], None],
) -> None:
    several, stand = Children(["run"]), Stand()

    async def start(_arguments: list[str], _name: str) -> Stand:
        several.end("a signal was received")
        several.end("a signal was received")
        return stand

    starts(start)
    with trio.fail_after(30):
        assert (await several.run_one(1, 1, lambda: None))[0] == 0
    # Two kinds: of two pending ones of one kind, a process gets only one.
    assert stand.sent == [signal.SIGTERM, signal.SIGINT]
    assert several.report().not_ready == ("process 1: the process does not run",)


async def test_process_that_the_system_cannot_start_has_failed(
    starts: Callable[[Start], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def start(_arguments: list[str], _name: str) -> Stand:
        raise OSError(12, "Cannot allocate memory")

    starts(start)
    assert await Children(["run"]).run_one(1, 1, lambda: None) == (FAILED, 0.0)
    assert "could not start worker process 1: [Errno 12] Cannot allocate memory" in caplog.text


async def test_processes_that_do_not_answer_are_awaited_together(starts: Callable[[Start], None]) -> None:
    """One after the other, several frozen ones would take longer than a probe waits."""
    several, stands = Children(["run"], 3), [Stand() for _ in range(3)]

    async def start(_arguments: list[str], name: str) -> Stand:
        return stands[int(name) - 1]

    starts(start)
    async with trio.open_nursery() as nursery:
        for place in (1, 2, 3):
            nursery.start_soon(several.run_one, place, 1, lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        reasons = several.report().not_ready
        several.end("enough")
        several.end("enough")
    assert reasons == tuple(f"process {place}: the process starts" for place in (1, 2, 3))
    assert len({deadline for stand in stands for deadline in stand.deadlines}) == 1
