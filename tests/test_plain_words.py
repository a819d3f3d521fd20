"""Package, documentation, the pages beside README and tests use the field's own words: these phrases do not return.

In tests this covers the names of modules, classes and functions, the docstrings and the comments.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
OLD_NAMES: Final = ROOT / "docs/reference/renamed.md"
"""It quotes what was renamed."""

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

# In a module of tests: a name, a docstring, or a comment with the lines that continue it.
WORDS: Final = re.compile(
    r'''
      \b(?:def|class)\ (?P<name>\w+)
    | """.*?"""
    | (?:^\ *|\ \ )\#\ [^\n]*(?:\n\ *\#\ [^\n]*)*
    ''',
    re.VERBOSE | re.MULTILINE | re.DOTALL,
)


def _banned_in(text: str) -> Iterator[str]:
    """Each banned phrase with the words around it, also where it continues on the next line of a comment."""
    flowing = re.sub(r"\s+(?:# )?", " ", text)
    for match in BANNED.finditer(flowing):
        yield flowing[max(match.start() - 40, 0) : match.end() + 40]


def _banned_in_tests(path: Path) -> Iterator[str]:
    yield from _banned_in(_as_words(path.stem))
    for found in WORDS.finditer(path.read_text("utf-8")):
        yield from _banned_in(_as_words(found["name"]) if found["name"] else found.group())


def _as_words(name: str) -> str:
    return re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", name)


def test_text_uses_plain_words() -> None:
    paths = [*ROOT.glob("*.md"), *(ROOT / "trio_monque").rglob("*.py"), *(ROOT / "docs").rglob("*.md")]
    paths.remove(OLD_NAMES)
    found = [f"{path.relative_to(ROOT)}: {words}" for path in paths for words in _banned_in(path.read_text("utf-8"))]
    assert not found, "\n".join(sorted(found))


def test_tests_use_plain_words() -> None:
    paths = set((ROOT / "tests").rglob("*.py")) - {Path(__file__)}
    found = [f"{path.relative_to(ROOT)}: {words}" for path in paths for words in _banned_in_tests(path)]
    assert not found, "\n".join(sorted(found))


def test_names_docstrings_and_comments_of_tests_are_searched(tmp_path: Path) -> None:
    path = tmp_path / "test_told.py"
    path.write_text(
        '"""It says\nso."""\n'
        "class ToldTwice:\n"
        '    def test_lock_is_no_fault(self) -> None:\n        """Nobody."""\n'
        "        told = 1  # The job of\n        # which we know.\n"
    )
    found = [BANNED.findall(words) for words in _banned_in_tests(path)]
    assert found == [["told"], ["says so"], ["Told"], ["is no "], ["Nobody"], ["of which"]]


def test_banned_words_are_found() -> None:
    assert BANNED.search("The handler is told of it.")
    assert BANNED.search("It is no folder.")
    assert not BANNED.search("There is no folder, and it is no longer used.")
