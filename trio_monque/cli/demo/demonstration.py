"""The demo as a trio program: a server, two schedulers, the enqueuers. Signals drain it, then cut it short."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Final, TypedDict

import trio

from ...client.monque import Monque
from ...error_types import InvalidOptionError, MonqueError
from ...jobs.job import JobStatus
from ...process_signals import WithoutRepeats
from ...scheduler.scheduler import run_scheduler
from ..exit_statuses import CHECK_FAILED, INTERRUPTED, SUCCEEDED
from ..run.http_server import Address
from .demo_database import DemoDatabase, open_demo_database
from .file_jobs import digest_file, enqueue_all, find_files, workers
from .printing import print_summary, printed_log, progress_line, say

SCHEDULERS: Final = ("demo-1", "demo-2")
RETRY_INTERVAL: Final = 0.25
"""Seconds. Short, so that a retry happens while the demo runs."""
COUNT_INTERVAL: Final = 0.25
"""Seconds between two counts of the jobs. Each reads all jobs of the demo, which costs little at this size."""
COUNTS_A_LINE: Final = 4
LAST_COUNT_SECONDS: Final = 3.0
ANY_PORT: Final = Address("127.0.0.1", 0)


class DemoOptions(TypedDict):
    """The arguments of `trio-monque demo`; its help says what they mean."""

    folder: Path
    pattern: str
    most_files: int | None
    uri: str | None
    keep: bool
    job_seconds: float
    dashboard: bool
    stay: bool | None


async def demonstrate(options: DemoOptions) -> int:
    """Run the demo; return its exit status."""
    interruption = Interruption()
    status = INTERRUPTED
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, printed_log():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interruption.obey, WithoutRepeats(signals))
            with interruption.scope:
                status = await _perform(options, interruption)
            nursery.cancel_scope.cancel(reason="the demo has ended")
    if interruption.asked:
        say(f"interrupted: {interruption.last_words}")
        return INTERRUPTED
    return status


async def _perform(options: DemoOptions, interruption: Interruption) -> int:
    began = time.monotonic()
    files = await trio.to_thread.run_sync(find_files, options["folder"], options["pattern"], options["most_files"])
    if not files:
        problem = f"no readable file below {options['folder']} matches: give another folder or --pattern"
        raise InvalidOptionError("--pattern", options["pattern"], problem)
    say(f"{len(files):,} files of {options['folder']}")
    async with open_demo_database(options["uri"], keep=options["keep"]) as database:
        monque = Monque(database.database, collection_name=database.jobs, stats_cache_ttl=0)
        try:
            async with _dashboard(database, wanted=options["dashboard"]) as is_shown:
                status = await _run_and_sum_up(database, monque, files, options, interruption, began)
                if is_shown and not interruption.asked and (options["stay"] or _is_watched(options["stay"])):
                    say("the dashboard stays open: press Ctrl-C to end the demo")
                    await interruption.after_the_jobs()
                return status
        finally:
            if interruption.asked:
                interruption.last_words = await _done_and_left(monque, len(files))


async def _run_and_sum_up(
    database: DemoDatabase,
    monque: Monque,
    files: Sequence[Path],
    options: DemoOptions,
    interruption: Interruption,
    began: float,
) -> int:
    await _run_jobs(database, monque, files, options["job_seconds"], interruption)
    if interruption.asked:
        return INTERRUPTED
    jobs = await monque.get_jobs(name=digest_file.name, limit=len(files))
    completed = [job for job in jobs if job.status is JobStatus.COMPLETED]
    status = SUCCEEDED if len(completed) == len(files) else CHECK_FAILED
    print_summary(jobs, len(files), time.monotonic() - began, status)
    return status


@asynccontextmanager
async def _dashboard(database: DemoDatabase, *, wanted: bool) -> AsyncIterator[bool]:
    """Serve a dashboard of the demo's jobs inside, where its extra is installed; give whether there is one."""
    if not wanted or not _has_dashboard():
        yield False
        return
    from ..dashboard.serving import DashboardOptions, serve_until  # Only here: its libraries are extras.

    ending = trio.Event()
    options = DashboardOptions(environment="demo")
    async with trio.open_nursery() as nursery:
        serve = partial(
            serve_until, ending, Monque(database.database, collection_name=database.jobs), ANY_PORT, options
        )
        say(f"dashboard: {await nursery.start(serve)}")
        try:
            yield True
        finally:
            ending.set()


