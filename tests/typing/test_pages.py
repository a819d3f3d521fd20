"""The programs of the README and of the tutorial have types, in the strict mode of mypy and of pyright."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT, fenced_blocks, quoted_blocks

# A checker reads the whole library, which takes a while on a busy machine.
pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder with all programs of the pages, each under the name that its first line gives it, or a number."""
    readme, _ = fenced_blocks(ROOT / "README.md", "python")  # The second one is the beginning of a test.
    tutorial = ROOT / "docs/tutorial/first-steps.md"
    fastapi = quoted_blocks(ROOT / "docs/how-to/use-with-fastapi.md")
    quoted = [code for _, code in (*quoted_blocks(tutorial), *fastapi)]
    for number, code in enumerate((readme, *fenced_blocks(tutorial, "python"), *quoted)):
        named = re.match(r"# (\w+\.py)\n", code)
        (tmp_path / (named[1] if named else f"program_{number}.py")).write_text(code, encoding="utf-8")
    assert len(list(tmp_path.iterdir())) >= 9
    return tmp_path


def output_of(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_mypy_finds_no_error_in_the_programs_of_the_pages(programs: Path) -> None:
    assert output_of("mypy", *map(str, programs.iterdir())).startswith("Success")


def test_pyright_finds_no_error_in_the_programs_of_the_pages(programs: Path) -> None:
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(ROOT)]}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings), encoding="utf-8")
    output = output_of("pyright", "-p", str(programs), "--pythonpath", sys.executable, "--outputjson")
    # At its first use it installs itself, and may say so before.
    found = json.loads(output[output.index("{") :])
    assert found["generalDiagnostics"] == []
    assert found["summary"]["filesAnalyzed"] >= 9
