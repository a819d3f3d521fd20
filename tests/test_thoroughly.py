"""CI runs what the normal run leaves out or has less of; and the normal run has a test of all that users rely on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.pages import DOCS
from tests.support.thoroughly import one_in, rows_in

TESTS = Path(__file__).parent
WITH_NUMBERS = re.compile(r"\bin_full\(|\bif FULL\b")
"""Modules that name a number of their own."""


def test_module_with_a_number_that_is_larger_in_full_has_the_marker() -> None:
    found = {path.name: path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py") if path != Path(__file__)}
    numbered = {name for name, text in found.items() if WITH_NUMBERS.search(text)}
    assert len(numbered) > 10
    assert {name for name in numbered if "pytest.mark.larger_in_full" not in found[name]} == set()


def test_ci_plays_what_is_marked() -> None:
    assert 'MONQUE_TEST_FULL=1 pytest -m "full or larger_in_full"' in (TESTS.parent / ".ci/run").read_text("utf-8")
    assert 'MONQUE_TEST_FULL=1 python -m pytest -m "full or larger_in_full"' in (TESTS.parent / "justfile").read_text(
        "utf-8"
    )


def test_justfile_names_tests_that_are_there() -> None:
    named = re.findall(r"\btests/[\w/]+(?:\.py)?", (TESTS.parent / "justfile").read_text("utf-8"))
    assert len(named) > 10
    assert [path for path in named if not (TESTS.parent / path).exists()] == []


def played_in_a_normal_run() -> Iterator[str]:
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^pytestmark = .*\bpytest\.mark\.full\b", text, re.MULTILINE):
            continue
        if "@pytest.mark.full" not in text:  # It need not be parsed.
            yield from re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)
            continue
        functions = (node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
        yield from (one.name for one in functions if "pytest.mark.full" not in map(ast.unparse, one.decorator_list))


ONLY_IN_FULL = {
    "test_changes_are_received_again_after_a_server_restart",
    "test_four_processes_get_a_fair_share_each",
    "test_eight_processes_lose_at_most_a_seventh_of_their_candidates",
}
"""They start servers or up to eight processes. Tests without these hold the same of an engine and of a stream."""


def test_what_users_rely_on_is_tested_in_a_normal_run() -> None:
    page = (DOCS / "explanation/behaviours.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 100
    assert named - set(played_in_a_normal_run()) == ONLY_IN_FULL


def test_part_of_a_family_has_each_value() -> None:
    family = one_in(3, "abc", range(7))
    normal = [one.values for one in family if not one.marks]
    assert (len(family), len(normal)) == (21, 7)
    assert {letter for letter, _ in normal} == set("abc")
    assert {number for _, number in normal} == set(range(7))


def test_part_of_the_rows_is_played_in_a_normal_run() -> None:
    rows = rows_in(3, [("a", 1), ("b", 2), ("c", 3), ("d", 4)])
    assert [one.values for one in rows] == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert [one.values for one in rows if not one.marks] == [("a", 1), ("d", 4)]


def test_family_without_a_part_for_a_normal_run_is_refused() -> None:
    with pytest.raises(AssertionError, match="tries none"):
        one_in(5, "abc", first=4)
    with pytest.raises(AssertionError, match="tries none"):
        rows_in(3, [("a", 1)], first=1)
