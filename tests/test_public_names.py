"""The public names: which there are, and that the reference shows each in the module that exports it."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Sequence

import pytest

import trio_monque
from tests.support.programs import ROOT
from trio_monque import MonqueError, error_types, errors, events

IN_ROOT = [
    "CancelReason",
    "Claim",
    "Claims",
    "Discard",
    "Health",
    "Job",
    "JobCancelledError",
    "JobDeletedError",
    "JobFailedError",
    "JobFilter",
    "JobNursery",
    "JobNurseryError",
    "JobSelector",
    "JobStatus",
    "Monque",
    "MonqueError",
    "NewJob",
    "Retention",
    "Retry",
    "RunningJob",
    "Scheduler",
    "SchedulerReport",
    "Snooze",
    "Statistics",
    "SyncMonque",
    "Worker",
    "Workers",
    "open_claims",
    "open_job_nursery",
    "open_scheduler",
    "run_claims",
    "run_scheduler",
    "run_until_signalled",
]
MODULES = (
    "events",
    "errors",
    "jobs",
    "client",
    "diagnosis",
    "scheduler",
    "claims",
    "metrics",
    "web",
    "otel",
    "embedded",
    "testing",
)
PUBLIC = ("trio_monque", *(f"trio_monque.{name}" for name in MODULES))


def exported(module: str) -> Sequence[str]:
    names: Sequence[str] = importlib.import_module(module).__all__
    return names


def documented() -> list[tuple[str, str]]:
    """Each class and function of the reference, with the module that the page gives for it."""
    found = []
    for page in sorted((ROOT / "docs/reference").glob("*.md")):
        module = ""
        for line in page.read_text(encoding="utf-8").splitlines():
            if line.startswith(".. currentmodule:: "):
                module = line.split()[-1]
            elif match := re.match(r"\.\. auto(?:class|function):: (\w+)", line):
                found.append((module, match[1]))
    return found


def test_root_exports_the_names_of_everyday_use() -> None:
    assert exported("trio_monque") == IN_ROOT


@pytest.mark.parametrize("module", PUBLIC)
def test_exports_exist_once_and_in_order(module: str) -> None:
    names = exported(module)
    assert len(set(names)) == len(names)
    assert list(names) == sorted(names)
    for name in names:
        assert getattr(importlib.import_module(module), name).__name__ == name


def test_name_of_the_root_is_the_same_object_in_its_own_module() -> None:
    for name in IN_ROOT:
        for module in PUBLIC[1:]:
            if name in exported(module):
                assert getattr(importlib.import_module(module), name) is getattr(trio_monque, name)


def test_reference_shows_each_public_name_once_in_a_module_that_exports_it() -> None:
    shown = documented()
    assert [(module, name) for module, name in shown if name not in exported(module)] == []
    assert sorted({name for _, name in shown}) == sorted(name for _, name in shown)
    assert {name for module in PUBLIC for name in exported(module)} == {name for _, name in shown}


def test_name_outside_the_root_is_shown_in_its_own_module() -> None:
    assert {name for module, name in documented() if module == "trio_monque"} == {*IN_ROOT} - {"MonqueError"}


def test_errors_are_all_exceptions_and_events_are_all_events() -> None:
    for name in errors.__all__:
        # That of a job nursery is a group: it has an error for each child, and `except*` finds them.
        kind = ExceptionGroup if name == "JobNurseryError" else MonqueError
        assert issubclass(getattr(errors, name), kind)
    for name in events.__all__:
        assert issubclass(getattr(events, name), events.Event)
        assert not name.endswith("Error")
    classes = [one for one in vars(events).values() if isinstance(one, type) and one.__module__ == events.__name__]
    assert {one.__name__ for one in classes} == {*events.__all__}
    raised = {name for module in PUBLIC for name in exported(module) if name.endswith("Error")}
    raised -= {"NoDatabaseError"}  # Of `testing`: a misuse in a test, which no program catches.
    assert raised == {*errors.__all__}
    assert {*error_types.__all__} < raised
    assert {getattr(errors, name).__module__ for name in error_types.__all__} == {"trio_monque.errors"}


def test_reference_shows_errors_with_their_built_in_bases() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    for name in errors.__all__:
        assert f".. autoclass:: {name}()\n   :show-inheritance:" in page


def test_type_checkers_see_each_documented_import() -> None:
    """The strict check of the project includes that file: a name that its module does not export is an error there."""
    tree = ast.parse((ROOT / "tests/typing/public_imports.py").read_text(encoding="utf-8"))
    seen = [(one.module, name.name) for one in tree.body if isinstance(one, ast.ImportFrom) for name in one.names]
    assert sorted(seen) == sorted([*documented(), ("trio_monque", "MonqueError")])
