"""What CONTRIBUTING.md names exists: recipes, files, modules that draw pages, and classes."""

from __future__ import annotations

import importlib.util
import re

from tests.support.programs import ROOT

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`\n]+)`", PAGE)


def test_recipes_are_in_the_justfile() -> None:
    recipes = re.findall(r"^(\w+)(?: \*arguments)?:", (ROOT / "justfile").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"`just (\w+)`", PAGE)
    assert named
    assert set(named) <= set(recipes)


def test_files_and_folders_exist() -> None:
    named = {one for one in CODE if re.fullmatch(r"[\w/]+(/|\.py)", one)}
    assert len(named) > 10
    # A file may be named by its last part where a sentence has named its folder.
    files = [path.relative_to(ROOT).as_posix() for path in (*ROOT.rglob("trio_monque/**/*"), *ROOT.glob("tests/**/*"))]
    assert [one for one in named if not any(f"/{path}".endswith(f"/{one.rstrip('/')}") for path in files)] == []


def test_modules_that_write_pages_exist() -> None:
    named = re.findall(r"docs\.\w+", PAGE)
    assert len(named) > 5
    assert [one for one in named if importlib.util.find_spec(one) is None] == []
    # All that write: those with a command of their own.
    writing = {f"docs.{path.stem}" for path in (ROOT / "docs").glob("*.py") if "__main__" in path.read_text("utf-8")}
    assert set(named) == writing
