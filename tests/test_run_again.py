"""CI runs what failed once more.

A test that fails on a busy machine passes then. A test that fails always, and a run that breaks, fail CI.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.cpu_pressure import Pressure, cpu_pressure
from tests.support.programs import ROOT
from tests.support.run_again import LIMIT, Outcome, UnexplainedError, check_all_passed
from tests.support.run_record import load
from tests.support.thoroughly import one_in, rows_in

QUICK: Final = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
"""pytest starts in half of the time."""
CONFTEST: Final = """
from pathlib import Path
import pytest
from tests.support.run_record import record_if_asked

def pytest_configure(config):
    record_if_asked(config)

@pytest.fixture
def is_first(request, tmp_path_factory):
    '''Of the runs of this test.'''
    seen = Path(__file__).with_name(f"seen {hash(request.node.nodeid)}")
    is_first = not seen.exists()
    seen.touch()
    return is_first
"""
ONE_FAILS_ONCE: Final = """
def test_of_a_busy_machine(is_first):
    assert not is_first, "late by 3 s"

def test_that_passes():
    pass
"""
ONE_FAILS_ALWAYS: Final = """
def test_that_fails():
    assert 1 == 2
"""


def several(count: int) -> str:
    """A module with this number of tests that fail once."""
    return f"""
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_x(number, is_first):
    assert not is_first
