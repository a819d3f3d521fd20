"""What mypy and pyright say, in their strict modes.

Of the programs of the README, the tutorial and the guides: no error. Of `programs.py`: each wrong line is an error, and
each right line is free of errors. Each checker reads the whole library, which takes seconds: it runs once for all.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from tests.support.programs import ROOT, fenced_blocks, quoted_blocks

PROGRAMS: Final = Path(__file__).parent / "programs.py"
MARK: Final = re.compile(r"  #! mypy: (?P<mypy>[\w-]+), pyright: (?P<pyright>\w+)$")

# Seconds, and more on a busy machine.
pytestmark = pytest.mark.timeout(300)

Findings = dict[int, set[str]]
"""The kinds of error in each line, by its number."""


def pages() -> dict[str, str]:
    """All programs of the pages, each under the name that its first line gives it, or a number."""
    readme, _ = fenced_blocks(ROOT / "README.md", "python")  # The second one is the beginning of a test.
    tutorial = ROOT / "docs/tutorial/first-steps.md"
    service = quoted_blocks(ROOT / "docs/how-to/run-jobs-in-a-web-service.md")
    quoted = [code for _, code in quoted_blocks(tutorial)]
    # One imports the other, by another name here: the tutorial has a `jobs.py` too.
    renamed = ("from jobs ", "from service_jobs "), ("import fastapi_app", "import service_fastapi_app as fastapi_app")
    found = {f"service_{Path(file).name}": replaced(code, renamed) for file, code in service}
    for number, code in enumerate((readme, *fenced_blocks(tutorial, "python"), *quoted)):
        named = re.match(r"# (\w+\.py)\n", code)
        found[named[1] if named else f"program_{number}.py"] = code
    for example in (ROOT / "examples/migrate").glob("*.py"):  # The guides of the group Migrate quote these.
        found[f"migrate_{example.name}"] = example.read_text(encoding="utf-8")
    return found


def replaced(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    for old, new in pairs:
        text = text.replace(old, new)
    return text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All that is checked, beside the settings of pyright."""
    for name, code in pages().items():
        (tmp_path / name).write_text(code, encoding="utf-8")
    (tmp_path / PROGRAMS.name).write_bytes(PROGRAMS.read_bytes())
    settings = (PROGRAMS.parent / "pyrightconfig.json").read_text(encoding="utf-8")
    here = {"include": ["*.py"], "extraPaths": [str(ROOT)]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(json.loads(settings) | here), encoding="utf-8")
    return tmp_path


def expected(checker: str) -> dict[int, str]:
    """The kind of error of each wrong line, by its number. A checker may find others there, too."""
    lines = PROGRAMS.read_text(encoding="utf-8").splitlines()
    marks = {number: MARK.search(line) for number, line in enumerate(lines, 1)}
    return {number: mark[checker] for number, mark in marks.items() if mark is not None}


def check(found: dict[str, Findings], checker: str) -> None:
    """What was found, by the name of the file."""
    assert found.keys() == {PROGRAMS.name}, "no error in the programs of the pages"
    in_lines, wrong = found[PROGRAMS.name], expected(checker)
    assert in_lines.keys() == wrong.keys(), sorted(in_lines.keys() ^ wrong.keys())
    assert {number: kind for number, kind in wrong.items() if kind not in in_lines[number]} == {}


def output_of(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.full
def test_mypy_finds_each_wrong_line_and_no_other(folder: Path) -> None:
    programs = sorted(map(str, folder.glob("*.py")))
    found: dict[str, Findings] = defaultdict(lambda: defaultdict(set))
    output = output_of("mypy", "--hide-error-context", *programs)
    for line in output.splitlines():
        if error := re.search(r"(\w+\.py):(\d+): error: .*\[([\w-]+)\]$", line):
            found[error[1]][int(error[2])].add(error[3])
    assert f"(checked {len(programs)} source files)" in output
    check(found, "mypy")


@pytest.mark.full
def test_pyright_finds_each_wrong_line_and_no_other(folder: Path) -> None:
    output = output_of("pyright", "-p", str(folder), "--pythonpath", sys.executable, "--outputjson")
    # At its first use it installs itself, and may print that before.
    checked = json.loads(output[output.index("{") :])
    found: dict[str, Findings] = defaultdict(lambda: defaultdict(set))
    for error in checked["generalDiagnostics"]:
        found[Path(error["file"]).name][error["range"]["start"]["line"] + 1].add(error["rule"])
    assert checked["summary"]["filesAnalyzed"] == len(list(folder.glob("*.py")))
    check(found, "pyright")


def test_there_are_wrong_lines_and_pages() -> None:
    assert len(expected("mypy")) == len(expected("pyright")) == PROGRAMS.read_text(encoding="utf-8").count("  #! ") > 50
    assert len(pages()) >= 9
