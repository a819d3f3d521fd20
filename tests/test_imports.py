"""What is imported, and when: commands that need no database start at once, and so do programs that only enqueue.

By what is imported, and not by how long it takes.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import trio_monque
from tests.support.programs import ROOT

HEAVY = {"trio", "anyio", "asyncio", "outcome", "pymongo", "bson", "rich", "watchfiles", "multiprocessing", "cronsim"}
COMPLETED = {"_TRIO_MONQUE_COMPLETE": "bash_complete", "COMP_CWORD": "1"}

THEN_NAMES = "import json, sys; print(); print(json.dumps(sorted(sys.modules)))"
COMMAND = f"from trio_monque.cli import main; main(); {THEN_NAMES}"


def imported_by(program: str, *arguments: str, **variables: str) -> tuple[str, set[str]]:
    """What a process prints that runs the program, and the modules that it has imported at its end."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **variables},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    printed, _, names = done.stdout.rstrip().rpartition("\n")
    return printed, set(json.loads(names))


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        ([], {}, "Examples:"),
        (["--help"], {}, "List jobs."),
        (["--version"], {}, "trio-monque "),
        ([], {**COMPLETED, "COMP_WORDS": "trio-monque pre"}, "preview"),
        ([], {"_TRIO_MONQUE_COMPLETE": "bash_source"}, "complete"),
    ],
    ids=["no command", "help", "version", "completion", "completion script"],
)
def test_help_version_and_completion_import_no_library_but_click(
    arguments: list[str], variables: dict[str, str], said: str
) -> None:
    printed, modules = imported_by(COMMAND, *arguments, **variables)
    assert said in printed
    assert "click" in modules
    assert modules & HEAVY == set()
    ours = {name for name in modules if name.startswith("trio_monque.")}
    assert {name.split(".")[1] for name in ours} == {"cli", "error_types", "safe_text"}


def test_unknown_command_imports_none(tmp_path: Path) -> None:
    program = f"from trio_monque.cli import main; assert main() == 2; {THEN_NAMES}"
    assert imported_by(program, "nope")[1] & HEAVY == set()


def test_preview_imports_no_driver_and_no_event_loop() -> None:
    printed, modules = imported_by(COMMAND, "preview", "@daily", "--json")
    assert '"runs"' in printed
    assert modules & HEAVY == {"cronsim", "bson"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--help"],
        ["jobs", "--help"],
        ["doctor", "--help"],
        ["jobs", "--uri", "mongodb://127.0.0.1:1/db", "--nope"],
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_command_imports_only_what_prints_for_people_when_it_prints(arguments: list[str]) -> None:
    program = f"from trio_monque.cli import main; main(); {THEN_NAMES}"
    assert imported_by(program, *arguments)[1] & {"rich", "watchfiles", "prometheus_client"} == set()


def test_package_imports_nothing_of_itself() -> None:
    _, modules = imported_by(f"import trio_monque; {THEN_NAMES}")
    assert {name for name in modules if name.startswith("trio_monque.")} | modules & HEAVY == set()


@pytest.mark.full
def test_client_is_imported_without_schedulers() -> None:
    _, modules = imported_by(f"from trio_monque import Monque; {THEN_NAMES}")
    rooms = {name.split(".")[1] for name in modules if name.startswith("trio_monque.")}
    assert rooms & {"scheduler", "claims", "engine", "host", "bridge"} == set()


def test_names_and_modules_are_found_as_if_they_were_imported() -> None:
    program = (
        "import trio_monque; before = dir(trio_monque); assert {*trio_monque.__all__} <= {*before};"
        "assert trio_monque.errors.MonqueError is trio_monque.MonqueError;"
        "assert trio_monque.events.JobFailed; assert 'Worker' in vars(trio_monque) or trio_monque.Worker;"
        "from trio_monque import *; assert open_scheduler is trio_monque.scheduler.open_scheduler;"
        f"assert not hasattr(trio_monque, 'Unknown'); {THEN_NAMES}"
    )
    imported_by(program)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'trio_monque' has no attribute 'Monk'"):
        trio_monque.Monk  # type: ignore[attr-defined]  # noqa: B018


def test_type_checkers_and_programs_find_the_same_names_in_the_same_modules() -> None:
    tree = ast.parse(Path(trio_monque.__file__).read_text(encoding="utf-8"))
    checking = next(one for one in tree.body if isinstance(one, ast.If))
    stated = {(one.module, name.name) for one in checking.body if isinstance(one, ast.ImportFrom) for name in one.names}
    names_of = trio_monque._NAMES_OF
    assert {(module, name) for module, names in names_of.items() for name in names} == stated
    assert sorted(trio_monque._PLACES) == sorted(trio_monque.__all__)
