"""The commands that act on jobs, as processes of their own."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from tests.support.bulk_calls import DAY, put, statuses
from tests.support.programs import uri_of_database
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

from .demo_process import environment


def run(mongod: EmbeddedServer, db: Database, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trio_monque", *arguments],
        env=environment(MONQUE_URI=uri_of_database(mongod.uri, db.name)),
        text=True,
        check=False,
        timeout=50,
        **{"capture_output": True, **options},
    )


@pytest.mark.full
def test_commands_work_as_processes_without_a_terminal(mongod: EmbeddedServer, db: Database, jobs: Collection) -> None:
    ran = run(mongod, db, "enqueue", "send", "--data-file", "-", input='"Zoë"')
    assert (ran.returncode, ran.stdout.startswith("enqueued send ")) == (0, True)
    ran = run(mongod, db, "cancel", "--name", "send", stdin=subprocess.DEVNULL)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert statuses(jobs) == {"pending": 1}
    ran = run(mongod, db, "cancel", "--name", "send", "--yes")
    assert (ran.returncode, ran.stdout) == (0, f"cancelled 1 job of {db.name}.monque_jobs\n")


@pytest.mark.full
def test_reader_of_the_output_may_leave_and_the_jobs_are_changed_all_the_same(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    ids = [str(put(jobs, "pending")) for _ in range(3)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        ran = run(mongod, db, "cancel", *ids, capture_output=False, stdout=output, stderr=subprocess.PIPE)
    assert (ran.returncode, ran.stderr) == (141, "")
    assert statuses(jobs) == {"cancelled": 3}


class InTerminal:
    """A command whose questions and errors are in a terminal, and whose output is not."""

    def __init__(self, process: subprocess.Popen[str], terminal: int) -> None:
        self._process = process
        self._terminal = terminal
        self._shown = ""

    def wait_for(self, text: str) -> None:
        while text not in self._shown:
            self._shown += os.read(self._terminal, 10_000).decode()

    def type(self, text: str) -> None:
        os.write(self._terminal, text.encode())

    def interrupt(self) -> None:
        """As a user does: again, if nothing happens. Python misses a signal just before it waits for a line."""
        for _ in range(5):
            self._process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
                return

    def wait_ended(self) -> tuple[int, str]:
        """Return the exit status and the output."""
        output, _ = self._process.communicate(timeout=50)
        return self._process.returncode, output


@contextmanager
def in_terminal(mongod: EmbeddedServer, db: Database, *arguments: str) -> Iterator[InTerminal]:
    main, terminal = pty.openpty()
    try:
        with subprocess.Popen(
            [sys.executable, "-m", "trio_monque", *arguments],
            env=environment(MONQUE_URI=uri_of_database(mongod.uri, db.name)),
            text=True,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
        ) as process:
            try:
                yield InTerminal(process, main)
            finally:
                process.kill()
    finally:
        os.close(main)
        os.close(terminal)


@pytest.mark.full
def test_question_in_a_terminal_is_answered_or_interrupted(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    put(jobs, "pending")
    question = f"cancel 1 job of {db.name}.monque_jobs? [y/N]: "
    with in_terminal(mongod, db, "cancel", "--name", "greet") as command:
        command.wait_for(question)
        command.interrupt()
        assert command.wait_ended() == (130, "")
    assert statuses(jobs) == {"pending": 1}
    with in_terminal(mongod, db, "cancel", "--name", "greet") as command:
        command.wait_for(question)
        command.type("y\n")
        assert command.wait_ended() == (0, f"cancelled 1 job of {db.name}.monque_jobs\n")
    assert statuses(jobs) == {"cancelled": 1}


@pytest.mark.full
def test_ctrl_c_ends_a_long_action_in_order(mongod: EmbeddedServer, db: Database, jobs: Collection) -> None:
    number = 40_000
    fields = {"name": "greet", "data": {}, "status": "pending", "failCount": 0, "nextRunAt": DAY}
    jobs.insert_many([{**fields, "createdAt": DAY, "updatedAt": DAY} for _ in range(number)])
    with in_terminal(mongod, db, "cancel", "--name", "greet", "--yes") as command:
        command.wait_for("1,000 cancelled ...")
        command.interrupt()
        status, output = command.wait_ended()
    assert status == 130
    cancelled = statuses(jobs)["cancelled"]
    assert 1_000 <= cancelled < number
    assert output == f"cancelled {cancelled:,} jobs of {db.name}.monque_jobs\n"
