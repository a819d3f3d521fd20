"""What can be done from a page: the words, what `authorize` is asked for, and whether a page asks first. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...client.bulk import DEFAULT_SPREAD
from ..words.lengths import counted, grouped


@dataclass(frozen=True, kw_only=True, slots=True)
class PageAction:
    """One thing that can be done.

    Attributes:
        key: In forms and URLs.
        label: Of its button.
        label_of_many, label_of_all: The same for chosen jobs, and for all that match; empty for the usual words.
        permission: What `authorize` is asked for.
        bulk_permission: The same for all jobs that match; None where that is not offered.
        states: The jobs that it can be done to, as people call them.
        asks: A page asks first, also for one job.
        is_danger: It cannot be undone.
        of: What stands between the label and its jobs.
        before: What it means, for the page that asks.
        before_all: The same for all jobs that match, where that is something else.
        past: What was done, behind "214 jobs".
    """

    key: str
    label: str
    permission: str
    states: frozenset[str]
    before: str
    past: str
    before_all: str = ""
    bulk_permission: str | None = None
    label_of_many: str = ""
    label_of_all: str = ""
    asks: bool = False
    is_danger: bool = False
    of: str = ""


RETRY: Final = PageAction(
    key="retry",
    label="Retry",
    permission="retry",
    bulk_permission="retryBulk",
    states=frozenset({"failed", "cancelled"}),
    before="Each becomes due at once, with all its attempts.",
    before_all=f"They become due evenly over {DEFAULT_SPREAD:.0f} seconds, with all their attempts.",
    past="requeued",
)
CANCEL: Final = PageAction(
    key="cancel",
    label="Cancel",
    permission="cancel",
    bulk_permission="cancelBulk",
    states=frozenset({"due", "later"}),
    before="None of them starts. A cancelled job can be retried.",
    past="cancelled",
)
CANCEL_RUN: Final = PageAction(
    key="cancel-run",
    label="Cancel the run",
    label_of_many="Cancel the runs",
    label_of_all="Cancel all runs",
    permission="cancelRunning",
    bulk_permission="cancelRunningBulk",
    states=frozenset({"running"}),
    before="Its handler is cancelled where it waits, and what it has done stays done. A cancelled job can be retried.",
    past="asked to end",
    asks=True,
    of="of ",
)
RUN_NOW: Final = PageAction(
    key="run-now",
    label="Run now",
    permission="reschedule",
    states=frozenset({"later"}),
    before="It becomes due at once.",
    past="due now",
)
MOVE: Final = PageAction(
    key="move",
    label="Move",
    permission="reschedule",
    states=frozenset({"due", "later"}),
    before="It becomes due at that time, or at once if it has passed. A schedule continues by its expression after "
    "this run.",
    past="moved",
    asks=True,
)
DELETE: Final = PageAction(
    key="delete",
    label="Delete",
    permission="delete",
    bulk_permission="deleteBulk",
    states=frozenset({"due", "later", "failed", "done", "cancelled"}),
    before="They are deleted, with their results and errors. This cannot be undone.",
    past="deleted",
    asks=True,
    is_danger=True,
)
PAUSE: Final = PageAction(
    key="pause",
    label="Pause",
    permission="pause",
    states=frozenset(),
    before="No instance starts jobs of this name until it is resumed. Running jobs continue.",
    past="paused",
    asks=True,
)
RESUME: Final = PageAction(
    key="resume",
    label="Resume",
    permission="resume",
    states=frozenset(),
    before="Instances start its jobs again.",
    past="resumed",
)

READMIT: Final = PageAction(
    key="readmit",
    label="Readmit",
    permission="readmit",
    states=frozenset(),
    before="Its dead letters are claimable again, with all their attempts.",
    past="claimable again",
)

OF_JOBS: Final[Sequence[PageAction]] = (RETRY, RUN_NOW, MOVE, CANCEL, CANCEL_RUN, DELETE)
"""In the order of their buttons."""
OF_SCHEDULES: Final[Sequence[PageAction]] = (RUN_NOW, MOVE)
PAGE_ACTIONS: Final[Mapping[str, PageAction]] = {one.key: one for one in (*OF_JOBS, PAUSE, RESUME, READMIT)}


def jobs_in_words(number: int, *, is_capped: bool = False) -> str:
    """Return a number of jobs, such as "214 jobs" or "more than 100,000 jobs"."""
    return f"more than {grouped(number)} jobs" if is_capped else counted(number, "job")


def notice_of(done: str | None, number: str | None, refused: str | None) -> str | None:
    """Return the sentence about what was done, from the query of the page that is shown after it; None for none.

    Anybody can make a link with any query, so only numbers of it are printed.
    """
    action = PAGE_ACTIONS.get(done or "")
    if action is None:
        return None
    if action in (PAUSE, RESUME):
        return f"The name is {action.past}."
    count, left = _number(number), _number(refused)
    are = "is" if count == 1 else "are"
    noun = "document" if action is READMIT else "job"
    sentence = f"{counted(count, noun)} {are} {action.past}." if count or left else f"No {noun} was left to change."
    return f"{sentence} {counted(left, 'job')} could not be changed: check their state." if left else sentence


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() and len(text) < 12 else 0
