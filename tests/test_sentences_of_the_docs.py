"""The pages have one sentence a line, so that a change of a sentence is a change of one line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import DOCS, PAGES

NOT_PROSE: Final = re.compile(r"\s*(?:#|\||>|<!--|:::|```|\[[^\]]+\]: |\(\S+\)=)")
ITEM: Final = re.compile(r"\s*(?:[-*+]|\d+[.)]) ")
# Perhaps with a mark behind it: `<!-- 105 = 3.5 * heartbeat_interval -->`.
END_OF_A_SENTENCE: Final = re.compile(r"[.?!][\"')*_”]*(?: <!-- .*? -->)*$")


def broken_lines(text: str) -> Iterator[str]:
    """Lines that end within a sentence although their paragraph goes on."""
    # Blocks keep their places, so that a paragraph does not go on behind one.
    prose = re.sub(r"^( *)(```+).*?^ *\2$", "```", text, flags=re.MULTILINE | re.DOTALL)
    lines = prose.splitlines()
    for line, following in pairwise(lines):
        goes_on = following.strip() and not NOT_PROSE.match(following) and not ITEM.match(following)
        if line.strip() and goes_on and not NOT_PROSE.match(line) and not END_OF_A_SENTENCE.search(line):
            yield line


@pytest.mark.parametrize("page", [page for page in PAGES if page != DOCS / "index.md"], ids=lambda page: page.stem)
def test_line_of_prose_ends_with_a_sentence(page: Path) -> None:
    assert list(broken_lines(page.read_text(encoding="utf-8"))) == []


def test_line_that_ends_within_a_sentence_is_found() -> None:
    prose = "One. (A lease.)\nTwo is broken\nhere. <!-- 1 = one -->\n"
    text = f"{prose}- An item\n  that goes on.\n- An item.\n\n```\nany\ntext\n```\n"
    assert list(broken_lines(text)) == ["Two is broken", "- An item"]
