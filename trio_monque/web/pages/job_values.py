"""The values of a program in a job, and the texts of its errors, as its page may show them: hooks first, then colours.

A hook that raises hides what it was asked about, and nothing else: an operator still needs the rest of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import anyio.to_thread

from ...jobs.job import Job
from ...log import logger_of
from ..hooks import Hooks, ValueOf
from .coloured_json import ColouredJson, coloured
from .shown_values import HIDDEN as HOOK_FAILED
from .shown_values import shown_text
from .traceback_lines import LONGEST, TracebackPart, traceback_parts

logger = logger_of("web")

HIDDEN: Final = "hidden"
LONGEST_SHOWN: Final = 64 * 1024
"""Characters of a value on a page. The JSON of the job has all of it."""

MOST_ERRORS: Final = 20
"""Errors of one job in its page: this library keeps five, and another program may have written thousands."""


@dataclass(frozen=True, slots=True)
class JobValue:
    """A value in the page.

    Attributes:
        key: Its name in the API, and of its section in the URL: "payload", "result", "saved", "steps" or "progress".
        title: Of the section.
        json: What is printed; None for a hook that failed.
        plain: The same as a value of JSON; None for a hook that failed.
    """

    key: str
    title: str
    json: ColouredJson | None
    plain: Any


@dataclass(frozen=True, slots=True)
class ShownText:
    """A text of an error.

    Attributes:
        text: It, or a word for why it is hidden; None if there is none.
        is_hidden: Whether the text is such a word.
    """

    text: str | None
    is_hidden: bool = False


NO_TEXT: Final = ShownText(None)


@dataclass(frozen=True, slots=True)
class ShownError:
    """An error in the history of a job. What its document does not say is None.

    Attributes:
        at: When the attempt failed.
        attempt: Which one it was.
        by: The instance.
        ran: The seconds that the run took.
        error: The message.
        parts: The traceback.
        is_cut: Whether only the beginning of the traceback is here.
    """

    at: datetime | None
    attempt: int | None
    by: str | None
    ran: float | None
    error: ShownText
    parts: Sequence[TracebackPart]
    is_cut: bool


async def job_values(job: Job, hooks: Hooks, context: Any) -> Sequence[JobValue]:
    """Return the values that the job has; its payload in any case."""
    found = []
    for key, title, value in (
        ("payload", "Payload", job.data),
        ("result", "Result", job.result),
        ("saved", "Saved", job.saved),
        ("steps", "Steps", None if job.nursery is None or not job.nursery.steps else dict(job.nursery.steps)),
        ("progress", "Progress", job.progress),
    ):
        if value is not None or key == "payload":
            found.append(await _shown_value(ValueOf(job, value, key), title, hooks, context))
    return found


async def _shown_value(one: ValueOf, title: str, hooks: Hooks, context: Any) -> JobValue:
    try:
        (plain,) = await hooks.values_of([one], context)
        # In a thread: a document may have 16 MiB.
        json = await anyio.to_thread.run_sync(coloured, plain, LONGEST_SHOWN)
    except Exception:  # Code of the host may raise anything, and return what JSON cannot hold.
        logger.exception("a hook failed for the %s of job %s", one.field_name, one.job.id)
        return JobValue(one.field_name, title, None, None)
    return JobValue(one.field_name, title, json, plain)


async def shown_reason(job: Job, hooks: Hooks, context: Any) -> ShownText:
    """Return why the last attempt failed."""
    return await _shown_text(job, job.fail_reason, hooks, context)


async def shown_errors(job: Job, hooks: Hooks, context: Any) -> Sequence[ShownError]:
    """Return the last errors, oldest first."""
    found = []
    for one in job.errors[-MOST_ERRORS:]:
        at, attempt, by, ran = one.get("at"), one.get("attempt"), one.get("by"), one.get("ran")
        traceback = await _shown_text(job, one.get("traceback"), hooks, context)
        # The words for a hidden text stand once, in place of the message.
        text = "" if traceback.is_hidden or traceback.text is None else traceback.text
        found.append(
            ShownError(
                at if isinstance(at, datetime) else None,
                attempt if type(attempt) is int and attempt >= 0 else None,
                by if isinstance(by, str) else None,
                ran / 1000 if type(ran) is int and ran >= 0 else None,
                await _shown_text(job, one.get("error"), hooks, context),
                traceback_parts(text) if text else (),
                len(text) > LONGEST,
            )
        )
    return found


async def _shown_text(job: Job, text: object, hooks: Hooks, context: Any) -> ShownText:
    if not isinstance(text, str):
        return NO_TEXT
    shown = await shown_text(job, text, hooks, context)
    return ShownText(HIDDEN if shown is None else shown, is_hidden=shown is None or shown == HOOK_FAILED)
