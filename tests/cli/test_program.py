"""The command line itself: help, version, and how errors end."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from trio_monque.cli import main
from trio_monque.cli.demo import command
from trio_monque.embedded import EmbeddedServer

from .demo_process import REPOSITORY, demo_process, environment


def test_without_a_command_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_version_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("trio-monque ")


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["demo", "--files", "0"], ["demo", "--job-seconds", "nan"], ["demo", "no/such/folder"]],
    ids=lambda arguments: " ".join(arguments),
)
def test_invalid_arguments_print_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: trio-monque")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--fils", "3"], "unknown option --fils: did you mean --files?"),
        (["demo", "--job-second=1", "--kep"], "unknown option --kep: did you mean --keep?"),
        (["demo", "--zzz"], "unknown option --zzz\n"),
    ],
)
def test_unknown_option_error_suggests_the_nearest_option(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.startswith("usage: trio-monque demo")


def test_connection_string_in_the_place_of_a_folder_is_shown_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (
        ["mongodb://root:hunter2@h"],
        ["--url", "mongodb://root:hunter2@h"],
        ["--url=mongodb://a:hunter2@h"],
    ):
        with pytest.raises(SystemExit):
            main(["demo", *arguments])
    printed = capsys.readouterr().err
    assert "'mongodb://***@h' is not a folder" in printed
    assert "did you mean --uri?" in printed
    assert "hunter2" not in printed


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "trio_monque", "nope"], env=environment(), capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (ran.returncode, "usage: trio-monque" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://example.org", "one looks like mongodb://localhost:27017"),
        ("mongodb://me:sec%ret@localhost", "must be escaped"),
        ("mongodb://localhost/?tls=true&tlsCAFile=/no/such/file", "/no/such/file"),
    ],
)
def test_a_wrong_uri_ends_in_one_line(uri: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--plain", "--files", "1", "--uri", uri]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1
    assert reported[0].startswith("trio-monque: ")
    assert said in reported[0]
    assert "sec%ret" not in reported[0]


def test_terminal_without_rich_gets_plain_lines_and_an_install_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(command, "find_spec", lambda _name: None)
    assert main(["demo", "--files", "1", "--uri", "http://example.org"]) == 2
    assert 'pip install "trio-monque[embedded]"' in capsys.readouterr().out


def test_wrong_credentials_end_in_one_line_that_says_what_to_check(
    mongod: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = mongod.uri.replace("mongodb://", "mongodb://nobody:wrong@")
    assert main(["demo", "--plain", "--files", "1", "--uri", uri]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1
    assert "check the user, the password" in reported[0]


@pytest.mark.full
def test_a_server_that_is_not_there_ends_in_one_line_within_ten_seconds() -> None:
    began = time.monotonic()
    with demo_process("--files", "1", "--uri", "mongodb://127.0.0.1:1") as demo:
        status, errors = demo.wait_ended()
    assert time.monotonic() - began < 10
    assert status == 2
    assert len(errors.splitlines()) == 1
    assert "check that the server runs" in errors
