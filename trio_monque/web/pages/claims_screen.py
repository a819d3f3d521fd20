"""The screen Claims: other collections whose documents are claimed, and how many are in each state of their locks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ...claims.claimed_collection import MOST_COUNTED, ClaimedCollection
from ...error_types import MissingIndexError
from ...store.documents.counting import LockCounts
from ..words.lengths import counted, grouped
from .screen import PageCall, View

STATES: Final[Sequence[tuple[str, str, str]]] = (
    ("claimable", "Claimable", ""),
    ("waiting", "Waiting", ""),
    ("held", "Held", ""),
    ("overdue", "Overdue", "due"),
    ("dead_letters", "Dead letters", "bad"),
    ("unreadable", "Unreadable", "bad"),
)
"""The states of locks: each with its attribute of LockCounts, its heading, and the class of a number that is not 0."""


@dataclass(frozen=True, slots=True)
class CountCell:
    """A number of documents.

    Attributes:
        heading: What state they are in.
        text: The number, such as "10,000+".
        look: The class of the number.
        is_zero: There are none.
    """

    heading: str
    text: str
    look: str
    is_zero: bool


@dataclass(frozen=True, slots=True)
class SourceRow:
    """One collection.

    Attributes:
        name: In the path.
        namespace: The collection with its database.
        cells: Its numbers; none if there is a problem.
        problem: Why they are unknown; None if they are not.
    """

    name: str
    namespace: str
    cells: Sequence[CountCell]
    problem: str | None


async def claims_facts(call: PageCall) -> View:
    """Ask for what the screen shows."""
    rows, dead, is_capped = [], 0, False
    for name, source in call.dashboard.surface.claims.items():
        counts, problem = await counts_or_problem(source)
        rows.append(SourceRow(name, source.namespace, cells_of(counts), problem))
        if counts is not None:
            dead += min(counts.dead_letters, MOST_COUNTED - 1)
            is_capped = is_capped or counts.dead_letters >= MOST_COUNTED
    number = f"{grouped(dead)}+ dead letters" if is_capped else counted(dead, "dead letter")
    title = f"{number}, claims" if dead else "Claims"
    return View("claims.html", title, {"rows": rows, "headings": [heading for _, heading, _ in STATES]})


async def counts_or_problem(source: ClaimedCollection) -> tuple[LockCounts | None, str | None]:
    """Return the numbers of a source, or why they cannot be counted."""
    try:
        return await source.counts(), None
    except MissingIndexError as error:  # The others have their numbers.
        return None, str(error)


def cells_of(counts: LockCounts | None) -> Sequence[CountCell]:
    """Return the numbers as they are shown."""
    if counts is None:
        return ()
    return [
        _cell(heading, getattr(counts, attribute), look if getattr(counts, attribute) else "")
        for attribute, heading, look in STATES
    ]


def _cell(heading: str, number: int, look: str) -> CountCell:
    is_capped = number >= MOST_COUNTED
    return CountCell(heading, grouped(MOST_COUNTED - 1) + "+" if is_capped else grouped(number), look, not number)
