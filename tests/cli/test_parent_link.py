"""A worker process and its parent: each question has an answer of its own, and the end of the parent is noticed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from tests.support.waiting import wait_until
from trio_monque.cli.run.parent_link import HEALTH, METRICS, ParentLink
from trio_monque.cli.run.worker_state import WorkerState

FOR_EVER: Any = {"shutdown_timeout": float("inf")}
"""Without an end of the time to leave, this process, which is that of the tests, is not ended by force."""


class Drained:
    """Stands for a scheduler."""

    report = None

    def __init__(self) -> None:
        self.drained = threading.Event()

    def drain(self) -> None:
        self.drained.set()


class Parent:
    """The parent of the process of this test.

    Attributes:
        scheduler: That of the worker process.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.scheduler = Drained()
        state: Any = WorkerState()
        state.scheduler = self.scheduler
        self._link = ParentLink(theirs.detach(), FOR_EVER, state)
        self._connection = Connection(ours.detach())
        self._threads = set(threading.enumerate())

    def serve(self, **answers: Callable[[], Any]) -> None:
        self._link.serve(answers)

    def ask(self, *questions: str) -> None:
        for number, what in enumerate(questions):
            self._connection.send((number, what))

    def answer(self) -> Any:
        assert self._connection.poll(30), "no answer"
        return self._connection.recv()

    def leave(self) -> None:
        """End, and wait until the threads of the link have noticed it."""
        if not self._connection.closed:
            self._connection.close()
        assert self.scheduler.drained.wait(30)

    def wait_for_threads(self) -> None:
        wait_until(lambda: not set(threading.enumerate()) - self._threads, "the threads of the link end")


@pytest.fixture
def parent() -> Iterator[Parent]:
    one = Parent()
    yield one
    one.leave()
    one.wait_for_threads()


def test_metrics_that_take_long_do_not_delay_the_health(parent: Parent) -> None:
    goes_on = threading.Event()
    parent.serve(health=lambda: "good", metrics=lambda: goes_on.wait(60) and "many")
    parent.ask(METRICS, HEALTH)
    assert parent.answer() == (1, "good")
    goes_on.set()
    assert parent.answer() == (0, "many")


def test_question_that_cannot_be_answered_is_answered_with_nothing(
    parent: Parent, caplog: pytest.LogCaptureFixture
) -> None:
    """Without that, the parent would take it for one that still waits."""

    def fail() -> None:
        raise OSError("no sensor")

    parent.serve(health=lambda: "good", metrics=fail)
    parent.ask(METRICS)
    assert parent.answer() == (0, None)
    parent.ask(HEALTH)
    assert parent.answer() == (0, "good")
    assert "could not send the metrics of this process to its parent" in caplog.text


def test_thread_that_cannot_start_leaves_the_link_as_it_was(parent: Parent, monkeypatch: pytest.MonkeyPatch) -> None:
    parent.serve(health=lambda: "good")
    start, refused = threading.Thread.start, threading.Event()

    def refuse_once(thread: threading.Thread) -> None:
        if not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    parent.ask(HEALTH, HEALTH)
    assert parent.answer() == (1, "good")
    assert refused.is_set()


def test_answer_to_a_parent_that_has_ended_meanwhile_harms_nothing(parent: Parent) -> None:
    """An error in a thread would fail this test."""
    asked, goes_on = threading.Event(), threading.Event()

    def late() -> None:
        asked.set()
        goes_on.wait(60)

    parent.serve(health=late)
    parent.ask(HEALTH)
    assert asked.wait(30)
    parent.leave()
    goes_on.set()
