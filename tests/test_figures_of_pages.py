"""Every measured figure on a page names the command that shows it, or says how it was measured once.

A figure is a number with a unit of speed, time or load. It and its command are in one section. What the code fixes (a
limit, a pace) is not measured; such lines are listed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.support.pages import PAGES

FIGURE: Final = re.compile(
    r"\d ?(?:µs|ms|jobs/s|KB|jobs a second)\b|\d % of (?:a core|throughput)|\d times as (?:fast|long|much)"
)
SHOWN_BY: Final = re.compile(
    r"python -m benchmarks|python -m trio_monque|trio-monque demo|[Mm]easured (?:the alternatives )?once"
)
# Programs that are quoted, and tables that a test compares with a benchmark.
NOT_TEXT: Final = re.compile(r"^```.*?^```|<!-- numbers of .*? -->\n(?:\|.*\n)+", re.MULTILINE | re.DOTALL)
# The figures of a run, with their command; and the page that explains how it is measured.
MEASUREMENTS: Final = {"performance.md", "benchmarks.md"}

FIXED: Final = (
    "The claim sets out 3 ms early",
    "the timer ends 3 ms early",
    "It looks for jobs 100 ms after the last change",
    "Values over 64 KB are truncated",
    "50 jobs a second of 0.4 seconds each",
    "| less than 10 ms |",
)


def sections_of(text: str) -> Iterator[str]:
    yield from re.split(r"^#+ ", NOT_TEXT.sub("", text), flags=re.MULTILINE)


def figures_without_command(section: str) -> list[str]:
    if SHOWN_BY.search(section):
        return []
    lines = [line for line in section.splitlines() if FIGURE.search(line)]
    return [line for line in lines if not any(fixed in line for fixed in FIXED)]


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in MEASUREMENTS], ids=lambda page: page.stem)
def test_every_figure_names_its_command(page: Path) -> None:
    found = [figures_without_command(section) for section in sections_of(page.read_text(encoding="utf-8"))]
    assert not [line for lines in found for line in lines]


def test_section_of_a_figure_without_a_command_is_found() -> None:
    """Otherwise the test above would not fail."""
    assert figures_without_command("A job takes 90 µs of the client.") == ["A job takes 90 µs of the client."]
    assert not figures_without_command("A job takes 90 µs (`python -m benchmarks --only T`).")


def test_nothing_is_listed_that_no_page_says() -> None:
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert [fixed for fixed in FIXED if fixed not in pages] == []
