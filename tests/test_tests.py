"""The tests themselves: public doors, shared code in tests/support only, and names without codes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PACKAGE = TESTS.parent / "trio_monque"

INTERNALS = TESTS / "support" / "internals.py"
MODULES = sorted(path for path in TESTS.rglob("*.py") if path != INTERNALS)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def is_of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


@cache
def private_names_of_the_package() -> frozenset[str]:
    names: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_of_self(node):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return frozenset(filter(is_private, names))


MAY_USE = re.compile(r"(?<!\bself)(?<!\bcls)\._[a-z]|\bimport .*\b_[a-z]|^ +_\w+,$|setattr", re.MULTILINE)
"""Other modules need not be parsed: that takes long."""


def uses_of_private_names(source: str) -> Iterator[str]:
    """Attributes of anything but `self` and `cls`, imports, and names for `setattr`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and not is_of_self(node):
            if node.attr in private_names_of_the_package():
                yield f"line {node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trio_monque"):
            yield from (f"line {node.lineno}: {alias.name}" for alias in node.names if is_private(alias.name))
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "setattr":
            names = [one.value for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            yield from (f"line {node.lineno}: {name}" for name in names if is_private(name.rpartition(".")[2]))


def test_private_attributes_of_the_package_are_used_in_internals_only() -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in MODULES}
    uses = {path: list(uses_of_private_names(text)) for path, text in texts.items() if MAY_USE.search(text)}
    assert {str(path.relative_to(TESTS)): found for path, found in uses.items() if found} == {}


@pytest.mark.parametrize(
    "source",
    [
        "scheduler._engine.stop",
        "from trio_monque.scheduler.presence import _name",
        "patch.setattr(scheduler, '_source', None)",
        "setattr(scheduler, '_source', None)",
        "patch.setattr('trio_monque.clock._name', None)",
        "self.scheduler._engine = None",
    ],
)
def test_each_use_of_a_private_attribute_is_found(source: str) -> None:
    assert len(list(uses_of_private_names(source))) == 1


@pytest.mark.parametrize("source", ["engine_of(self)", "point._asdict()", "scheduler.__dict__", "scheduler.health()"])
def test_other_attributes_are_not_taken_for_private_ones(source: str) -> None:
    assert list(uses_of_private_names(source)) == []


def test_no_test_module_imports_another() -> None:
    found = [
        f"{path.relative_to(TESTS)}: {match}"
        for path in TESTS.rglob("*.py")
        for match in re.findall(r"^from (?:tests|\.).*\btest_\w+.*$", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert found == []


def test_names_of_tests_carry_no_codes() -> None:
    """Such as the `h92` of a list that a reader does not have."""
    names = [
        name
        for path in TESTS.rglob("test_*.py")
        for name in re.findall(r"^\s*(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    assert len(names) > 1000
    assert [name for name in names if re.search(r"_[a-z]\d+(_|$)|issue", name)] == []
