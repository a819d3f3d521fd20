"""The screen Errors: failed jobs in groups, each of one error."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import quote_plus

from ...jobs.failure_groups import MINUTES, ErrorGroup, ErrorGroups
from ...jobs.job_selector import LONGEST_TEXT
from ...store.reads.diagnosis.jobs import MOST_READ
from ..answers import RefusedRequestError
from ..api.query import is_possible_name
from ..words.lengths import grouped
from .charts import Spark, spark
from .screen import PageCall, View

SPANS_OF_ERRORS: Final[Mapping[str, tuple[timedelta | None, str]]] = {
    "1h": (timedelta(hours=1), "in the last hour"),
    "24h": (timedelta(hours=24), "in the last 24 hours"),
    "all": (None, "of those that are kept"),
}
"""How far back the screen looks, by the text in the URL: each with what a sentence calls it."""
USUAL_SPAN: Final = "24h"

MOST_GROUPS: Final = 100
MOST_NAMES: Final = 4
"""Groups of a page, and names of a group."""

LONGEST_SELECTION: Final = 3_000
"""Characters of the beginning of an error in a URL, which is refused above 8 KiB."""

# Halves of characters, which no URL can have, and what stands for bytes that were not text.
_UNSENDABLE: Final = re.compile("[\ud800-\udfff\ufffd]")

NOTHING: Final = ErrorGroups(groups=(), looked_at=0)


@dataclass(frozen=True, slots=True)
class GroupRow:
    """One group.

    Attributes:
        group: What the jobs have in common.
        parts: Its error, with each variable part as an item of its own, "…"; None where errors are hidden.
        names: The first names with their numbers.
        more_names: How many more there are.
        shape: The minutes of the last hour.
        query: Of the screen Jobs, which shows its jobs; None if no filter selects them.
        is_new: Its first job that is kept failed within the last hour.
    """

    group: ErrorGroup
    parts: Sequence[str] | None
    names: Sequence[tuple[str, int]]
    more_names: int
    shape: Spark
    query: Mapping[str, str] | None
    is_new: bool = False


async def errors_facts(call: PageCall) -> View:
    """Ask for what the screen shows."""
    span, name = call.query("since") or USUAL_SPAN, call.query("name")
    if span not in SPANS_OF_ERRORS:
        raise RefusedRequestError(400, f"The time {span!r} must be one of {', '.join(SPANS_OF_ERRORS)}")
    back, words = SPANS_OF_ERRORS[span]
    found = NOTHING
    if name is None or is_possible_name(name):
        since = None if back is None else call.now - back
        found = await call.monque.get_error_groups(since=since, name=name, limit=MOST_READ)
    # A hook changes the text of one job. What many have in common would show what it hides.
    is_shown = call.dashboard.hooks.show_errors is True
    # Of the last hour alone, or of a part, it is not known whether there was one before.
    new_since = None if span == "1h" or found.is_capped else call.now - timedelta(hours=1)
    chosen = {
        "status": "failed",
        **({} if back is None else {"since": span}),
        **({} if name is None else {"name": name}),
    }
    return View(
        "errors.html",
        _title(found),
        {
            "rows": [row_of(one, chosen, is_shown=is_shown, new_since=new_since) for one in found.groups[:MOST_GROUPS]],
            "more_groups": max(0, len(found.groups) - MOST_GROUPS),
            "number": found.looked_at,
            "is_capped": found.is_capped,
            "most": MOST_READ,
            "span": span,
            "spans": {key: words for key, (_, words) in SPANS_OF_ERRORS.items()},
            "words": words,
            "name": name,
            "hides_errors": not is_shown,
            "may_retry": await call.may("retryBulk", {"status": "failed"}),
        },
    )


def _title(found: ErrorGroups) -> str:
    if not found.looked_at:
        return "Errors"
    return f"{grouped(found.looked_at)}{'+' if found.is_capped else ''} failed, errors"


def row_of(
    group: ErrorGroup, chosen: Mapping[str, str], *, is_shown: bool, new_since: datetime | None = None
) -> GroupRow:
    """Return the row of a group.

    Args:
        group: The group.
        chosen: The query of the screen Jobs for the failed jobs of all groups.
        is_shown: Whether texts of errors are shown.
        new_since: From when on an error counts as new; None if that is not known.
    """
    begin = selected_by(group.prefix) if is_shown else ""
    return GroupRow(
        group=group,
        parts=parts_of(group.error) if is_shown else None,
        names=list(group.names.items())[:MOST_NAMES],
        more_names=max(0, len(group.names) - MOST_NAMES),
        shape=spark((0,) * MINUTES, group.by_minute),
        query={**chosen, "error": begin} if begin else None,
        is_new=new_since is not None and group.first >= new_since,
    )


def parts_of(error: str) -> Sequence[str]:
    """Return an error in parts, so that a page can print the ellipses in a colour of their own."""
    return [part for part in re.split("(…)", error) if part]


def selected_by(prefix: str) -> str:
    """Return the beginning of errors by which the screen Jobs can select them; "" if there is none.

    It may be shorter than what the errors have in common, and so select others, too.
    """
    text = _UNSENDABLE.split(prefix, maxsplit=1)[0][:LONGEST_TEXT]
    while len(quote_plus(text)) > LONGEST_SELECTION:
        text = text[: len(text) // 2]
    return text
