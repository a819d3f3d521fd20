"""One worker process as its parent sees it: how it is asked, and how its end is noticed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from trio_monque.cli.exit_statuses import FAILED
from trio_monque.cli.run.child_process import ChildProcess, Question, start_child
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


@pytest.mark.full
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


@pytest.mark.full
async def test_answered_questions_do_not_count_against_further_ones() -> None:
    async with peer() as one:
        for number in range(2 * MOST_UNANSWERED):
            assert await one.answered(HEALTH, number) == number


async def test_question_to_a_process_that_has_left_has_no_answer() -> None:
    async with peer() as one:
        one.leave()
        assert one.child.ask(HEALTH).answer_by(0.0) is None


async def test_process_that_leaves_questions_unread_has_ended_like_any_other() -> None:
    """Its end is then a reset of the connection."""
    async with peer() as one:
        one.child.ask(HEALTH)
        one.leave()


@pytest.mark.full
async def test_waits_for_answers_take_no_thread_from_the_rest_of_the_parent() -> None:
    """As many processes as trio's own limit of threads would stop everything else in the parent that needs one."""
    async with peer():
        await trio.testing.wait_all_tasks_blocked()
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0


@pytest.mark.full
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


@pytest.mark.full
async def test_end_of_a_process_is_noticed_although_one_that_it_has_forked_holds_its_socket() -> None:
    own_end, its_end = socket.socketpair()
    with its_end:
        child = ChildProcess(await trio.lowlevel.open_process(["true"]), own_end)
        with trio.fail_after(30):
            assert await child.wait() == 0


@pytest.mark.full
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
        assert await child.wait() == FAILED

    await run_one()  # trio opens what it needs to watch processes.
    before = open_descriptors()
    await run_one()
    assert open_descriptors() == before
    assert capfd.readouterr().err.count("No such command 'no-such-command'.") == 2


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts open descriptors as Linux shows them")
async def test_process_that_cannot_be_started_leaves_no_descriptor_open() -> None:
    before = open_descriptors()
    with pytest.raises(ValueError, match="null byte") as raised:
        await start_child(["run", "an argument that no process can have: \0"], "1")
    assert open_descriptors() == before
    del raised  # Until here its traceback keeps the sockets from being collected.
