"""The pages on the command line: the help is that of the commands, the program runs, the table has each exit status."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from docs.command_help import INDEX, PAGES, updated
from tests.support.pages import rows
from tests.support.programs import fenced_blocks, uri_of_database
from trio_monque import Monque
from trio_monque.cli import exit_statuses, main
from trio_monque.cli.claims.claims_command import claims
from trio_monque.cli.program import PROGRAM, CommandEntry, program
from trio_monque.cli.run import command
from trio_monque.cli.run.scheduler_options import OFFERED, scheduler_options, spelled
from trio_monque.cli.run.worker_process import Work
from trio_monque.embedded import EmbeddedServer
from trio_monque.options_and_defaults import Retention, SchedulerConfig, SchedulerOptions
from trio_monque.store.driver.types import Database

from .run_process import run_process


def test_pages_have_the_help_of_every_command_once() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    for text in texts.values():
        assert text == updated(text), "run python -m docs.command_help"
    helps = [line for text in texts.values() for line in re.findall(r"^<!-- help of (.+?) -->$", text, re.MULTILINE)]
    assert sorted(helps) == sorted(command_lines(program, PROGRAM))
    assert any("[1<=x" in text for text in texts.values())


def test_index_names_each_command_beside_the_link_to_its_page() -> None:
    listed = {
        page: re.findall(r"`([\w-]+)`", names)
        for names, page in re.findall(
            r"^\| \[(.+?)\]\(command-line/(\S+?)\) \|", INDEX.read_text("utf-8"), re.MULTILINE
        )
    }
    shown = {
        page.name: re.findall(rf"^## {PROGRAM} ([\w-]+)$", page.read_text("utf-8"), re.MULTILINE) for page in PAGES[1:]
    }
    assert {page: sorted(names) for page, names in listed.items()} == {page: sorted(of) for page, of in shown.items()}


def test_each_command_has_examples() -> None:
    assert [line for line, epilog in epilogs(program, PROGRAM) if "Examples:\n" not in epilog] == []


def epilogs(of: click.Command, line: str) -> Iterator[tuple[str, str]]:
    if isinstance(of, click.Group):
        for name in of.commands:
            yield from epilogs(command_of(of, name), f"{line} {name}")
    else:
        yield line, of.epilog or ""


def command_lines(of: click.Command, line: str) -> Iterator[str]:
    yield line
    if isinstance(of, click.Group):
        for name in of.commands:
            yield from command_lines(command_of(of, name), f"{line} {name}")


def command_of(group: click.Group, name: str) -> click.Command:
    """The command itself: its module is imported only for this."""
    _, found, _ = group.resolve_command(click.Context(group), [name])
    assert found is not None
    return found


@pytest.mark.parametrize("name", list(program.commands))
def test_help_of_the_group_says_what_the_command_itself_says(name: str) -> None:
    said, command = program.commands[name].get_short_help_str(200), command_of(program, name)
    assert (command.name, command.get_short_help_str(200)) == (name, said)
    assert not isinstance(command, CommandEntry)


def test_page_has_every_exit_status() -> None:
    statuses = {value for value in vars(exit_statuses).values() if isinstance(value, int)}
    on_page = [row[0] for row in rows("reference/command-line.md", "## Exit status")]
    assert {int(one) for one in on_page if one.isdecimal()} == statuses  # Tables of later sections have words.


def test_options_of_the_scheduler_are_offered_except_those_for_programs() -> None:
    for_programs = {"max_payload_size", "stats_cache_ttl", "write_concern", "redact_errors", "retention"}
    assert sorted([*OFFERED, *for_programs]) == sorted(field.name for field in fields(SchedulerConfig))


GIVEN: dict[str, object] = {
    "collection_name": "mine",
    "instance_id": "shop-1",
    "concurrency": 7,
    "concurrency_per_name": 3,
    "shutdown_timeout": 1.5,
    "cleanup_timeout": 2.5,
    "start_timeout": 3.5,
    "operation_timeout": 4.5,
    "change_stream": False,
    "poll_interval": 5.5,
    "safety_poll_interval": 66.5,
    "heartbeat_interval": 2.25,
    "lock_timeout": 700.5,
    "recover_stale_jobs": False,
    "max_attempts": 8,
    "max_rescues": 9,
    "max_parked": 600,
    "base_retry_interval": 10.5,
    "max_backoff_delay": 11.5,
    "retry_jitter": 0.125,
    "store_tracebacks": False,
    "minutes": False,
    "full_tracebacks": True,
    "skip_index_creation": True,
}


def test_each_option_of_the_scheduler_reaches_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[SchedulerOptions] = []

    def keep(work: Work, _state: object) -> int:
        ran.append(work.options)
        return 0

    monkeypatch.setattr(command, "run_worker", keep)
    assert GIVEN.keys() == set(OFFERED)
    defaults = SchedulerConfig()
    arguments = []
    for name, value in GIVEN.items():
        assert value != getattr(defaults, name)
        flag = spelled(name)
        if isinstance(value, bool):
            arguments.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            arguments += [flag, f"{value}"]
    assert main(["run", "shop:workers", "--uri", "mongodb://localhost/shop", *arguments]) == 0
    assert ran == [GIVEN]


def test_each_option_of_retention_reaches_the_scheduler() -> None:
    @click.command
    @scheduler_options
    def show(options: SchedulerOptions) -> SchedulerOptions:
        return options

    given = {"completed": "12h", "failed": "30d", "cancelled": "0", "keep_last": "7", "interval": "5m"}
    arguments = [part for name, text in given.items() for part in (f"--retention-{name.replace('_', '-')}", text)]
    assert given.keys() == {field.name for field in fields(Retention)}
    chosen = Retention(completed=43_200, failed=2_592_000, cancelled=0, keep_last=7, interval=300)
    assert show.main(arguments, standalone_mode=False) == {"retention": chosen}
    assert show.main(["--retention-keep-last", "7"], standalone_mode=False) == {"retention": Retention(keep_last=7)}


@pytest.mark.parametrize("name", ["run", "doctor", "server", "demo", *(f"claims {one}" for one in claims.commands)])
def test_help_has_examples_of_its_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*name.split(), "--help"]) == 0
    examples = capsys.readouterr().out.split("Examples:\n")[1].splitlines()
    assert len(examples) >= 2
    assert all(line.lstrip().startswith(f"{PROGRAM} {name}") for line in examples)


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


@pytest.mark.full
def test_program_of_the_page_runs_in_a_worker_process(mongod: EmbeddedServer, db: Database, tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(
        "\n\n".join(block for page in PAGES for block in fenced_blocks(page, "python")), encoding="utf-8"
    )
    Monque(db).sync.enqueue("send", "ada@example.org")
    uri = uri_of_database(mongod.uri, db.name)
    with run_process(tmp_path, "jobs:open_workers", "--loop", "asyncio", MONQUE_URI=uri) as worker:
        worker.wait_for("sent to ada@example.org")
        worker.send(signal.SIGTERM)
        status, errors = worker.wait_ended()
    assert status == 0, errors
    assert "runs send (5 at a time)" in errors