"""


class Project:
    """Tests in a folder of their own, which CI runs.

    Attributes:
        folder: That folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "conftest.py").write_text(CONFTEST, encoding="utf-8")
        (folder / "pytest.ini").write_text(
            "[pytest]\naddopts = -p xdist.plugin -p no:cacheprovider\n", encoding="utf-8"
        )
        (folder / "noted").mkdir()

    def has(self, **modules: str) -> None:
        for name, text in modules.items():
            (self.folder / f"test_{name}.py").write_text(text, encoding="utf-8")

    def runs(self, options: str = "") -> subprocess.CompletedProcess[str]:
        """As one of CI's commands. What failed is run in one process, and may pass in that only."""
        command = f"{sys.executable} -m pytest {options}"
        return self._call(command, f"WHICH=again {command} -n 0")

    def ends(self) -> str:
        """What CI prints after all else."""
        return self._call().stdout

    def _call(self, *commands: str) -> subprocess.CompletedProcess[str]:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "MONQUE"))}
        return subprocess.run(
            [sys.executable, "-m", "tests.support.run_again", str(self.folder / "noted"), *commands],
            cwd=self.folder,
            env={**inherited, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0", **QUICK},
            capture_output=True,
            text=True,
            check=False,
        )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("processes", ["", "-n 2"])
def test_what_failed_once_is_run_alone_and_reported_at_the_end(project: Project, processes: str) -> None:
    project.has(once=ONE_FAILS_ONCE)
    ended = project.runs(processes)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert re.search(r"^=+ 1 failed, 1 passed in ", ended.stdout, re.MULTILINE)
    assert ended.stdout.splitlines()[-1].count("1 passed, 1 deselected in ") == 1
    name, message, load_of_it = project.ends().splitlines()[-3:]
    assert name == "test_once.py::test_of_a_busy_machine"
    assert message == "    AssertionError: late by 3 s"
    assert "load unknown" in load_of_it if cpu_pressure() is None else "tasks waited for a processor in " in load_of_it


def test_nothing_is_run_again_and_nothing_reported_where_all_pass(project: Project) -> None:
    project.has(good="def test_that_passes(): pass")
    ended = project.runs()
    assert ended.returncode == 0
    assert "once more" not in ended.stdout
    assert project.ends() == ""


@pytest.mark.full
def test_what_fails_twice_fails_the_run_whatever_else_passes(project: Project) -> None:
    project.has(once=ONE_FAILS_ONCE, always=ONE_FAILS_ALWAYS)
    ended = project.runs()
    assert ended.returncode == 1
    assert "failed in the second run: test_always.py::test_that_fails" in ended.stderr
    assert project.ends() == ""


@pytest.mark.full
def test_as_many_as_the_limit_may_fail_in_all_commands_together(project: Project) -> None:
    project.has(many=several(LIMIT - 1), others=several(2))
    assert project.runs("test_many.py").returncode == 0
    ended = project.runs("test_others.py")
    assert ended.returncode == 1
    assert "2 tests failed, and 4 in the commands before: more than 5 are not run again" in ended.stderr
    assert "once more" not in ended.stdout
    assert project.runs("test_others.py -k 1").returncode == 0  # This one has failed in vain, so it passes.
    project.has(last=several(1))
    assert project.runs("test_last.py").returncode == 0
    assert project.ends().count("::test_x[") == LIMIT


def test_more_than_the_limit_are_not_run_again(project: Project) -> None:
    project.has(many=several(LIMIT + 1))
    ended = project.runs()
    assert ended.returncode == 1
    assert "6 tests failed: more than 5" in ended.stderr


BROKEN: Final = {
    "a module that cannot be imported": ("import nothing_of_this_name", "could not collect test_broken.py"),
    "a process that crashes": ("import os\ndef test_crash(): os._exit(7)", "crashed in test_broken.py::test_crash"),
    "a run that is interrupted": ("def test_x(): raise KeyboardInterrupt", "interrupt"),
    "a run that is ended with the code of a failure": (
        "import pytest\ndef test_x(): pytest.exit('enough', returncode=1)",
        "tests ran",
    ),
}


@pytest.mark.full
@pytest.mark.parametrize(("processes", "kind"), one_in(4, ["", "-n 2"], list(BROKEN)))
def test_broken_run_is_not_run_again(project: Project, processes: str, kind: str) -> None:
    text, said = BROKEN[kind]
    project.has(once=ONE_FAILS_ONCE, broken=text)
    ended = project.runs(processes)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "once more" not in ended.stdout
    if kind != "a process that crashes" or processes:  # Without other processes, it is pytest that crashes.
        assert said in ended.stderr
    assert project.ends() == ""


@pytest.mark.parametrize(
    ("options", "said"),
    rows_in(
        4,
        [
            ("--no-such-option", "exit code 4 before pytest had run the tests"),
            ("-k nothing", "exit code 5"),
            ("; exit 3", "exit code 3"),
            ("-x", "1 of 4 tests ran"),
        ],
        first=3,
    ),
)
def test_command_that_does_not_run_all_tests_fails(project: Project, options: str, said: str) -> None:
    project.has(once=ONE_FAILS_ONCE, again=ONE_FAILS_ONCE)
    ended = project.runs(options)
    assert said in ended.stderr
    assert ended.returncode == 1
    assert project.ends() == ""


@pytest.mark.full
@pytest.mark.parametrize("part", ["assert not is_first; yield", "yield; assert not is_first"], ids=["before", "after"])
def test_fixture_that_fails_once_is_run_again_and_one_that_fails_always_fails_the_run(
    project: Project, part: str
) -> None:
    fixture = f"import pytest\n@pytest.fixture\ndef bad(is_first): {part}\ndef test_x(bad): pass"
    project.has(bad=fixture)
    ended = project.runs()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert project.ends().count("test_bad.py::test_x") == 1
    project.has(bad=fixture.replace("not is_first", "False"))
    ended = project.runs()
    assert ended.returncode == 1
    assert "failed in the second run: test_bad.py::test_x" in ended.stderr


@pytest.mark.full
def test_failure_and_the_error_of_a_fixture_after_it_count_once(project: Project) -> None:
    project.has(
        both="""
import pytest

@pytest.fixture
def checked(is_first):
    yield
    assert not is_first, "something is left"

def test_x(checked, is_first):
    assert not is_first, "late"
"""
    )
    ended = project.runs()
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert project.ends().count("test_both.py::test_x") == 1
    assert "late" in project.ends()


NAMES: Final = [
    "a b",
    "x",
    " x",
    "a::b",
    "]",
    "é",
    "$(exit 1) `exit 1` ' \"",
    "-k x",
    "夜",
    "new\nline",
    "long " * 999,
]
"""Every third fails."""


@pytest.mark.full
def test_only_the_test_with_exactly_that_name_is_run_again(project: Project) -> None:
    project.has(
        names=f"""
import os, pytest

@pytest.mark.parametrize("number", range({len(NAMES)}), ids={NAMES!r})
def test_x(number, is_first):
    assert number % 3 or not is_first

def test_that_fails_beside_others():
    assert "WHICH" in os.environ
"""
    )
    ended = project.runs("-o disable_test_id_escaping_and_forfeit_all_rights_to_community_support=true")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "5 passed, 7 deselected" in ended.stdout


@pytest.mark.full
@pytest.mark.parametrize(
    ("alone", "said"),
    rows_in(
        4,
        [
            ("pytest.skip('not alone')", "skipped in the second run"),
            ("pytest.xfail('known')", "skipped in the second run"),
            ("assert False", "failed in the second run"),
            ("os._exit(0)", "before pytest had run the tests"),
        ],
        first=2,
    ),
)
def test_what_does_not_pass_in_the_second_run_fails(project: Project, alone: str, said: str) -> None:
    project.has(
        x=f"import os, pytest\ndef test_x():\n    if 'WHICH' in os.environ:\n        {alone}\n    assert False\n"
    )
    ended = project.runs()
    assert ended.returncode == 1
    assert said in ended.stderr


@pytest.mark.full
def test_test_that_is_not_found_in_the_second_run_fails(project: Project) -> None:
    project.has(
        x="""
import os

if "WHICH" not in os.environ:
    def test_x():
        assert False

def test_y(is_first):
    assert not is_first
"""
    )
    ended = project.runs()
    assert ended.returncode == 1
    assert "not found in the second run: test_x.py::test_x" in ended.stderr


def test_second_run_with_other_tests_fails() -> None:
    passed = Outcome(result="passed", message="", load="")
    check_all_passed(0, {"tests": {"x": passed}, "broken": []}, {"x": passed})
    with pytest.raises(UnexplainedError, match="not among those that failed: y"):
        check_all_passed(0, {"tests": {"x": passed, "y": passed}, "broken": []}, {"x": passed})
    with pytest.raises(UnexplainedError, match="exit code 1"):
        check_all_passed(1, {"tests": {"x": passed}, "broken": []}, {"x": passed})


def test_load_is_the_part_of_the_time_in_which_tasks_waited(tmp_path: Path) -> None:
    file = tmp_path / "cpu"
    file.write_text(
        "some avg10=12.50 avg60=1.00 avg300=0.10 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    )
    after = cpu_pressure(file)
    assert after == Pressure(stalled=2.5, avg10=12.5)
    assert load(2.0, Pressure(1.0, 0.0), after) == "tasks waited for a processor in 75% of 2.00 s (avg10: 12.5 %)"
    assert cpu_pressure(tmp_path / "missing") is None
    assert "unknown" in load(2.0, None, None)
