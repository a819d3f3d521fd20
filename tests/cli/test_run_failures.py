"""How `trio-monque run` fails: with one line that shows what to change, or with the traceback of the user's code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.programs import uri_of_database
from trio_monque.cli import main
from trio_monque.cli.run import command
from trio_monque.embedded import EmbeddedServer

from .run_process import run_process, write_program

Run = Callable[..., tuple[int, str]]
"""Runs the command with these arguments: the exit status, and what was printed to standard error."""

ELSEWHERE = "mongodb://localhost/shop"


@pytest.fixture(params=["called", pytest.param("process", marks=pytest.mark.full)])
def run(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    write_program(tmp_path)
    monkeypatch.delenv("MONQUE_URI", raising=False)

    def in_process(*arguments: str) -> tuple[int, str]:
        with run_process(tmp_path, *arguments) as worker:
            return worker.wait_ended()

    def called(*arguments: str) -> tuple[int, str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "path", [*sys.path])
        for module in ("shop", "mail", "raising", "importing", "exiting", "declaring_curio", "returning_curio"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        return main(["run", *arguments]), capfd.readouterr().err

    return in_process if request.param == "process" else called


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shop"], "'shop' does not name workers: write MODULE:ATTRIBUTE"),
        (["shop.py:workers"], "'shop.py' is a path: name the module, as in shop:workers"),
        ([":workers"], "':workers' does not name workers: write MODULE:ATTRIBUTE"),
        (["jobs/shop:workers"], "'jobs/shop' is a path: name the module, as in jobs.shop:workers"),
        (["shpo:workers"], "there is no module 'shpo'"),
        (["shop.jobs:workers"], "there is no module 'shop.jobs'"),
        (["shop:wrokers"], "shop has no attribute 'wrokers'; did you mean 'workers'?"),
        (["shop:number"], "shop:number is a value of type int: it must be a Workers"),
        (
            ["shop:send"],
            "shop:send is a value of type Worker that needs arguments (it can have uri= and",
        ),
        (["shop:of_another_type"], "shop:of_another_type provides a value of type dict: it must be a Workers"),
        (["builtins:dict"], "builtins:dict provides a value of type dict: it must be a Workers"),
        (["shop:empty"], "shop:empty has no workers: import the modules that register their handlers"),
        (
            ["shop:workers", "--only", "sned"],
            "--only sned: no worker of shop:workers has this name; did you mean 'send'?",
        ),
        (["shop:workers", "shop:empty"], "shop:empty has no workers"),
        (["mail:workers", "shop:made"], "both mail:workers and shop:made have a worker named 'send': name only one"),
        (["shop:workers", "shop:workers"], "both shop:workers and shop:workers have a worker named 'send'"),
        (["shop:workers", "mail:post", "--only", "p"], "no worker of shop:workers, mail:post has this name"),
        (["shop:workers", "--only", "send", "--except", "send"], "leave no worker to run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_target_without_workers_ends_in_one_line(run: Run, arguments: list[str], said: str) -> None:
    status, errors = run(*arguments, "--uri", ELSEWHERE)
    assert (status, len(errors.splitlines())) == (2, 1)
    assert errors.startswith("trio-monque: ")
    assert said in errors


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'MODULE:ATTRIBUTE...'."),
        (["shop:workers"], "no connection string: give --uri, --uri-file or MONQUE_URI"),
        (["shop:workers", "--uri", ELSEWHERE, "--uri-file", "shop.py"], "give --uri or --uri-file, not both"),
        (["shop:workers", "--uri-file", "nowhere"], "'nowhere' does not exist"),
        (["shop:workers", "--uri", ELSEWHERE, "--lock-timeout", "1"], "--lock-timeout=1.0: is shorter than a lease"),
        (["shop:workers", "--uri", ELSEWHERE, "--instance-id", ""], "--instance-id='': "),
        (
            ["shop:workers", "--uri", ELSEWHERE, "--retention-interval", "5m"],
            "--retention-interval alone deletes nothing: give one of --retention-completed, --retention-failed, ",
        ),
        (
            ["shop:workers", "--uri", ELSEWHERE, "--retention-completed", "1d", "--retention-keep-last", "0"],
            "--retention-keep-last=0: must be at least 1",
        ),
        (
            ["shop:workers", "--uri", ELSEWHERE, "--retention-failed", "5x"],
            "Invalid value for '--retention-failed': '5x' is not a length of time",
        ),
        (["shop:workers", "--uri", ELSEWHERE, "--concurency", "3"], "No such option '--concurency'."),
        (
            ["shop:workers", "--uri", ELSEWHERE, "--processes", "2", "--reload"],
            "give --processes or --reload, not both",
        ),
        (["shop:workers", "--uri", ELSEWHERE, "--processes", "0"], "Invalid value for '--processes': 0"),
        (["shop:workers", "--uri", ELSEWHERE, "--loop", "curio"], "Invalid value for '--loop': 'curio'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_arguments_print_the_usage_and_one_line(run: Run, arguments: list[str], said: str) -> None:
    status, errors = run(*arguments)
    assert status == 2
    usage, _, _, error = errors.splitlines()
    assert usage == "Usage: trio-monque run [OPTIONS] MODULE:ATTRIBUTE..."
    assert error.startswith("Error: ")
    assert said in error


@pytest.mark.full
@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("mongodb://me:hunter2@127.0.0.1:1/shop", "check that the server runs"),
        ("mongodb://me:hunter2@localhost", "name one, by --database or in the connection string"),
        ("mongodb://me:hunter2@localhost:port/shop", "cannot be used as a MongoDB connection string"),
        ("mongodb://me:hunt%er2@localhost/shop", "must be escaped"),
        ("me:hunter2@localhost/shop", "cannot be used as a MongoDB connection string"),
        ("mongodb://me:hunter2@localhost/shop?maxPoolSize=1", "maxPoolSize=1: is too small"),
    ],
)
def test_server_that_cannot_be_used_ends_in_one_line_without_the_password(run: Run, uri: str, said: str) -> None:
    status, errors = run("shop:workers", "--uri", uri, "--start-timeout", "0", "--operation-timeout", "0.5")
    assert (status, len(errors.splitlines())) == (2, 1)
    assert said in errors
    assert "hunt" not in errors


def test_target_that_suppresses_the_error_of_the_scheduler_ends_in_one_line(run: Run) -> None:
    status, errors = run("shop:suppressing", "--uri", f"{ELSEWHERE}?maxPoolSize=1")
    assert (status, len(errors.splitlines())) == (2, 1)
    assert "the scheduler did not run: a target suppressed the error" in errors
    assert errors.endswith(": shop:suppressing\n")


def test_wrong_password_ends_in_one_line_that_names_what_to_check(run: Run, mongod: EmbeddedServer) -> None:
    uri = uri_of_database(mongod.uri.replace("mongodb://", "mongodb://me:hunter2@"), "shop")
    status, errors = run("shop:workers", "--uri", uri, "--start-timeout", "0")
    assert (status, len(errors.splitlines())) == (2, 1)
    assert "check the user, the password and the rights" in errors
    assert "hunter2" not in errors


@pytest.mark.parametrize("target", ["raising:workers", "shop:broken"])
def test_error_of_the_target_has_the_traceback_of_the_users_code_only(run: Run, target: str) -> None:
    status, errors = run(target, "--uri", ELSEWHERE)
    frames = [line.split('"')[1] for line in errors.splitlines() if line.startswith("  File ")]
    assert status == 2
    assert {Path(frame).name for frame in frames} <= {"shop.py", "raising.py"}
    assert Path(frames[0]).name == f"{target.partition(':')[0]}.py"
    assert errors.splitlines()[-1] == "ValueError: no pool at postgresql://***@db"


CURIO = {
    "declaring_curio": "from trio_monque import Workers\n\nworkers = Workers(loop='curio')\n",
    "returning_curio": "from trio_monque import Workers\n\n\ndef workers():\n    return Workers(loop='curio')\n",
}


@pytest.mark.parametrize("module", CURIO)
def test_error_of_this_library_in_a_target_has_the_line_of_the_user(run: Run, tmp_path: Path, module: str) -> None:
    """An error of the command is one line. Of a target, that line would not show where it is."""
    (tmp_path / f"{module}.py").write_text(CURIO[module], encoding="utf-8")
    status, errors = run(f"{module}:workers", "--uri", ELSEWHERE)
    traceback, first, line, *_ = errors.splitlines()
    assert (status, traceback) == (2, "Traceback (most recent call last):")
    assert f"{module}.py" in first
    assert "Workers(loop='curio')" in line
    assert "trio_monque.errors.InvalidOptionError: loop='curio'" in errors.splitlines()[-1]


def test_target_that_imports_a_missing_module_has_its_traceback(run: Run) -> None:
    status, errors = run("importing:workers", "--uri", ELSEWHERE)
    assert status == 2
    (frame,) = [line for line in errors.splitlines() if line.startswith("  File ")]
    assert frame.endswith('importing.py", line 1, in <module>')
    assert errors.splitlines()[-1] == "ModuleNotFoundError: No module named 'a_missing_module'"


@pytest.mark.parametrize("target", ["exiting:workers", "shop:exits"])
def test_sys_exit_of_the_target_does_not_look_like_an_end_by_a_signal(run: Run, target: str) -> None:
    status, errors = run(target, "--uri", ELSEWHERE)
    (frame,) = [line for line in errors.splitlines() if line.startswith("  File ")]
    assert (status, errors.splitlines()[-1].startswith("SystemExit")) == (2, True)
    assert f"{target.partition(':')[0]}.py" in frame


def test_missing_uvloop_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda _name: None)
    assert main(["run", "shop:workers", "--uri", ELSEWHERE, "--loop", "uvloop"]) == 2
    assert capsys.readouterr().err == "trio-monque: --loop uvloop needs uvloop: python -m pip install uvloop\n"


def test_missing_watchfiles_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    monkeypatch.delitem(sys.modules, "trio_monque.cli.run.reloader", raising=False)
    assert main(["run", "shop:workers", "--uri", ELSEWHERE, "--reload"]) == 2
    expected = "trio-monque: --reload needs watchfiles: python -m pip install watchfiles\n"
    assert capsys.readouterr().err == expected


def test_module_that_is_missing_in_the_reloader_itself_is_not_taken_for_watchfiles(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "importlib.machinery", None)
    monkeypatch.delitem(sys.modules, "trio_monque.cli.run.reloader", raising=False)
    assert main(["run", "shop:workers", "--uri", ELSEWHERE, "--reload"]) == 2
    assert "importlib.machinery" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("option", [("--processes", "2"), ("--reload",)], ids=" ".join)
def test_several_processes_on_a_system_without_them_end_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    monkeypatch.setattr(command, "os", SimpleNamespace(name="nt"))
    assert main(["run", "shop:workers", "--uri", ELSEWHERE, *option]) == 2
    expected = "trio-monque: --processes and --reload need Linux, macOS or another Unix\n"
    assert capsys.readouterr().err == expected
