"""Runs a program of the docs as a user would: in a process of its own, on the tests' server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

ROOT = Path(__file__).parents[2]


def uri_of_database(uri: str, database: str) -> str:
    """The same server, with that database as the default one."""
    parts = urlsplit(uri)
    options = parts.query
    if parts.username and "authSource=" not in options:
        # The users' database is the default one unless it is said apart.
        options = f"{options}&authSource={parts.path.strip('/') or 'admin'}".lstrip("&")
    return urlunsplit(parts._replace(path=f"/{database}", query=options))


def run_program(*arguments: str, uri: str, database: str) -> str:
    """What `python ARGUMENTS` prints; it must succeed. `embedded_mongod` gives it the tests' server."""
    environment = {**os.environ, "MONQUE_MONGODB_URI": uri_of_database(uri, database), "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def fenced_blocks(page: Path, language: str) -> list[str]:
    """The code blocks of a Markdown page in this language ("" for none), without those that quote a file."""
    return [code for mark, named, code in all_blocks(page) if named == language and not mark.startswith("from ")]


def quoted_blocks(page: Path) -> list[tuple[str, str]]:
    """The code blocks that quote a file of the repository: the file, and the code.

    `<!-- from examples/hello.py -->` stands in the line before such a block. An include would be shorter, and would
    leave the page without its code where Markdown is read without a documentation builder.
    """
    marked = ((mark.partition("from "), code) for mark, _, code in all_blocks(page))
    return [(file, code) for (before, found, file), code in marked if found and not before]


def all_blocks(page: Path) -> list[tuple[str, str, str]]:
    """The mark in the line before each code block (`<!-- MARK -->`, or ""), its language, and the code."""
    pattern = r"^(?:<!-- (.+?) -->\n)?```(.*?)\n(.*?)^```$"
    return re.findall(pattern, page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
