"""Constructs the parts of a scheduler and connects them. Nothing runs yet."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from ..client.context import ClientContext
from ..engine.handler_tasks import HandlerTasks
from ..engine.limits import EngineLimits
from ..engine.nursery import Engine
from ..host.limits import engine_limits
from ..loop_time import loop_time
from ..options_and_defaults import SchedulerConfig
from ..store.database_threads import DatabaseThreads
from .context import SchedulerContext
from .engine_wakeups import EngineWakeups, RecentIds
from .events_and_report import JobReporter
from .job_stream import JobStream
from .paused_names import PausedNames
from .presence import Presence
from .pruner import Pruner
from .sources import JobEngine, JobSources, job_sources
from .worker import MakeRunningJob
from .workers import Workers


@dataclass(frozen=True)
class Parts:
    """The parts that the scheduler itself uses. These hold the other parts."""

    sources: JobSources
    engine: JobEngine
    presence: Presence
    wakeups: EngineWakeups


def assembled(
    context: ClientContext,
    db_threads: DatabaseThreads,
    config: SchedulerConfig,
    workers: Workers,
    reporter: JobReporter,
    running_job: MakeRunningJob,
    handlers: HandlerTasks,
) -> Parts:
    """Construct the parts on the base that a scheduler has as a client: its context and its database threads."""
    paused, recent_ids = PausedNames(db_threads), RecentIds()
    shared = SchedulerContext(context, db_threads, workers, config, paused, reporter)
    stream = JobStream(context, db_threads, workers, paused, config.instance_id, recent_ids)
    # In virtual time local wakeups announce everything. A change stream follows real time: its answers would arrive at
    # arbitrary moments of the virtual clock.
    is_streamed = config.change_stream and not loop_time().is_event_driven
    engine: JobEngine = Engine(
        partial(job_sources, shared, running_job), reporter, _limits(config), stream if is_streamed else None, handlers
    )
    sources = engine.sources
    assert isinstance(sources, JobSources), "`job_sources` has made them"
    presence = Presence(
        context,
        db_threads,
        config,
        engine.stop,
        names=lambda: workers.names,
        held=lambda: engine.unfinished,
        overdue=lambda: engine.overdue,
    )
    # A service runs until the last run is settled; a chore is cancelled when the engine stops claiming.
    engine.add_service(presence.run, presence.progress, presence.end)
    engine.add_service(partial(paused.run, context.jobs, engine.waker.look), paused.progress)
    engine.add_service(sources.follow_ups.run, sources.follow_ups.progress, sources.follow_ups.end)
    engine.add_chore(sources.unstarted.run, sources.unstarted.progress)
    if config.retention is not None:
        pruner = Pruner(context, db_threads, engine.stop, config.instance_id, config.retention)
        engine.add_chore(pruner.run, pruner.progress)
    wakeups = EngineWakeups(engine, context, paused, recent_ids, sources.unstarted, config.instance_id)
    return Parts(sources, engine, presence, wakeups)


def _limits(config: SchedulerConfig) -> EngineLimits:
    common = engine_limits(config, concurrency=config.concurrency)
    return replace(common, safety_poll_interval=config.safety_poll_interval, rescues=config.recover_stale_jobs)
