"""The demo as a trio program: a server, two schedulers, the enqueuers, and a view. Signals drain it, then cut it."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import trio

from ...client.monque import Monque
from ...error_types import InvalidOptionError, MonqueError
from ...events import Event
from ...process_signals import WithoutRepeats
from ...scheduler.scheduler import run_scheduler
from ..exit_statuses import CHECK_FAILED, INTERRUPTED, SUCCEEDED
from .check import find_problems, problem_rows, schedule_problems, summary_rows
from .files import Records, find_files
from .place import DemoOptions, Place, open_place
from .progress import InstanceActivity, Progress
from .views import View
from .work import FILE_JOBS, TALLY, Resources, enqueue_all, workers

INSTANCES: Final = ("demo-1", "demo-2")
RETRY_INTERVAL: Final = 0.25
"""Seconds. Short, so that a retry happens while the demo runs."""
LAST_COUNT_SECONDS: Final = 3.0


@dataclass(frozen=True)
class Demo:
    """What the parts of one demo share.

    Attributes:
        options: The arguments of the command.
        files: The input.
        place: Where everything is stored.
        monque: Enqueues and counts.
        records: What the runs found.
        progress, view: The state of the work, and what shows it.
    """

    options: DemoOptions
    files: Sequence[Path]
    place: Place
    monque: Monque
    records: Records
    progress: Progress
    view: View


async def run_demo(options: DemoOptions, view: View, started: float) -> int:
    """Run the demo; return its exit status. `started` is when the command began, on the monotonic clock."""
    interruption = Interruption()
    status = INTERRUPTED
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, view.reporting_logs():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(interruption.obey, WithoutRepeats(signals))
            with interruption.scope:
                status = await _perform(options, view, interruption, started)
            nursery.cancel_scope.cancel(reason="the demo has ended")
    if interruption.asked:
        view.say(f"interrupted: {interruption.last_words}")
        return INTERRUPTED
    return status


async def _perform(options: DemoOptions, view: View, interruption: Interruption, started: float) -> int:
    files = await trio.to_thread.run_sync(find_files, options.folder, options.pattern, options.most_files)
    if not files:
        problem = f"no readable file below {options.folder} matches: give another folder or --pattern"
        raise InvalidOptionError("--pattern", options.pattern, problem)
    view.say(f"{len(files):,} files of {options.folder}")
    async with open_place(options, view) as place:
        demo = Demo(
            options,
            files,
            place,
            Monque(place.database, collection_name=place.jobs, stats_cache_ttl=0),
            Records.of(place.database, place.digests),
            Progress(options.folder, len(files), FILE_JOBS, tuple(map(InstanceActivity, INSTANCES))),
            view,
        )
        try:
            await _work_watched(demo, interruption)
            return INTERRUPTED if interruption.asked else await _conclude(demo, started)
        finally:
            if interruption.asked:
                interruption.last_words = await _done_and_left(demo)


async def _work_watched(demo: Demo, interruption: Interruption) -> None:
    async with trio.open_nursery() as watching:
        watching.start_soon(demo.progress.follow, demo.monque)
        watching.start_soon(demo.view.show, demo.progress)
        await _work(demo, interruption)
        await demo.progress.count(demo.monque)
        watching.cancel_scope.cancel(reason="the work has ended")


async def _work(demo: Demo, interruption: Interruption) -> None:
    """Enqueue and run the jobs. Return when all are settled, or the schedulers are drained."""
    async with trio.open_nursery() as nursery:
        schedulers = [
            await nursery.start(
                partial(
                    run_scheduler,
                    collection_name=demo.place.jobs,
                    instance_id=instance.name,
                    listeners={Event: instance.hear},
                    resources=Resources(demo.records, demo.options.job_seconds),
                    base_retry_interval=RETRY_INTERVAL,
                ),
                demo.place.database,
                workers,
            )
            for instance in demo.progress.instances
        ]
        with trio.CancelScope() as intake, interruption.first_means(partial(_begin_drain, demo, intake)):
            await enqueue_all(demo.monque, demo.files, demo.progress)
            await demo.progress.all_settled.wait()
        for scheduler in schedulers:
            scheduler.drain()


def _begin_drain(demo: Demo, intake: trio.CancelScope) -> None:
    demo.progress.draining = True
    intake.cancel(reason="interrupted")
    demo.view.say("draining: running jobs finish and nothing else begins; Ctrl-C again cuts them short")


async def _conclude(demo: Demo, started: float) -> int:
    """Check what is stored, and show the result."""
    everything = demo.progress.counts.total + len(demo.files)  # More than there can be, unless something is wrong.
    jobs = await demo.monque.get_jobs(name=FILE_JOBS, limit=everything)
    schedules = await demo.monque.get_jobs(name=TALLY)
    records = await trio.to_thread.run_sync(demo.records.read)
    problems = await trio.to_thread.run_sync(find_problems, demo.files, jobs, records)
    problems = [*problems, *schedule_problems(schedules)]
    status = CHECK_FAILED if problems else SUCCEEDED
    rows = summary_rows(jobs, schedules, records, time.monotonic() - started, status)
    demo.view.show_table("trio-monque demo", rows, good=not problems)
    if problems:
        demo.view.show_table(
            f"{len(problems):,} things are wrong", problem_rows(problems, demo.progress.shown), good=False
        )
    return status


async def _done_and_left(demo: Demo) -> str:
    with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_COUNT_SECONDS):
        try:
            await demo.progress.count(demo.monque)
        except MonqueError as error:
            return f"what is left could not be counted ({error})"
    counts, files = demo.progress.counts, len(demo.files)
    return (
        f"{counts.completed:,} of {files:,} files are done; {counts.pending:,} jobs are pending, "
        f"{counts.processing:,} processing, {files - counts.total:,} files were not enqueued"
    )


class Interruption:
    """Ctrl-C and SIGTERM: the first drains the schedulers, the second cuts them short.

    Attributes:
        asked: Whether there was a signal.
        scope: Cancelled by a cut; entered once.
        last_words: What was done and what is left, printed at the end.
    """

    def __init__(self) -> None:
        self.asked = False
        self.scope = trio.CancelScope()
        self.last_words = "nothing was begun"
        self._drain: Callable[[], None] | None = None

    @contextmanager
    def first_means(self, drain: Callable[[], None]) -> Iterator[None]:
        """Inside, the first signal calls `drain`. Outside there is nothing to drain: the first signal ends the demo."""
        self._drain = drain
        try:
            yield
        finally:
            self._drain = None

    async def obey(self, signals: AsyncIterator[int]) -> None:
        """Handle signals until cancelled."""
        async for _ in signals:
            first, self.asked = not self.asked, True
            if first and self._drain is not None:
                self._drain()
            else:
                self.scope.cancel(reason="interrupted")
