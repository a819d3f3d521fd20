"""A long action on a selection: its progress, its end by a signal, and a connection that breaks in between."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from tests.support.bulk_calls import put, statuses
from trio_monque import SyncMonque, process_signals
from trio_monque.client import bulk
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import bulk_writes
from trio_monque.testing import fail_next

from .command_support import Command, command_of


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_IN_A_BATCH", 10)


Choose = Callable[..., bulk_writes.Chosen]


def in_third_batch(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Call `then` in the middle of the third batch of the next bulk action."""
    choose: Choose = bulk_writes.choose
    calls = []

    def counted(*args: Any, **kwargs: Any) -> bulk_writes.Chosen:
        calls.append(args)
        if len(calls) == 3:
            then()
        return choose(*args, **kwargs)

    monkeypatch.setattr(bulk_writes, "choose", counted)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_selection_after_its_batch_and_its_number_is_printed(
    command: Command, db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    for _ in range(50):
        put(jobs, "pending")
    before = signal.getsignal(number)
    in_third_batch(monkeypatch, lambda: os.kill(os.getpid(), number))
    ended = command("cancel", "--name", "greet", "--yes")
    assert (ended.status, ended.out) == (130, f"cancelled 30 jobs of {db.name}.monque_jobs\n")
    assert ended.err == "interrupted: the rest of the selection is unchanged\n"
    assert statuses(jobs) == {"cancelled": 30, "pending": 20}
    assert signal.getsignal(number) == before


def twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.usefixtures("small_batches")
def test_signal_that_a_process_manager_sends_twice_is_one(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        put(jobs, "pending")
    monkeypatch.setattr(process_signals, "REPEAT_WITHIN", 60.0)
    in_third_batch(monkeypatch, twice)
    ended = command("cancel", "--name", "greet", "--yes", "--json")
    assert (ended.status, ended.json["count"], ended.json["interrupted"]) == (130, 30, True)


@pytest.mark.usefixtures("small_batches")
def test_second_ctrl_c_ends_a_selection_within_its_batch(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        put(jobs, "pending")

    # However quickly the second one comes here.
    monkeypatch.setattr(process_signals, "REPEAT_WITHIN", 0.0)
    in_third_batch(monkeypatch, twice)
    ended = command("cancel", "--name", "greet", "--yes", "--json")
    assert (ended.status, ended.json["count"], ended.json["interrupted"]) == (130, 20, True)
    assert "more may be cancelled; the rest of the selection is unchanged" in ended.err
    assert statuses(jobs) == {"cancelled": 20, "pending": 30}


@pytest.mark.usefixtures("small_batches")
def test_lost_connection_in_a_selection_says_how_many_are_done(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        put(jobs, "pending")
    call = SyncMonque.cancel_jobs

    def losing(self: SyncMonque, **options: Any) -> Any:
        on_progress = options["on_progress"]

        def losing_then(result: Any) -> None:
            on_progress(result)
            if result.count == 20:
                fail_next(self, AutoReconnect("gone"), times=None)

        options["on_progress"] = losing_then
        return call(self, **options)

    monkeypatch.setattr(SyncMonque, "cancel_jobs", losing)
    ended = command("cancel", "--name", "greet", "--yes")
    assert (ended.status, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1
    assert "could not cancel all of the jobs: 20 are done, and 0 may be" in ended.err


@pytest.mark.usefixtures("small_batches")
def test_progress_is_shown_in_a_terminal(command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        put(jobs, "pending")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ended = command("cancel", "--name", "greet", "--yes")
    assert ended.err.startswith("\r10 cancelled ...\r20 cancelled ...")
    assert ended.err.endswith("\r\033[K")
