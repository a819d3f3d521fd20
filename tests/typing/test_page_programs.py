"""Every Python block of the docs is executed by a test, quotes a file that one executes, or is free of type errors.

mypy reads them in one run. What a page leaves out is added: see `page_programs`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tests.support.page_programs import Block, blocks_of, module_text
from tests.support.pages import PAGES
from tests.support.programs import ROOT

# Beside what is right in a page: a stub `def resize(job) -> Size: ...`, `await` at the top, `MongoClient("...")`.
ALLOWED: Final = ("empty-body", "top-level-await", "var-annotated")
BLOCKS: Final = {page: list(blocks_of(page)) for page in PAGES}


OTHER_LIBRARIES: Final = ("apscheduler", "arq", "celery", "procrastinate", "redis")
"""The pages for those who come from them quote programs of these. They are not installed here."""


def is_executed(block: Block) -> bool:
    """The files of tests are: tests/test_docs.py runs them. Quotations are compared with their file there."""
    return block.quoted or (block.file or "").startswith("test_")


CHECKED: Final = [block for blocks in BLOCKS.values() for block in blocks if not is_executed(block)]


def errors_found(folder: Path) -> Mapping[str, Mapping[int, str]]:
    """What mypy says of each line, by the name of the module."""
    config = folder.with_suffix(".ini")
    sections = [f"[mypy-{one}.*]\nignore_missing_imports = True\n" for one in OTHER_LIBRARIES]
    config.write_text("".join(["[mypy]\n", *sections]), encoding="utf-8")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--config-file",
        str(config),
        "--check-untyped-defs",
        "--hide-error-context",
    ]
    command += [part for code in ALLOWED for part in ("--disable-error-code", code)]
    files = sorted(path.name for path in folder.iterdir())
    ran = subprocess.run(
        [*command, "--python-version", "3.11", "--cache-dir", str(ROOT / ".mypy_cache/pages"), *files],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"(checked {len(files)} source files)" in ran.stdout, ran.stdout + ran.stderr
    found: dict[str, dict[int, str]] = {}
    for name, line, error in re.findall(r"^(\w+)\.py:(\d+): error: (.*)$", ran.stdout, re.MULTILINE):
        found.setdefault(name, {})[int(line)] = error
    return found


@pytest.mark.full
@pytest.mark.timeout(300)
def test_blocks_that_no_test_executes_have_the_type_errors_that_they_show_and_no_others(tmp_path: Path) -> None:
    for blocks in BLOCKS.values():
        for number, block in enumerate(blocks):
            (tmp_path / f"{block.module}.py").write_text(module_text(block, blocks[:number]), encoding="utf-8")
            if block.file:  # Pages import the files of their reader by name.
                stub = "from typing import Any\ndef __getattr__(name: str) -> Any: ...\n"
                (tmp_path / block.file).write_text(stub, encoding="utf-8")
    found = errors_found(tmp_path)
    wrong = [block for block in CHECKED if len(found.get(block.module, ())) != block.type_errors]
    assert {block.module: found.get(block.module) for block in wrong} == {}


def test_most_blocks_are_checked_and_some_show_errors() -> None:
    assert len(CHECKED) > 90
    assert Counter(block.type_errors > 0 for block in CHECKED)[True] == 2
