"""The package, its documentation and README use the field's own words: these turns of phrase do not come back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

# Each hides the actor, or says in a roundabout way what has a plain word.
BANNED: Final = re.compile(
    r"""
      \b(?:told|untold|nobody|somebody|whoever|whomever|whatever\ is|such\ a\ one)\b
    | \bof\ (?:which|whom)\b
    | \bsays?\ so\b
    | \bso\ many\b
    | \b(?:tell|tells|telling|hear|hears|heard)\ (?:of|whoever|that|those\ who|by)\b
    | (?<!there\ )(?<!\bthat\ )\b(?:is|are|was|were|be)\ no\ (?!longer\b|more\b|less\b|later\b|earlier\b|one\b|such\b)
    | \bis\ none\ (?:of|that)\b
    | \bsays?\ nothing\b
    """,
    re.VERBOSE | re.IGNORECASE,
)


def _texts() -> Iterator[Path]:
    yield ROOT / "README.md"
    yield from sorted((ROOT / "trio_monque").rglob("*.py"))
    yield from sorted((ROOT / "docs").rglob("*.md"))


def test_text_uses_plain_words() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for path in _texts()
        if (text := re.sub(r"\s+", lambda space: "\n" if "\n" in space.group() else " ", path.read_text("utf-8")))
        for match in BANNED.finditer(text)
    ]
    assert not found, "\n".join(found)


def test_banned_words_are_found() -> None:
    assert BANNED.search("The handler is told of it.")
    assert BANNED.search("It is no folder.")
    assert not BANNED.search("There is no folder, and it is no longer used.")
