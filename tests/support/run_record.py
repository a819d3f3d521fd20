"""Records a run of pytest for `run_again.py`, and runs only the tests that it names: both by environment variables."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.cpu_pressure import Pressure, cpu_pressure
from tests.support.run_again import ONLY, RECORD, Outcome, Record

LOAD: Final = "load of the machine"
"""The property of a report, as the process that runs the test sends it to the one that records."""
CRASHED: Final = "???"
"""What pytest-xdist says instead of the phase of a test whose process crashed."""
LONGEST: Final = 300
"""Characters of a message."""


def record_if_asked(config: pytest.Config) -> None:
    """For `pytest_configure`."""
    if path := os.environ.get(RECORD):
        config.pluginmanager.register(LoadOfTests())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Recorder(Path(path)))
    if path := os.environ.get(ONLY):
        config.pluginmanager.register(Selection(frozenset(json.loads(Path(path).read_text(encoding="utf-8")))))


class LoadOfTests:
    """Adds to the report of a failure how busy the machine was: in the process that runs the test, and as it ends."""

    def __init__(self) -> None:
        self._began = (0.0, cpu_pressure())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._began = (time.monotonic(), cpu_pressure())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            began, before = self._began
            report.user_properties.append((LOAD, load(time.monotonic() - began, before, cpu_pressure())))
        return report


def load(seconds: float, before: Pressure | None, after: Pressure | None) -> str:
    """In words; that of the whole machine, over the time of one test."""
    if before is None or after is None:
        return "load unknown: the system does not count CPU pressure"
    share = (after.stalled - before.stalled) / max(seconds, 1e-6)
    return f"tasks waited for a processor in {min(share, 1.0):.0%} of {seconds:.2f} s (avg10: {after.avg10} %)"


class Recorder:
    """In the process that reports: with pytest-xdist, that is not one of those that run tests."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._record = Record(tests={}, broken=[])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if str(report.when) == CRASHED:
            self._break(f"a process crashed in {report.nodeid}")
            return
        test = self._record["tests"].get(report.nodeid)
        if test is not None and test["result"] == "failed":
            return  # What its fixtures do afterwards belongs to the same failure.
        if report.failed:
            seen = dict(report.user_properties).get(LOAD, "load unknown")
            outcome = Outcome(result="failed", message=message_of(report), load=str(seen))
        elif report.skipped or report.when == "call":
            outcome = Outcome(result="skipped" if report.skipped else "passed", message="", load="")
        else:
            return
        self._record["tests"][report.nodeid] = outcome

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._break(f"could not collect {report.nodeid or 'the tests'}: {message_of(report)}")

    def pytest_internalerror(self, excrepr: object) -> None:
        self._break(f"internal error of pytest: {last_line(str(excrepr))}")

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._break(f"the run was interrupted: {excinfo.exconly()}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._break(f"the process {node.gateway.id} crashed: {error}")

    def _break(self, problem: str) -> None:
        self._record["broken"].append(problem)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (ran := len(self._record["tests"])) != session.testscollected:
            self._break(f"{ran} of {session.testscollected} tests ran")
        self._path.write_text(json.dumps(self._record), encoding="utf-8")


class Selection:
    """Leaves out all tests but these."""

    def __init__(self, wanted: frozenset[str]) -> None:
        self._wanted = wanted

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if left_out := [item for item in items if item.nodeid not in self._wanted]:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if item.nodeid in self._wanted]


def message_of(report: pytest.TestReport | pytest.CollectReport) -> str:
    """The first line of the error; for a module that cannot be imported, the last one says what is wrong."""
    crash = getattr(report.longrepr, "reprcrash", None)
    if crash is not None:
        return str(crash.message).partition("\n")[0][:LONGEST]
    return last_line(str(report.longrepr))


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1][:LONGEST]
