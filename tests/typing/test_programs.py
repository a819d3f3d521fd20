"""What type checkers say of programs: each wrong line is an error for both, each right line is free of errors."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs.py"
MARK = re.compile(r"  #! mypy: (?P<mypy>[\w-]+), pyright: (?P<pyright>\w+)$")

# A checker reads the whole library, which takes a while on a busy machine.
pytestmark = pytest.mark.timeout(300)

Findings = dict[int, set[str]]


def expected(checker: str) -> dict[int, str]:
    """The kind of error of each wrong line, by its number. A checker may find others there, too."""
    lines = PROGRAMS.read_text(encoding="utf-8").splitlines()
    marks = {number: MARK.search(line) for number, line in enumerate(lines, 1)}
    return {number: mark[checker] for number, mark in marks.items() if mark is not None}


def check(found: Findings, checker: str) -> None:
    wrong = expected(checker)
    assert found.keys() == wrong.keys(), sorted(found.keys() ^ wrong.keys())
    assert {number: kind for number, kind in wrong.items() if kind not in found[number]} == {}


def output_of(*arguments: str) -> str:
    return subprocess.run(
        [sys.executable, "-m", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout


def test_mypy_finds_each_wrong_line_and_no_other() -> None:
    output = output_of("mypy", "--no-error-summary", "--hide-error-context", str(PROGRAMS))
    found: Findings = defaultdict(set)
    for line in output.splitlines():
        if error := re.search(r"programs\.py:(\d+): error: .*\[([\w-]+)\]$", line):
            found[int(error[1])].add(error[2])
    check(found, "mypy")


def test_pyright_finds_each_wrong_line_and_no_other() -> None:
    output = output_of("pyright", "-p", str(PROGRAMS.parent), "--pythonpath", sys.executable, "--outputjson")
    found: Findings = defaultdict(set)
    # At its first use it installs itself, and may say so before.
    for error in json.loads(output[output.index("{") :])["generalDiagnostics"]:
        found[error["range"]["start"]["line"] + 1].add(error["rule"])
    check(found, "pyright")


def test_there_are_wrong_lines() -> None:
    assert len(expected("mypy")) == len(expected("pyright")) == PROGRAMS.read_text(encoding="utf-8").count("  #! ") > 50
