"""The demo from end to end, on a real server."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from pymongo import MongoClient

from trio_monque.cli import main
from trio_monque.cli.demo.file_jobs import find_files
from trio_monque.cli.demo.printing import progress_line
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.views import QueueStats

from .demo_process import COMMAND, demo_process, environment


def demo(uri: str, *arguments: str) -> int:
    return main(["demo", "--uri", uri, *arguments])


def rows_of(out: str) -> dict[str, str]:
    return dict(re.findall(r"^  ([a-z ]+?)  +(.*)$", out, re.MULTILINE))


@pytest.mark.full
def test_it_ends_with_zero_and_a_summary_and_leaves_nothing_on_the_server(
    mongod: EmbeddedServer, client: MongoClient[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(mongod.uri, "--files", "201") == 0
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert rows["completed"] == "201 of 201 files"
    assert (rows["retries"], rows["delayed"]) == ("2", "2")
    assert rows["exit status"] == "0"
    runs = re.fullmatch(r"demo-1: (\d+), demo-2: (\d+)", rows["run by"])
    assert runs is not None
    assert int(runs[1]) + int(runs[2]) == 201
    assert re.fullmatch(r"[\d,]+ jobs a second", rows["speed"])
    assert "[########################]  201 of 201 files  0 pending  0 running" in out
    # What the library logs, as a program sees it that asks for INFO.
    for said in ("scheduler demo-1 started on", "scheduler demo-2 stopped claiming", "scheduler demo-1 ended"):
        assert f"info: {said}" in out
    assert out.count("(failure 1 of 3); retrying") == 2
    prefix = re.findall(r"removed: collections (demo_\w+)_\* of database (\w+)", out)[0]
    assert not [name for name in client[prefix[1]].list_collection_names() if name.startswith(prefix[0])]


@pytest.mark.full
def test_it_reads_a_given_folder_and_keeps_its_collections_where_asked(
    mongod: EmbeddedServer, client: MongoClient[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.txt").write_bytes(b"abc")
    (tmp_path / "deeper" / "b.txt").write_bytes(b"\r\n\xff\n")
    (tmp_path / "c.py").write_text("left out\n")
    assert demo(mongod.uri, str(tmp_path), "--pattern", "*.txt", "--keep") == 0
    out = capsys.readouterr().out
    prefix, database = re.findall(r"kept: collections (demo_\w+)_\* of database (\w+)", out)[0]
    jobs = client[database][f"{prefix}_jobs"]
    first, second = jobs.find(sort=[("data.path", 1)])
    jobs.drop()
    assert (first["status"], first["attempts"], first["failCount"]) == ("completed", 2, 1)
    assert (second["status"], second["attempts"], second["data"]["delay"]) == ("completed", 1, 1.0)
    # The digest is the example of FIPS 180-2.
    assert first["result"]["digest"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (first["result"]["lines"], first["result"]["bytes"]) == (0, 3)
    assert (second["result"]["lines"], second["result"]["bytes"]) == (2, 4)
    assert rows_of(out)["read"] == "2 lines, 7 bytes"


@pytest.mark.full
def test_a_file_that_cannot_be_read_is_in_the_summary_and_ends_in_status_one(
    mongod: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if sys.platform != "linux":
        pytest.skip("only Linux has a file that everyone may open and that cannot be read")
    (tmp_path / "a.py").write_text("import this\n")
    (tmp_path / "b.py").symlink_to("/proc/self/mem")
    assert demo(mongod.uri, str(tmp_path)) == 1
    out = capsys.readouterr().out
    rows = rows_of(out)
    assert (rows["completed"], rows["retries"], rows["exit status"]) == ("1 of 2 files", "3", "1")
    assert f"  failed: {tmp_path / 'b.py'}: OSError: " in out


def test_no_file_that_matches_ends_in_one_line(
    mongod: EmbeddedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(mongod.uri, str(tmp_path)) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_find_files_skips_installed_packages(tmp_path: Path) -> None:
    for folder in ("a", "site-packages", "dist-packages"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "module.py").touch()
    (tmp_path / "z.py").symlink_to(tmp_path / "not-there")
    (tmp_path / os.fsdecode(b"\xff.py")).touch()  # Its name cannot be stored.
    assert find_files(tmp_path, "*.py", None) == [tmp_path / "a" / "module.py"]


@pytest.mark.parametrize(
    ("counts", "seconds", "line"),
    [
        (
            QueueStats(),
            0.0,
            "  0.0 s  [------------------------]    0 of 800 files  0 pending  0 running  0 jobs/s",
        ),
        (
            QueueStats(pending=7, processing=2, completed=590, failed=10),
            2.0,
            "  2.0 s  [##################------]  600 of 800 files  7 pending  2 running  300 jobs/s",
        ),
    ],
)
def test_progress_line_counts_what_has_ended(counts: QueueStats, seconds: float, line: str) -> None:
    assert progress_line(counts, 800, seconds) == line


@pytest.mark.full
def test_its_dashboard_stays_open_until_a_signal_where_asked(mongod: EmbeddedServer) -> None:
    with demo_process("--files", "3", "--stay", "--uri", mongod.uri) as running:
        link = running.wait_for_line(r"dashboard: (http://127\.0\.0\.1:\d+/\?token=\S+)")[1]
        running.wait_for_line("the dashboard stays open: press Ctrl-C to end the demo")
        with urlopen(link, timeout=30) as page:
            assert "Open the dashboard" in page.read().decode()
        running.interrupt()
        status, errors = running.wait_ended()
    assert (status, errors) == (0, "")
    assert any("removed: collections" in line for line in running.lines)


@pytest.mark.full
def test_without_its_libraries_there_is_a_line_and_no_dashboard(
    mongod: EmbeddedServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trio_monque.cli.demo.demonstration.find_spec", lambda _name: None)
    assert demo(mongod.uri, "--files", "1", "--stay") == 0
    out = capsys.readouterr().out
    assert "python -m pip install starlette jinja2 'hypercorn[trio]'" in out
    assert "token" not in out


@pytest.mark.full
def test_a_terminal_gets_the_same_lines_as_a_pipe(mongod: EmbeddedServer) -> None:
    ours, theirs = pty.openpty()
    arguments = ["--files", "10", "--uri", mongod.uri]
    with subprocess.Popen(
        [*COMMAND, *arguments], env=environment(TERM="xterm-256color", COLUMNS="100"), stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = _read_all(ours)
    os.close(ours)
    assert process.returncode == 0, shown
    assert "\x1b" not in shown
    assert rows_of(shown.replace("\r\n", "\n"))["completed"] == "10 of 10 files"


@pytest.mark.full
def test_a_reader_that_leaves_does_not_end_the_demo(mongod: EmbeddedServer) -> None:
    with demo_process("--files", "1", "--uri", mongod.uri) as process:
        process.wait_for_line("1 files of")
        assert process.process.stdout is not None
        process.process.stdout.close()
        assert process.process.stderr is not None
        errors = process.process.stderr.read()
        assert (process.process.wait(), errors) == (0, "")


def _read_all(terminal: int) -> str:
    shown = b""
    while True:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # Linux raises this when the last writer is gone.
            piece = b""
        if not piece:
            return shown.decode()
        shown += piece
