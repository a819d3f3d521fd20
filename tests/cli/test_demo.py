"""The demo from end to end, on a real server."""

from __future__ import annotations

import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from trio_monque.cli import main
from trio_monque.cli.demo.files import Content, find_files, measure
from trio_monque.embedded import EmbeddedServer

from .demo_process import COMMAND, environment


def demo(uri: str, *arguments: str) -> int:
    return main(["demo", "--plain", "--uri", uri, *arguments])


def test_it_ends_with_zero_and_a_table_and_leaves_nothing_on_the_server(
    mongod: EmbeddedServer, client: MongoClient[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo(mongod.uri, "--files", "60") == 0
    out = capsys.readouterr().out
    rows = dict(re.findall(r"^  ([a-z ]+?)  +(.*)$", out, re.MULTILINE))
    assert rows["files"] == "60"
    assert rows["retries"] == "2"
    assert rows["delayed"] == "1"
    assert rows["check"].startswith("passed")
    assert rows["time"].endswith("under a minute")
    assert rows["exit status"] == "0"
    assert re.fullmatch(r"\d+ ms from due to started", rows["median wait"])
    # What the library logs, as a program sees it that asks for INFO.
    for said in ("scheduler demo-1 started on", "scheduler demo-2 stopped claiming", "scheduler demo-1 ended"):
        assert f"info: {said}" in out
    assert out.count("(failure 1 of 4); retrying") == 2
    prefix = re.findall(r"removed: collections (demo_\w+)_\* of database (\w+)", out)[0]
    assert not [name for name in client[prefix[1]].list_collection_names() if name.startswith(prefix[0])]


def test_it_reads_a_given_folder_and_keeps_its_collections_where_asked(
    mongod: EmbeddedServer, client: MongoClient[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.py").write_text("left out\n")
    assert demo(mongod.uri, str(tmp_path), "--pattern", "*.txt", "--keep") == 0
    prefix, database = re.findall(r"kept: collections (demo_\w+)_\* of database (\w+)", capsys.readouterr().out)[0]
    jobs, digests = client[database][f"{prefix}_jobs"], client[database][f"{prefix}_digests"]
    [job] = jobs.find({"name": "digest-file"})
    assert [one["repeatInterval"] for one in jobs.find({"name": "tally"})] == ["* * * * *"]
    failed, settled = digests.find(sort=[("attempt", 1)])
    jobs.drop()
    digests.drop()
    assert (job["status"], job["attempts"], job["failCount"]) == ("completed", 2, 1)
    assert (failed["attempt"], failed["failure"].partition(":")[0]) == (1, "PlannedFailure")
    assert (settled["attempt"], settled["lines"], settled["bytes"]) == (2, 2, 8)


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


def test_a_file_is_measured_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    # The digest is the example of FIPS 180-2.
    assert measure(file) == Content("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", 0, 3)
    file.write_bytes(b"\r\n\xff\n")
    assert (measure(file).lines, measure(file).bytes) == (2, 4)


@pytest.mark.full
def test_a_terminal_gets_the_live_view(mongod: EmbeddedServer) -> None:
    ours, theirs = pty.openpty()
    arguments = ["--files", "10", "--uri", mongod.uri]
    with subprocess.Popen(
        [*COMMAND, *arguments], env=environment(TERM="xterm-256color", COLUMNS="100"), stdout=theirs, stderr=theirs
    ) as process:
        os.close(theirs)
        shown = _read_all(ours)
    os.close(ours)
    assert process.returncode == 0, shown
    assert "jobs/s" in shown
    assert "demo-2" in shown
    assert "\x1b[?25h" in shown, "the cursor must be back"
    assert shown.rindex("exit status") > shown.rindex("settled")


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
