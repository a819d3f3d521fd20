"""Runs the tests for CI, and runs what failed once more, alone and in one process: on a busy machine, some fail.

    python -m tests.support.run_again FOLDER COMMAND AGAIN
    python -m tests.support.run_again FOLDER

The first runs COMMAND, which runs pytest. If tests fail, and nothing else, it runs AGAIN, a command for the same tests
in one process, with those that failed. If all of them pass then, it notes them in FOLDER and succeeds. The second
prints what the first noted. It is for several commands that share a FOLDER and its limit.

This module imports the standard library only: COMMAND is what installs the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

RECORD: Final = "MONQUE_TEST_RECORD"
"""The environment variable with the path of the file to which a run of pytest writes its `Record`."""
ONLY: Final = "MONQUE_TEST_ONLY"
"""The environment variable with the path of a file of node ids: the run leaves out all other tests."""

NOTED: Final = "noted.json"
"""The file of the folder with the tests that failed, and passed in the second run."""

LIMIT: Final = 5
"""More tests than these do not fail because of the machine: something is broken."""

TESTS_FAILED: Final = 1
"""pytest's exit code. Others are for an interrupted run (2), an internal error (3), wrong options (4), no tests (5)."""


class Outcome(TypedDict):
    """Of one test.

    Attributes:
        result: "failed" if the test or one of its fixtures failed: on a busy machine, either may.
        message: What failed, in one line.
        load: How busy the machine was during the test.
    """

    result: Literal["passed", "skipped", "failed"]
    message: str
    load: str


class Record(TypedDict):
    """Of one run.

    Attributes:
        tests: By node id.
        broken: What went wrong outside of a test, a line each: a crashed process, a module that cannot be imported.
    """

    tests: dict[str, Outcome]
    broken: list[str]


class UnexplainedError(Exception):
    """The machine cannot be the reason for what went wrong."""


def to_run_again(status: int, record: Record | None, noted: int) -> dict[str, Outcome]:
    """The tests that failed in the first run; raise if it went wrong in any other way, or if they are too many.

    `noted` tests failed in the commands before.
    """
    if record is None:
        raise UnexplainedError(f"the command ended with exit code {status} before pytest had run the tests")
    if record["broken"]:
        raise UnexplainedError("; ".join(record["broken"]))
    if status not in (0, TESTS_FAILED):
        raise UnexplainedError(f"pytest ended with exit code {status}")
    failed = {one: outcome for one, outcome in record["tests"].items() if outcome["result"] == "failed"}
    if bool(failed) != (status == TESTS_FAILED):
        raise UnexplainedError(f"pytest ended with exit code {status}, and {len(failed)} tests failed")
    if noted + len(failed) > LIMIT:
        before = f", and {noted} in the commands before" if noted else ""
        raise UnexplainedError(f"{len(failed)} tests failed{before}: more than {LIMIT} are not run again")
    return failed


def check_all_passed(status: int, record: Record | None, failed: Mapping[str, Outcome]) -> None:
    """Raise unless the second run had exactly the tests that had failed, and each of them passed."""
    if record is None:
        raise UnexplainedError(f"the second run ended with exit code {status} before pytest had run the tests")
    results = {one: record["tests"][one]["result"] if one in record["tests"] else "not found" for one in failed}
    problems = [f"{result} in the second run: {one}" for one, result in results.items() if result != "passed"]
    problems += [f"not among those that failed: {one}" for one in record["tests"] if one not in failed]
    problems += record["broken"]
    if problems:
        raise UnexplainedError("; ".join(problems))
    if status != 0:
        raise UnexplainedError(f"the second run ended with exit code {status}")


def run(folder: Path, command: str, again: str) -> None:
    """Run `command`, and `again` where tests failed; raise unless the failures are noted in the folder."""
    noted: list[tuple[str, Outcome]] = read(folder / NOTED) or []
    failed = to_run_again(*_recorded(command, folder / "record.json"), len(noted))
    if not failed:
        return
    only = folder / "only.json"
    only.write_text(json.dumps(list(failed)), encoding="utf-8")
    print(f"\n== {len(failed)} failed: once more, alone and in one process: {again}", flush=True)  # noqa: T201
    check_all_passed(*_recorded(again, folder / "record.json", {ONLY: str(only)}), failed)
    # A test that failed in two commands is two failures, and each has its lines.
    (folder / NOTED).write_text(json.dumps([*noted, *failed.items()]), encoding="utf-8")


def _recorded(command: str, path: Path, only: Mapping[str, str] | None = None) -> tuple[int, Record | None]:
    path.unlink(missing_ok=True)
    inherited = {name: value for name, value in os.environ.items() if name != ONLY}
    environment = {**inherited, RECORD: str(path), **(only or {})}
    return subprocess.run(["bash", "-c", command], env=environment, check=False).returncode, read(path)


def read(path: Path) -> Any:
    """None if there is no such file."""
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def printable(text: str) -> str:
    """In one line."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def summary(noted: Sequence[tuple[str, Outcome]]) -> str:
    """What CI ends with: a list of work to do."""
    lines = [
        "== FAILED ON A BUSY MACHINE",
        f"{len(noted)} failed in the first run and passed alone. Each needs a form that does not depend on the load:",
    ]
    for test, outcome in noted:
        lines += ["", printable(test), f"    {printable(outcome['message'])}", f"    {outcome['load']}"]
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> None:
    folder = Path(arguments[0])
    if len(arguments) == 1:
        if noted := read(folder / NOTED):
            print(f"\n{summary(noted)}")  # noqa: T201
        return
    _, command, again = arguments
    try:
        run(folder, command, again)
    except UnexplainedError as error:
        sys.exit(f"ci: {printable(str(error))}")


if __name__ == "__main__":
    main(sys.argv[1:])
