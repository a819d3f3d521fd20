"""The words of the terminal for job nurseries: the blocks of a parent, and who cancelled a child."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ...client.sync_monque import SyncMonque
from ...diagnosis.parents_and_children import MOST_CHILDREN, BlockNow, blocks_of, why_cancelled
from ...diagnosis.reasons import Reason
from ...error_types import BrokenDocumentError
from ...jobs.job import Job
from ...jobs.job_query import JobFilter
from ...jobs.job_selector import LIVE
from ...jobs.nursery_scopes import has_had_scope
from ...store.driver.types import ObjectId
from ..output import due, moment

MOST_LISTED: Final = 10


@dataclass(frozen=True, slots=True)
class JobFamily:
    """What `show` prints about the job nurseries of a job.

    Attributes:
        parent: Its id, if it has opened a job nursery, or stored a step as workflows do.
        blocks: The blocks with live children, and those that have failed.
        is_capped: Whether there are more live children than those in the blocks.
        cancelled: Who cancelled the job, if it is a child.
        paused: The paused names.
    """

    parent: ObjectId | None = None
    blocks: Sequence[BlockNow] = ()
    is_capped: bool = False
    cancelled: Reason | None = None
    paused: Collection[str] = ()


def family_of(client: SyncMonque, job: Job) -> JobFamily:
    """Read it from the database: no read for a job without nurseries, a few reads otherwise."""
    blocks: Sequence[BlockNow] = ()
    is_capped = False
    paused: Collection[str] = ()
    if job.nursery is not None:
        page = client.get_jobs_with_cursor(filter=JobFilter(parent=job.id, status=LIVE), limit=MOST_CHILDREN)
        blocks, is_capped = blocks_of(job, page.jobs), page.has_next_page
        paused = client.paused() if any(one.pending for one in blocks) else ()
    parent: Job | None = None
    if job.child is not None and job.child.parent is not None and why_cancelled(job, None) is not None:
        with suppress(BrokenDocumentError):
            parent = client.get_job(job.child.parent)
    own = job.id if has_had_scope(job) else None
    return JobFamily(own, blocks, is_capped, why_cancelled(job, parent), paused)


def family_as_json(family: JobFamily) -> dict[str, Any]:
    """Return what `show --json` has beside the attributes of the job."""
    cancelled = family.cancelled
    return {
        "blocks": [
            {
                "block": one.key,
                "running": [str(child.id) for child in one.running],
                "pending": [str(child.id) for child in one.pending],
                "failed_by": [str(child) for child in one.failed_by],
            }
            for one in family.blocks
        ],
        "has_more_children": family.is_capped,
        "cancelled_by": None if cancelled is None else _SENTENCES[cancelled.kind](cancelled),
    }


def lines_of_blocks(family: JobFamily, now: datetime) -> Iterator[str]:
    """Yield a line for each block, and how to list the children."""
    for one in family.blocks:
        states = []
        if one.running:
            holders = _listed(one.holders)
            states.append(f"{len(one.running):,} running" + (f" on {holders}" if holders else ""))
        if one.pending:
            states.append(f"{len(one.pending):,} pending ({_listed(_names(one.pending, family.paused, now))})")
        if one.failed_by:
            states.append(f"failed by {_listed([str(child) for child in one.failed_by])}")
        yield f"block {one.key!r}: {', '.join(states)}"
    if family.is_capped:
        yield "and more live children"
    if family.parent is not None:
        yield f"all that it has started: trio-monque jobs --parent {family.parent}"


def sentence_of_cancellation(family: JobFamily) -> str | None:
    """Return who cancelled the child, or asked it to end; None for other jobs."""
    return None if family.cancelled is None else _SENTENCES[family.cancelled.kind](family.cancelled)


def _of_failure(reason: Reason) -> str:
    return f"by the failure of job {_listed([str(one) for one in reason.values['jobs']])} in its block"


_SENTENCES: Final[Mapping[str, Callable[[Reason], str]]] = {
    "by_caller": lambda _: "by a caller",
    "by_start_by": lambda reason: f"by its start_by: no run had begun by {moment(reason.values['start_by'])}",
    "by_deletion": lambda _: "by the deletion of its parent",
    "by_failure": _of_failure,
    "by_run": lambda reason: f"by run {reason.values['run']:,} of its parent, or by the end of that run",
}


def _names(children: Sequence[Job], paused: Collection[str], now: datetime) -> Iterator[str]:
    """Yield their names, each with what it waits for: its pause, or the time at which the first is due."""
    first: dict[str, datetime] = {}
    for child in children:
        first[child.name] = min(child.next_run_at, first.get(child.name, child.next_run_at))
    for name, at in sorted(first.items()):
        if name in paused:
            yield f"{name}, which is paused"
        else:
            yield name if at <= now else f"{name}, {due(at, now)}"


def _listed(given: Iterable[str]) -> str:
    texts = list(given)
    more = len(texts) - MOST_LISTED
    return ", ".join(texts[:MOST_LISTED]) + (f" and {more:,} more" if more > 0 else "")