def _has_dashboard() -> bool:
    if all(find_spec(library) for library in ("starlette", "jinja2", "hypercorn")):
        return True
    say("to see it in a browser: python -m pip install starlette jinja2 'hypercorn[trio]'")
    return False


def _is_watched(stay: bool | None) -> bool:  # noqa: FBT001
    """Return whether it is to stay because it runs at a terminal, and no option was given."""
    return stay is None and sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


async def _run_jobs(
    database: DemoDatabase, monque: Monque, files: Sequence[Path], seconds: float, interruption: Interruption
) -> None:
    """Enqueue and run the jobs. Return when all have ended, or the schedulers are drained."""
    async with trio.open_nursery() as nursery:
        run = partial(run_scheduler, database.database, workers, collection_name=database.jobs)
        schedulers = [
            await nursery.start(partial(run, instance_id=name, base_retry_interval=RETRY_INTERVAL))
            for name in SCHEDULERS
        ]
        with trio.CancelScope() as interruption.intake:
            enqueued = trio.Event()
            async with trio.open_nursery() as watching:
                watching.start_soon(_show_progress, monque, len(files), enqueued)
                await enqueue_all(monque, files, seconds)
                enqueued.set()
        interruption.intake = None
        for scheduler in schedulers:
            scheduler.drain()


async def _show_progress(monque: Monque, files: int, enqueued: trio.Event) -> None:
    """Count the jobs again and again, and print some of the counts. Return when all are enqueued and have ended."""
    began = trio.current_time()
    for number in count(1):
        is_complete = enqueued.is_set()  # Before the count, which may be from a moment before the last job.
        counts = await monque.get_queue_stats(name=digest_file.name)
        has_ended = is_complete and counts.pending == counts.processing == 0
        if has_ended or number % COUNTS_A_LINE == 0:
            say(progress_line(counts, files, trio.current_time() - began))
        if has_ended:
            return
        await trio.sleep(COUNT_INTERVAL)


async def _done_and_left(monque: Monque, files: int) -> str:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_COUNT_SECONDS):
        try:
            counts = await monque.get_queue_stats(name=digest_file.name)
        except MonqueError as error:
            return f"could not count the remaining jobs ({error})"
        return (
            f"{counts.completed:,} of {files:,} files are done; {counts.pending:,} jobs are pending, "
            f"{counts.processing:,} processing, {files - counts.total:,} files were not enqueued"
        )
    return "could not count the remaining jobs in time"


class Interruption:
    """Ctrl-C and SIGTERM: the first drains the schedulers, the second cuts them short.

    Attributes:
        asked: Whether there was a signal.
        scope: Cancelled by a cut; entered once.
        intake: Cancelled by the first signal if it is entered by then. If not, there is nothing to drain yet.
        last_words: What was done and what is left, printed at the end.
        is_over: A signal came when all jobs had ended: it ends the demo, and interrupts nothing.
    """

    def __init__(self) -> None:
        self.asked = False
        self.scope = trio.CancelScope()
        self.intake: trio.CancelScope | None = None
        self.last_words = "nothing was started"
        self.is_over: trio.Event | None = None

    async def after_the_jobs(self) -> None:
        """Wait for a signal that ends the demo."""
        self.is_over = trio.Event()
        await self.is_over.wait()

    async def obey(self, signals: AsyncIterator[int]) -> None:
        """Handle signals until cancelled."""
        async for _ in signals:
            if self.is_over is not None and not self.is_over.is_set():
                self.is_over.set()
                continue
            if self.asked or self.intake is None:
                self.scope.cancel(reason="interrupted")
            else:
                say("draining: running jobs finish and nothing else starts; Ctrl-C again cuts them short")
                self.intake.cancel(reason="interrupted")
            self.asked = True
