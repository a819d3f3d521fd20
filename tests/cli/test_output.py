"""What commands print: on wide and narrow terminals, without colour, into a pipe, and to a reader that leaves."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli.output import cell, counted, duration, fitted, print_records, since
from trio_monque.cli.parameters import moment_in, seconds_in
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .demo_process import REPOSITORY

PROGRAM = (sys.executable, "-m", "trio_monque")
LONG = "x" * 300


def test_columns_without_a_terminal_have_whole_values(capsys: pytest.CaptureFixture[str]) -> None:
    print_records([{"id": "a", "text": LONG}, {"id": "bcd", "text": "[red]ä\n"}], "nothing")
    assert capsys.readouterr().out == f"id   text\na    {LONG}\nbcd  [red]ä\\n\n"
    print_records([], "nothing")
    assert capsys.readouterr().out == "nothing\n"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (9.96, "10.0s"),
        (59.6, "1m"),
        (90, "1m 30s"),
        (3_600, "1h"),
        (90_061, "1d 1h"),
        (-90, "-1m 30s"),
    ],
)
def test_lengths_of_time_have_two_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_last_column_is_cut_first_and_the_kept_ones_last() -> None:
    widths, least = [24, 10, 9, 20, 8, 8, 300], [2, 4, 6, 3, 7, 8, 7]
    assert fitted(widths, least, 400, 3) == widths
    assert fitted(widths, least, 120, 3) == [24, 10, 9, 20, 8, 8, 29]
    assert fitted(widths, least, 80, 3) == [24, 10, 9, 3, 7, 8, 7]
    assert fitted(widths, least, 40, 3) == [24, 6, 6]
    assert fitted(widths, least, 10, 3) == [24]


def test_cells() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert [cell(value) for value in (None, 1234, True, at, "a\nb")] == [
        "",
        "1,234",
        "yes",
        "2026-01-01 00:00:00Z",
        r"a\nb",
    ]
    assert since(at, at + timedelta(minutes=2)) == "2m ago"
    assert since(at, at - timedelta(minutes=2)) == "in 2m"
    assert (counted(1, "job"), counted(1204, "job")) == ("1 job", "1,204 jobs")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90.0),
        ("1.5", 1.5),
        ("90s", 90.0),
        ("1h30m", 5400.0),
        ("1H 30M", 5400.0),
        ("2d", 172_800.0),
        ("1w", 604_800.0),
        ("250ms", 0.25),
        ("", None),
        ("-1", None),
        ("1x", None),
        ("h", None),
        ("nan", None),
        ("1h!", None),
    ],
)
def test_lengths_of_time_as_they_are_given(text: str, seconds: float | None) -> None:
    assert seconds_in(text) == seconds


def test_moments_as_they_are_given() -> None:
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text in ("2026-01-31T12:00", "2026-01-31 12:00", "2026-01-31T12:00Z", "2026-01-31T13:00+01:00"):
        assert moment_in(text) == noon
    assert moment_in("0001-01-01T00:00+14:00") is None  # Before the first moment of UTC.
    assert moment_in("noon") is None


# --- In a terminal ---


def in_a_terminal(*arguments: str, columns: int, **environment: str) -> str:
    """What the program writes to a terminal of this width."""
    main, terminal = pty.openpty()
    settings = {"COLUMNS": str(columns), "TERM": "xterm-256color", "PYTHONPATH": str(REPOSITORY), **environment}
    with subprocess.Popen(
        [*PROGRAM, *arguments], stdout=terminal, env={**os.environ, **settings}, cwd=REPOSITORY
    ) as process:
        os.close(terminal)
        written = b""
        while True:
            try:
                chunk = os.read(main, 4096)
            except OSError:  # The process has closed its end.
                break
            if not chunk:
                break
            written += chunk
    os.close(main)
    assert process.returncode == 0
    return written.decode()


@pytest.mark.full
def test_table_in_a_terminal_fits_its_width_and_keeps_ids_whole(mongod: EmbeddedServer, db: Database) -> None:
    ids = [str(Monque(db).sync.enqueue(f"a-rather-long-name-{number}").id) for number in range(3)]
    uri = uri_of_database(mongod.uri, db.name)
    for columns in (40, 80, 200):
        shown = in_a_terminal("jobs", "--uri", uri, columns=columns, NO_COLOR="1")
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in shown.splitlines()]
        assert len(lines) == 4
        assert [line.split()[0] for line in lines[1:]] == ids[::-1]
        assert max(map(len, lines)) <= columns
        assert "\x1b[3" not in shown  # No colours.


@pytest.mark.full
def test_errors_in_a_narrow_terminal_leave_out_times_before_the_error(mongod: EmbeddedServer, db: Database) -> None:
    job = Monque(db).sync.enqueue("send-mail")
    failed = {"status": "failed", "failReason": "TimeoutError: the mail server did not answer"}
    db["monque_jobs"].update_one({"_id": job.id}, {"$set": failed})
    uri = uri_of_database(mongod.uri, db.name)
    shown = in_a_terminal("errors", "--uri", uri, columns=80, NO_COLOR="1")
    (line,) = [one for one in shown.splitlines() if str(job.id) in one]
    assert line.split()[:6] == [str(job.id), "1", "send-mail", "TimeoutError:", "the", "mail"]


@pytest.mark.full
@pytest.mark.parametrize("command", ["jobs", "stats", "instances", "indexes"])
def test_reader_that_leaves_ends_the_command_without_a_traceback(
    mongod: EmbeddedServer, db: Database, command: str
) -> None:
    monque = Monque(db)
    monque.sync.enqueue("mail")
    program = f"{sys.executable} -m trio_monque {command} --uri '{uri_of_database(mongod.uri, db.name)}'"
    ended = subprocess.run(
        ["bash", "-c", f"{program} | head -c 0; echo ${{PIPESTATUS[0]}}"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=60,
        check=False,
    )
    assert ended.stderr == ""
    assert ended.stdout == "141\n"
