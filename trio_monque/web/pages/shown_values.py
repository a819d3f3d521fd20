"""Values and errors of programs in lists: through the hooks of the host, each in a short text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import anyio.to_thread

from ...jobs.job import Job
from ...log import logger_of
from ..hooks import Hooks, ValueOf

logger = logger_of("web")

HIDDEN: Final = "hidden (the hook failed)"


async def short_values(
    wanted: Sequence[tuple[Job, str]], longest: int, hooks: Hooks, context: Any
) -> Mapping[tuple[Any, str], str]:
    """Return these fields of jobs in one line each, by id and field; nothing for a field that a job does not have.

    Args:
        wanted: Each job with the name of the field: "result" or "progress".
        longest: Characters of one.
        hooks: Of the host.
        context: Of the request.
    """
    values = [ValueOf(job, getattr(job, name), name) for job, name in wanted if getattr(job, name) is not None]
    return {(one.job.id, one.field_name): await _short(one, longest, hooks, context) for one in values}


async def _short(value: ValueOf, longest: int, hooks: Hooks, context: Any) -> str:
    try:
        (shown,) = await hooks.values_of([value], context)
        # In a thread: a document may have 16 MiB.
        return await anyio.to_thread.run_sync(_in_one_line, shown, longest)
    except Exception:  # A hook may raise anything, and what it was to hide must not be shown instead.
        logger.exception("a hook failed for the %s of job %s", value.field_name, value.job.id)
        return HIDDEN


def _in_one_line(value: Any, longest: int) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= longest else text[: longest - 1] + "…"


async def shown_text(job: Job | None, text: str | None, hooks: Hooks, context: Any) -> str | None:
    """Return what is shown of a text of an error; None for none. `job` is None for the error of a dead letter."""
    try:
        return await hooks.error_text_of(job, text, context)
    except Exception:
        logger.exception("a hook failed for an error of %s", "a dead letter" if job is None else f"job {job.id}")
        return HIDDEN
