"""An action on a selection of jobs: how many there are, the question before it, its progress, and its result."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

import click

from ...client.bulk import MOST_IN_A_BATCH
from ...jobs.bulk_changes import BulkResult
from ...jobs.job import Job, JobStatus
from ...jobs.job_query import JobFilter, JobSort
from ...jobs.job_selector import JobSelector, Selection
from ...log import logger_of
from ...process_signals import Repeats
from ...store.jobs.job_json import job_as_json
from ...store.reads.selection_counts import SelectionCount, count_selected
from ..confirmation import confirm, require_terminal
from ..exit_statuses import CHECK_FAILED, INTERRUPTED, SUCCEEDED
from ..output import counted, duration, print_json, print_records, warn
from .access import JobsAccess

EXAMPLES: Final = 5
"""Jobs that a dry run shows."""


@dataclass(frozen=True, kw_only=True)
class BulkAction:
    """What is done to a selection.

    Attributes:
        verb: Such as "cancel".
        done: Such as "cancelled".
        possible: The statuses in which a selection can be changed.
        call: Does it; it takes a selection and `on_progress`.
        spread: Seconds over which the jobs become due; None if it does not change when they are due.
    """

    verb: str
    done: str
    possible: Collection[JobStatus]
    call: Callable[..., BulkResult]
    spread: float | None = None


def words_of(statuses: Collection[JobStatus]) -> str:
    """Return the statuses as words before "job": such as "failed or cancelled "; nothing for all."""
    named = [status for status in JobStatus if status in statuses]
    return "" if len(named) == len(JobStatus) else f"{' or '.join(named)} "


def act_on_selection(
    access: JobsAccess, selection: Selection, action: BulkAction, *, is_confirmed: bool, is_dry: bool
) -> int:
    """Ask, do it, print the result, and return the exit status. A dry run only looks."""
    selector = JobSelector(**selection)
    for status in selector.statuses or ():
        if status not in action.possible:
            possible = f"{words_of(action.possible)}jobs only"
            raise click.UsageError(f"--status {status}: a selection can {action.verb} {possible}")
    statuses = selector.among(action.possible)
    if is_dry:
        _print_dry_run(access, action, _Number.of(access, selector, statuses), _examples(access, selection, statuses))
        return SUCCEEDED
    if not is_confirmed:
        require_terminal()  # Also where nothing is selected now: a script fails at once, and not on some days.
        number = _Number.of(access, selector, statuses)
        if str(number.selected) == "0":
            return _print_result(access, action, BulkResult(), statuses)
        confirm(f"{action.verb} {number.in_words(access)}?", yes=False)
    return _act(access, selection, action, statuses)


# --- The look before ---


@dataclass(frozen=True, slots=True)
class _Number:
    """How many jobs are selected, and how many of them run: deleted, these lose their claims."""

    selected: SelectionCount
    running: SelectionCount

    @classmethod
    def of(cls, access: JobsAccess, selector: JobSelector, statuses: Sequence[JobStatus]) -> _Number:
        running = [status for status in statuses if status is JobStatus.PROCESSING]
        return cls(
            count_selected(access.jobs, selector, statuses),
            count_selected(access.jobs, selector, running) if running else SelectionCount(0),
        )

    def in_words(self, access: JobsAccess) -> str:
        jobs = f"{self.selected} job of" if str(self.selected) == "1" else f"{self.selected} jobs of"
        running = "" if str(self.running) == "0" else f", {str(self.running).removesuffix(' of')} of them running"
        return f"{jobs} {access.name}{running}"


def _examples(access: JobsAccess, selection: Selection, statuses: Sequence[JobStatus]) -> Sequence[Job]:
    by_name = selection.get("name") is not None
    chosen: Selection = {**selection, "status": statuses}
    order = JobSort(by="next_run_at") if by_name else JobSort(by="updated_at", direction="desc")  # Served by an index.
    return access.client.get_jobs_with_cursor(limit=EXAMPLES, filter=JobFilter(**chosen), sort=order).jobs


def _print_dry_run(access: JobsAccess, action: BulkAction, number: _Number, examples: Sequence[Job]) -> None:
    if access.as_json:
        print_json(
            {
                "action": action.verb,
                "collection": access.name,
                "dry_run": True,
                "count": number.selected.number,
                "is_capped": number.selected.is_capped,
                "running": number.running.number,
                "examples": [job_as_json(job, is_light=True) for job in examples],
            }
        )
        return
    click.echo(f"would {action.verb} {number.in_words(access)}{', such as:' if examples else ''}")
    rows = [
        {
            "id": str(job.id),
            "name": job.name,
            "status": job.status,
            "created": job.created_at,
            "reason": job.fail_reason,
        }
        for job in examples
    ]
    if rows:
        print_records(rows, "")


# --- The action ---


def _act(access: JobsAccess, selection: Selection, action: BulkAction, statuses: Collection[JobStatus]) -> int:
    done = BulkResult()
    with _signals() as signals, _progress(action.done) as show, _quiet_store():

        def on_progress(result: BulkResult) -> None:
            nonlocal done
            done = result
            show(result.count)
            if signals:
                raise KeyboardInterrupt

        try:
            done = action.call(on_progress=on_progress, **selection)
        except KeyboardInterrupt:
            is_cut = len(signals) != 1
        else:
            return _print_result(access, action, done, statuses)
    _print_result(access, action, done, statuses, is_interrupted=True)
    cut = f"up to {MOST_IN_A_BATCH:,} more may be {action.done}; " if is_cut else ""
    warn(f"interrupted: {cut}the rest of the selection is unchanged")
    return INTERRUPTED


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Collect signals: the first Ctrl-C or SIGTERM ends the action after its batch, the second one at once."""
    came: list[int] = []

    repeats = Repeats()

    def note(number: int, frame: FrameType | None) -> None:
        if repeats.is_repeat(number):
            return
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = {one: signal.signal(one, note) for one in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


@contextmanager
def _progress(done: str) -> Iterator[Callable[[int], None]]:
    """Return what shows the number so far, in one line of a terminal, which is removed at the end."""
    is_shown = sys.stderr is not None and sys.stderr.isatty()

    def show(number: int) -> None:
        if is_shown:
            click.echo(f"\r{number:,} {done} ...", err=True, nl=False)

    try:
        yield show
    finally:
        if is_shown:
            click.echo("\r\033[K", err=True, nl=False)


@contextmanager
def _quiet_store() -> Iterator[None]:
    """Keep documents that are not jobs out of the log: the result lists them."""
    logger = logger_of("store")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _print_result(
    access: JobsAccess,
    action: BulkAction,
    result: BulkResult,
    statuses: Collection[JobStatus],
    *,
    is_interrupted: bool = False,
) -> int:
    if access.as_json:
        print_json(
            {
                "action": action.verb,
                "collection": access.name,
                "count": result.count,
                **({} if action.spread is None else {"spread": action.spread}),
                "refused": result.refused,
                "unknown": result.unknown,
                "interrupted": is_interrupted,
                "errors": [{"id": one.job_id, "reason": one.reason} for one in result.errors],
            }
        )
    else:
        is_empty = not (result.count or result.refused or result.unknown or is_interrupted)
        why = f": no {words_of(statuses)}job matches" if is_empty else ""
        due = f", due within {duration(action.spread)}" if result.count and action.spread else ""
        click.echo(f"{action.done} {counted(result.count, 'job')} of {access.name}{due}{why}")
    for one in result.errors:
        warn(f"trio-monque: cannot {action.verb} {one.job_id}: {one.reason}")
    if result.refused > len(result.errors):
        warn(f"trio-monque: cannot {action.verb} {result.refused - len(result.errors):,} more")
    if result.unknown:
        more = counted(result.unknown, "more job")
        warn(f"trio-monque: {more} may be {action.done}: an answer from the database was lost")
    return CHECK_FAILED if result.refused or result.unknown else SUCCEEDED
