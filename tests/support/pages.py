"""Reads the pages of the documentation."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.programs import ROOT

DOCS = ROOT / "docs"

PAGES = sorted(page for page in DOCS.rglob("*.md") if "_build" not in page.parts)


def rows(page: str, heading: str = "") -> Sequence[Sequence[str]]:
    """The rows of all tables of a page from a heading on, without their heads."""
    text = (DOCS / page).read_text(encoding="utf-8").partition(heading)[2]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for number, row in enumerate(found) if not {"---"} & {row[0], *found[(number + 1) % len(found)]}]
