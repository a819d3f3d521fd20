"""The screen Job: all that is known of one job, and why it does not run now."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...diagnosis.parents_and_children import MOST_CHILDREN, BlockNow, blocks_of, why_cancelled
from ...diagnosis.reasons import Reason
from ...error_types import BrokenDocumentError
from ...jobs.job import Job, JobStatus
from ...jobs.job_parts import NO_CLAIM
from ...jobs.job_query import JobFilter
from ...jobs.job_selector import LIVE
from ...jobs.minutes import Figures, totals_by_name
from ...store.driver.types import ObjectId
from ..answers import NOT_FOUND, RefusedRequestError
from ..hooks import READ
from ..words.reason_sentences import sentence_of
from .job_facts import facts_of_blocks, facts_of_job, facts_of_run
from .job_progress import RunProgress, progress_of, time_left
from .job_timeline import timeline
from .job_values import JobValue, job_values, shown_errors, shown_reason
from .jobs_screen import state_of
from .page_actions import OF_JOBS, RESUME
from .schedule_times import schedule_view
from .screen import PageCall, View
from .shown_values import HIDDEN as HOOK_FAILED

_SECOND: Final = timedelta(seconds=1)
_DIGITS_OF_ID: Final = 24


@dataclass(frozen=True, slots=True)
class Banner:
    """The line below the title: what keeps the job from running, or how its run is.

    Attributes:
        look: Its class: "runs", "bad", "off" for what is ordinary, or "" for what needs a look.
        sentences: What it says.
        progress: How far the run is; None where that is not known.
        runs_for: The seconds that the run has taken; None for a job that does not run.
        left: About how long it goes on; None where that is not known.
    """

    look: str
    sentences: Sequence[str]
    progress: RunProgress | None = None
    runs_for: float | None = None
    left: str | None = None


async def job_facts(call: PageCall) -> View:
    """Ask for what the screen shows. Raises RefusedRequestError (404) for a job that the caller may not see, too."""
    text = call.request.path_params["id"]
    if len(text) != _DIGITS_OF_ID or not ObjectId.is_valid(text):
        raise RefusedRequestError(404, NOT_FOUND)
    try:
        job = await call.monque.get_job(text)
    except BrokenDocumentError as error:
        values = {"id": text.lower(), "problem": error.problem}
        return View("broken_document.html", "Not a job", values, 409)
    # In this order: as many questions to the hook for no job as for one that the caller may not see.
    if not await call.may(READ, job) or job is None:
        raise RefusedRequestError(404, NOT_FOUND)
    return await _view_of(job, call)


async def _view_of(job: Job, call: PageCall) -> View:
    hooks, context, now = call.dashboard.hooks, call.context, call.now
    values = await job_values(job, hooks, context)
    errors = await shown_errors(job, hooks, context)
    reason = await shown_reason(job, hooks, context)
    instances = await call.monque.instances() if job.status is JobStatus.PROCESSING else ()
    usual = totals_by_name(await call.monque.get_minutes()).get(job.name)
    reasons = await call.monque.why_not_now(job)
    banner = banner_of(job, reasons, values, (now - _since(job, now)) / _SECOND)
    status = state_of(job, now)
    blocks, has_more = await _blocks_of(job, call)
    is_paused = any(one.kind == "paused" for one in reasons)
    percent = None if banner is None or banner.progress is None else banner.progress.percent
    return View(
        "job.html",
        f"{status if percent is None else f'{percent} %'} · {job.name}",
        {
            "job": job,
            "id": str(job.id),
            "status": status,
            "is_paused": is_paused,
            "may_resume": is_paused and await call.may(RESUME.permission, {"name": job.name}),
            "attempt": attempt_of(job),
            "banner": banner,
            "happened": timeline(job, errors, reason, now),
            "values": values,
            "hidden": HOOK_FAILED,
            "run_facts": facts_of_run(job, instances, now),
            "blocks": facts_of_blocks(job, blocks, is_capped=has_more),
            "facts": facts_of_job(job, call.dashboard.surface.filters, now, await _who_cancelled(job, call)),
            "schedule": None if job.schedule is None else schedule_view(job.schedule, now),
            "usual": usual,
            "runs": _runs_of(usual),
            "actions": [one for one in OF_JOBS if status in one.states and await call.may(one.permission, job)],
        },
    )


async def _blocks_of(parent: Job, call: PageCall) -> tuple[Sequence[BlockNow], bool]:
    """Return the blocks of a parent with the live children that the caller may see, and whether there are more."""
    if parent.nursery is None:
        return (), False
    page = await call.monque.get_jobs_with_cursor(filter=JobFilter(parent=parent.id, status=LIVE), limit=MOST_CHILDREN)
    return blocks_of(parent, [child for child in page.jobs if await call.may(READ, child)]), page.has_next_page


async def _who_cancelled(job: Job, call: PageCall) -> Reason | None:
    found = why_cancelled(job, None)
    if found is None or job.child is None or job.child.parent is None:
        return found
    with suppress(BrokenDocumentError):
        return why_cancelled(job, await call.monque.get_job(job.child.parent))
    return found


def _since(job: Job, now: datetime) -> datetime:
    return (job.claim or NO_CLAIM).since or now


def _runs_of(usual: Figures | None) -> int:
    return 0 if usual is None else usual.done + usual.failed_attempts


def attempt_of(job: Job) -> str | None:
    """Return which attempt runs, or how many there were; None before the first."""
    if not job.attempts:
        return None
    if job.status is JobStatus.PROCESSING:
        return f"attempt {job.attempts:,}"
    return f"{job.attempts:,} attempt{'' if job.attempts == 1 else 's'}"


_ORDINARY: Final = ("not_due", "is_due", "is_served")


def banner_of(job: Job, reasons: Sequence[Reason], values: Sequence[JobValue], elapsed: float) -> Banner | None:
    """Return the line below the title; None for a job that is done."""
    sentences = [sentence_of(one) for one in reasons]
    match job.status:
        case JobStatus.COMPLETED:
            return None
        case JobStatus.FAILED:
            return Banner("bad", sentences)
        case JobStatus.CANCELLED:
            return Banner("off", sentences)
        case JobStatus.PENDING:
            # Loud only if something is wrong: most jobs are just not due yet, or have their turn in a moment.
            return Banner("off" if all(one.kind in _ORDINARY for one in reasons) else "", sentences)
        case JobStatus.PROCESSING:
            return _banner_of_run(job, reasons, sentences, values, elapsed)


def _banner_of_run(
    job: Job, reasons: Sequence[Reason], sentences: Sequence[str], values: Sequence[JobValue], elapsed: float
) -> Banner:
    runs_for = None if (job.claim or NO_CLAIM).since is None else max(0.0, elapsed)
    if any(one.kind in ("is_silent", "holder_gone") for one in reasons):
        return Banner("", sentences, runs_for=runs_for)
    plain = next((one.plain for one in values if one.key == "progress"), None)
    progress = progress_of(plain)
    if plain is None or (progress.share is None and not progress.words):
        return Banner("runs", sentences, runs_for=runs_for)
    # Beside the numbers, a sentence stands only for what is unusual.
    unusual = [sentence_of(one) for one in reasons if one.kind != "runs"]
    # An earlier attempt may have reported it, and a document does not say when it was reported.
    left = time_left(progress, elapsed) if job.attempts == 1 else None
    return Banner("runs", unusual, progress, runs_for, left)
