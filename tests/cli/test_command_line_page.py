"""The page on the command line: the help is that of the commands, the program runs, the table has each exit status."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from docs.command_help import PAGE, updated
from tests.support.pages import rows
from tests.support.programs import fenced_blocks, uri_of_database
from trio_monque import Monque
from trio_monque.cli import exit_statuses
from trio_monque.cli.program import PROGRAM, program
from trio_monque.cli.run.scheduler_options import OFFERED, scheduler_options
from trio_monque.embedded import EmbeddedServer
from trio_monque.options import SchedulerConfig, SchedulerOptions
from trio_monque.store.types import Database

from .run_process import run_process


def test_page_has_the_help_of_every_command() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == updated(page), "run python -m docs.command_help"
    for command in command_lines(program, PROGRAM):
        assert f"<!-- help of {command} -->" in page
    assert "[1<=x" in page


def command_lines(command: click.Command, line: str) -> Iterator[str]:
    yield line
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from command_lines(one, f"{line} {name}")


def test_page_has_every_exit_status() -> None:
    statuses = {value for value in vars(exit_statuses).values() if isinstance(value, int)}
    on_page = [row[0] for row in rows("reference/command-line.md", "## Exit status")]
    assert {int(one) for one in on_page if one.isdecimal()} == statuses  # Tables of later sections have words.


def test_options_of_the_scheduler_are_offered_except_those_for_programs() -> None:
    for_programs = {"max_payload_size", "stats_cache_ttl", "write_concern", "redact_errors", "retention"}
    assert sorted([*OFFERED, *for_programs]) == sorted(field.name for field in fields(SchedulerConfig))


def test_none_turns_a_limit_off() -> None:
    @click.command
    @scheduler_options
    def show(options: SchedulerOptions) -> SchedulerOptions:
        return options

    def given(*arguments: str) -> object:
        return show.main(list(arguments), standalone_mode=False)

    assert given() == {}
    assert given("--lock-timeout", "none", "--concurrency", "none", "--no-change-stream", "--collection", "a") == {
        "lock_timeout": None,
        "concurrency": None,
        "change_stream": False,
        "collection_name": "a",
    }
    with pytest.raises(click.BadParameter, match="'nothing' is not a valid float"):
        given("--lock-timeout", "nothing")


def test_program_of_the_page_runs_in_a_worker_process(mongod: EmbeddedServer, db: Database, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text("\n\n".join(fenced_blocks(PAGE, "python")), encoding="utf-8")
    Monque(db).sync.enqueue("send", "ada@example.org")
    with run_process(tmp_path, "jobs:open_workers", "--uri", uri_of_database(mongod.uri, db.name)) as worker:
        worker.wait_for("sent to ada@example.org")
        worker.send(signal.SIGTERM)
        status, errors = worker.wait_ended()
    assert status == 0, errors
    assert "runs send (5 at a time)" in errors
    assert (tmp_path / "sent.txt").exists()
