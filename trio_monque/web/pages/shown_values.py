"""Values of programs as pages show them: through the hooks of the host, as text of JSON, cut where they are long."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...jobs.job import Job
from ...log import logger_of
from ..hooks import Hooks, ValueOf

logger = logger_of("web")

HIDDEN: Final = "hidden (the hook failed)"
LONGEST_SHOWN: Final = 64 * 1024
"""Characters of a value on a page. The JSON of the job has all of it."""


@dataclass(frozen=True, slots=True)
class ShownValue:
    """A value as text.

    Attributes:
        json: The text of JSON, in lines, at most LONGEST_SHOWN characters; None if a hook failed.
        is_cut: There is more of it.
        size: The number of characters of all of it, in one line.
    """

    json: str | None
    is_cut: bool = False
    size: int = 0

    def short(self, longest: int) -> str:
        """Return it in one line, cut to a number of characters."""
        if self.json is None:
            return HIDDEN
        text = " ".join(self.json[: 4 * longest].split())
        return text if len(text) <= longest else text[: longest - 1] + "…"


async def shown_values(
    wanted: Sequence[tuple[Job, str]], hooks: Hooks, context: Any
) -> Mapping[tuple[Any, str], ShownValue]:
    """Return what is shown of these fields of jobs, by id and field; nothing for a field that a job does not have.

    Args:
        wanted: Each job with the name of the field: "payload", "result", "progress" or "saved".
        hooks: Of the host.
        context: Of the request.
    """
    found = {}
    for job, name in wanted:
        value = job.data if name == "payload" else getattr(job, name)
        if value is not None:
            found[job.id, name] = await _shown(ValueOf(job, value, name), hooks, context)
    return found


async def _shown(value: ValueOf, hooks: Hooks, context: Any) -> ShownValue:
    try:
        (shown,) = await hooks.values_of([value], context)
        text = json.dumps(shown, ensure_ascii=False, indent=2)
        size = len(json.dumps(shown, ensure_ascii=False, separators=(",", ":")))
    except Exception:  # A hook may raise anything, and what it was to hide must not be shown instead.
        logger.exception("a hook failed for the %s of job %s", value.field_name, value.job.id)
        return ShownValue(None)
    return ShownValue(text[:LONGEST_SHOWN], len(text) > LONGEST_SHOWN, size)


async def shown_text(job: Job | None, text: str | None, hooks: Hooks, context: Any) -> str | None:
    """Return what is shown of a text of an error; None for none. `job` is None for the error of a dead letter."""
    try:
        return await hooks.error_text_of(job, text, context)
    except Exception:
        logger.exception("a hook failed for an error of %s", "a dead letter" if job is None else f"job {job.id}")
        return HIDDEN
