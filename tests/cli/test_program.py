"""The command line itself: help, version, and how errors end."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.standalone import restricted_server
from tests.support.standstills import Witness
from trio_monque.cli import main
from trio_monque.embedded import EmbeddedServer

from .demo_process import REPOSITORY, demo_process, environment

PROGRAM = (sys.executable, "-m", "trio_monque")


def test_without_a_command_it_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "demo" in capsys.readouterr().out


def test_version_names_the_program(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("trio-monque ")


@pytest.mark.parametrize(
    "arguments",
    [["nope"], ["demo", "--files", "0"], ["demo", "--job-seconds", "nan"], ["demo", "no/such/folder"]],
    ids=lambda arguments: " ".join(arguments),
)
def test_invalid_arguments_print_the_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith("Usage: trio-monque")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demo", "--fils", "3"], "No such option '--fils'. Did you mean '--files'?"),
        (["demo", "--job-second=1"], "No such option '--job-second'. Did you mean '--job-seconds'?"),
        (["demo", "--job-seconds=1", "--kep"], "No such option '--kep'. (Did you mean one of: '--help', '--keep'?)"),
        (["demo", "--zzz"], "No such option '--zzz'.\n"),
    ],
)
def test_unknown_option_error_suggests_the_nearest_options(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert said in printed
    assert printed.startswith("Usage: trio-monque demo")


def test_unknown_command_error_suggests_the_nearest_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["dem"]) == 2
    assert "No such command 'dem'. Did you mean 'demo'?" in capsys.readouterr().err


def test_connection_string_in_the_place_of_a_folder_is_shown_without_its_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for arguments in (
        ["mongodb://root:hunter2@h"],
        ["--url", "mongodb://root:hunter2@h"],
        ["--url=mongodb://a:hunter2@h"],
        ["--files", "mongodb://a:hunter2@h"],
        [".", "mongodb://a:hunter2@h"],
    ):
        assert main(["demo", *arguments]) == 2
    printed = capsys.readouterr().err
    assert "'mongodb://***@h' is not a folder" in printed
    assert "Did you mean '--uri'?" in printed
    assert "hunter2" not in printed


def test_the_package_runs_as_a_module() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "trio_monque", "nope"], env=environment(), capture_output=True, text=True, cwd=REPOSITORY
    )
    assert (ran.returncode, "Usage: trio-monque" in ran.stderr) == (2, True)


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("http://example.org", "one looks like mongodb://localhost:27017"),
        ("mongodb://me:sec%ret@localhost", "must be escaped"),
        ("mongodb://localhost/?tls=true&tlsCAFile=/no/such/file", "/no/such/file"),
    ],
)
def test_a_wrong_uri_ends_in_one_line(uri: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--files", "1", "--uri", uri]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1
    assert reported[0].startswith("trio-monque: ")
    assert said in reported[0]
    assert "sec%ret" not in reported[0]


def test_wrong_credentials_end_in_one_line_that_says_what_to_check(
    mongod: EmbeddedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    uri = mongod.uri.replace("mongodb://", "mongodb://nobody:wrong@")
    assert main(["demo", "--files", "1", "--uri", uri]) == 2
    reported = capsys.readouterr().err.splitlines()
    assert len(reported) == 1
    assert "check the user, the password" in reported[0]


@pytest.mark.full
def test_a_server_that_is_not_there_ends_in_one_line_within_ten_seconds(witness: Witness) -> None:
    began = time.monotonic()
    with demo_process("--files", "1", "--uri", "mongodb://127.0.0.1:1") as demo:
        status, errors = demo.wait_ended()
    assert witness.undisturbed(began, time.monotonic()) < 10
    assert status == 2
    assert len(errors.splitlines()) == 1
    assert "check that the server runs" in errors


def test_without_click_the_error_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "click", None)
    for module in [name for name in sys.modules if name.startswith("trio_monque.cli.")]:
        monkeypatch.delitem(sys.modules, module)
    assert main(["--help"]) == 2
    assert "python -m pip install click" in capsys.readouterr().err


def test_reader_of_the_output_may_leave() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        ran = subprocess.run([*PROGRAM, "--help"], env=environment(), stdout=output, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.full
@pytest.mark.parametrize(
    "ending", ["2>&-", pytest.param("2> >(exec true)", marks=pytest.mark.full)], ids=["closed", "left"]
)
def test_status_does_not_depend_on_standard_error(ending: str) -> None:
    """And no error lands on standard output, which may be read as JSON."""
    for arguments, waiting in (("doctor --json", ""), ("nope", "sleep 0.3;")):
        line = f"{{ {waiting} exec {sys.executable} -m trio_monque {arguments}; }} {ending}"
        variables = environment()
        variables.pop("MONQUE_URI", None)
        ran = subprocess.run(["bash", "-c", line], env=variables, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)
        assert (ran.returncode, ran.stdout) == (2, "")


@pytest.mark.full
def test_bash_completes_options_after_the_line_of_the_page(tmp_path: Path) -> None:
    command = tmp_path / "trio-monque"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m trio_monque "$@"\n')
    command.chmod(0o755)
    page = (REPOSITORY / "docs/reference/command-line.md").read_text(encoding="utf-8")
    (line,) = re.findall(r"^\| bash \| `(.*)` \|$", page, re.MULTILINE)
    asked = "COMP_WORDS=(trio-monque run --met) COMP_CWORD=2; _trio_monque_completion trio-monque; echo ${COMPREPLY[@]}"
    ran = subprocess.run(
        ["bash", "-c", f"{line}\n{asked}"],
        env=environment(PATH=f"{tmp_path}:{os.environ['PATH']}"),
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
    )
    assert (ran.stdout, ran.stderr) == ("--metrics\n", "")


@pytest.mark.full
def test_warning_of_the_driver_about_the_connection_string_is_a_line_without_secrets() -> None:
    uri = "mongodb://127.0.0.1:1/x?authMechanismProperties=hunter2:hunter2&nonsense=1&serverSelectionTimeoutMS=1"
    ran = subprocess.run([*PROGRAM, "doctor", "--uri", uri], env=environment(), capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (2, "")
    warnings, error = ran.stderr.splitlines()[:-1], ran.stderr.splitlines()[-1]
    assert len(warnings) == 2
    assert all(one.startswith("ignored a part of the connection string: ") for one in warnings)
    assert "check that the server runs" in error
    assert "hunter2" not in ran.stderr


@pytest.mark.full
@pytest.mark.parametrize("password", ["hunter2", "p%40ss%2Fhunter2"])
def test_password_is_not_printed_wherever_it_comes_from(
    password: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own.py").write_text(
        "import trio_monque\n\nworkers = trio_monque.Workers()\nworkers.register('a')(print)\n"
    )
    run = ["run", "own:workers", "--start-timeout", "0"]
    commands = (["doctor", "--json"], ["claims", "stats", "a"], run, ["jobs"])
    with restricted_server() as right:
        uri = right.replace("worker:worker", f"worker:{password}")
        (tmp_path / "uri").write_text(f"{uri}\n")
        for arguments in commands:
            for source in ("--uri", "--uri-file", "MONQUE_URI"):
                given = {"--uri": ["--uri", uri], "--uri-file": ["--uri-file", "uri"], "MONQUE_URI": []}[source]
                with monkeypatch.context() as context:
                    context.setenv("MONQUE_URI", uri if source == "MONQUE_URI" else "")
                    assert main([*arguments, *given]) == 2, (arguments, source)
                printed = capfd.readouterr()
                assert printed.out == ""
                (line,) = printed.err.splitlines()
                assert "check the user, the password and the rights" in line
                assert not any(part in printed.err for part in ("hunter2", "p%40ss", "p@ss"))


def test_shell_completion_offers_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"COMPLETE": "bash_complete", "WORDS": "trio-monque ser", "CWORD": "1"}.items():
        monkeypatch.setenv(f"_TRIO_MONQUE_{name}" if name == "COMPLETE" else f"COMP_{name}", value)
    assert main([]) == 0
    assert capsys.readouterr().out == "plain,server\n"
