"""Constructs the parts of a scheduler and connects them. Nothing runs yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..bridge.handler_loop import ON_TRIO, HandlerLoop
from ..client.client_context import ClientContext
from ..client.client_parts import ClientParts
from ..clock import virtual_time
from ..engine.engine_limits import EngineLimits
from ..engine.nursery import Engine
from ..events import Event
from ..host.host import Body, Host, Life
from ..host.limits import engine_limits
from ..host.log_lines_of_jobs_and_documents import MOST_NAMED
from ..jobs.views import WorkerView
from ..loop_time import loop_time
from ..options_and_defaults import Retention, SchedulerConfig
from ..store.driver.connection import check_database, check_pool
from ..store.driver.database_threads import CONNECTIONS_NEEDED
from ..store.driver.types import Database
from .changes import ChangesOfDatabase, ChangeSource
from .context import SchedulerContext
from .engine_wakeups import EngineWakeups
from .events_and_report import JobReporter
from .instance_state import state_of
from .job_run import RunningJobs
from .job_stream import JobStream, RecentIds
from .minute_counts import MinuteCounts
from .minute_writer import MinuteWriter
from .paused_names import PausedNames
from .presence import Presence
from .pruner import Pruner
from .scheduler_client import SchedulerParts
from .sources import JobEngine, JobSources, job_sources
from .start import SchedulerStart
from .workers import Workers

Listeners = Mapping[type[Event], Any]


@dataclass(frozen=True, eq=False)
class Parts(SchedulerParts):
    """All that a scheduler is made of.

    Attributes:
        workers: Its own copy.
        sources: What its engine claims, runs and settles, and what works beside that.
        presence: Its entry in the fleet.
        running_jobs: What its handlers get.
        body: What is done beside the body of `open_scheduler`.
    """

    workers: Workers
    sources: JobSources
    presence: Presence
    running_jobs: RunningJobs
    body: Body

    def open_group(self, name: str) -> None:
        """Give the name of a registered worker its slots, and look for its jobs."""
        worker = self.workers.get(name)
        assert worker is not None
        own = worker.settings.concurrency
        self.engine.slots.set_limit(name, self.config.concurrency_per_name if own is None else own)
        self.engine.waker.look()
        self.sources.follow_ups.worker_added()


def assembled(
    db: Database,
    workers: Workers | None,
    resources: Any,
    listeners: Listeners | None,
    config: SchedulerConfig,
    loop: HandlerLoop,
    *,
    changes: ChangeSource | None = None,
) -> Parts:
    """Check the arguments and construct the parts, in the trio run in which they work.

    Args:
        db: The database.
        workers: Its workers; they are copied.
        resources: What handlers get as `job.resources`.
        listeners: Functions by event class.
        config: The options.
        loop: Where handlers run.
        changes: Where it learns what has changed; None for a change stream of its own.

    Raises:
        InvalidDatabaseError, InvalidOptionError: The message names what is wrong.
    """
    check_pool(check_database(db), CONNECTIONS_NEEDED + loop.further_connections)
    own = Workers.copied(workers)
    own.check_loop("trio" if loop is ON_TRIO else "asyncio")
    client = ClientParts.of(
        ClientContext.of(
            db,
            config,
            workers_here=lambda: _workers_here(engine, own),
            worker_here=own.get,
            instance_id=config.instance_id,
        ),
        loop.call_listener,
    )
    client.event_delivery.add_all({} if listeners is None else listeners)
    # In virtual time there are no heartbeats to write them beside, and hours pass in a moment.
    is_counted = config.minutes and not loop_time().is_event_driven
    minutes = MinuteCounts(lambda: engine.slots.capacity) if is_counted else None
    reporter = JobReporter(
        client.event_delivery,
        config.instance_id,
        client.context.jobs.collection.full_name,
        shows_errors=config.redact_errors is None,
        full_tracebacks=config.full_tracebacks,
        minutes=minutes,
    )
    shared = SchedulerContext(client.context, client.db_threads, own, config, PausedNames(client.db_threads), reporter)
    running_jobs, recent_ids = RunningJobs(own, resources, loop), RecentIds()
    engine = _engine(shared, recent_ids, running_jobs, loop, changes)
    sources = engine.sources
    assert isinstance(sources, JobSources), "`job_sources` has made them"
    presence = _presence(shared, engine, minutes)
    _add_services(shared, engine, sources, presence)
    start = SchedulerStart(client.context, client.db_threads, own, presence, client.sync, config.instance_id)
    wakeups = EngineWakeups(
        engine, client.context, shared.paused, recent_ids, sources.unstarted, sources.sweeper.look, config.instance_id
    )
    life = Life(
        name="the scheduler",
        get_ready=start.get_ready,
        described=lambda: (client.context.jobs.collection.full_name, _described(engine, own, config)),
        reachable=partial(start.reachable, wakeups),
        leave=start.leave,
    )
    return Parts(
        client=client,
        config=config,
        reporter=reporter,
        host=Host(engine, reporter, life, start_timeout=config.start_timeout),
        loop=loop,
        contention=sources.claims.contention,
        virtual=virtual_time(),
        workers=own,
        sources=sources,
        presence=presence,
        running_jobs=running_jobs,
        body=Body(
            name="open_scheduler",
            beside=partial(start.bound_calls_of_body, engine.stop.cutting, config.cleanup_timeout),
        ),
    )


def _engine(
    shared: SchedulerContext,
    recent_ids: RecentIds,
    running_jobs: RunningJobs,
    loop: HandlerLoop,
    changes: ChangeSource | None,
) -> JobEngine:
    config = shared.config
    # In virtual time local wakeups announce everything. A change stream follows real time: its answers would arrive at
    # arbitrary moments of the virtual clock.
    stream = None
    if config.change_stream and not loop_time().is_event_driven:
        source = changes or ChangesOfDatabase(lambda: shared.client.jobs, config.instance_id)
        stream = JobStream(shared.client, shared.db_threads, shared.workers, shared.paused, source, recent_ids)
    return Engine(partial(job_sources, shared, running_jobs.of), shared.reporter, _limits(config), stream, loop)


def _presence(shared: SchedulerContext, engine: JobEngine, minutes: MinuteCounts | None) -> Presence:
    instance_id = shared.config.instance_id
    return Presence(
        shared.client,
        shared.db_threads,
        shared.config,
        engine.stop,
        partial(state_of, engine, shared.workers),
        None if minutes is None else MinuteWriter(shared.client, shared.db_threads, minutes, instance_id),
    )


def _add_services(shared: SchedulerContext, engine: JobEngine, sources: JobSources, presence: Presence) -> None:
    # A service runs until the last run is settled; a chore is cancelled when the engine stops claiming.
    engine.add_service(presence.run, presence.progress, presence.end)
    engine.add_service(partial(shared.paused.run, shared.client.jobs, engine.waker.look), shared.paused.progress)
    engine.add_service(sources.follow_ups.run, sources.follow_ups.progress, sources.follow_ups.end)
    engine.add_chore(sources.unstarted.run, sources.unstarted.progress)
    engine.add_chore(sources.sweeper.run, sources.sweeper.progress)
    config = shared.config
    if config.retention is not None:
        pruner = Pruner(
            shared.client,
            shared.db_threads,
            engine.stop,
            config.instance_id,
            config.retention,
            sources.sweeper.has_children,
        )
        engine.add_chore(pruner.run, pruner.progress)


def _limits(config: SchedulerConfig) -> EngineLimits:
    common = engine_limits(config, concurrency=config.concurrency)
    return replace(common, safety_poll_interval=config.safety_poll_interval, rescues=config.recover_stale_jobs)


def _workers_here(engine: JobEngine, workers: Workers) -> Mapping[str, WorkerView]:
    slots = engine.slots
    return {name: WorkerView(concurrency=slots.limit_of(name), active=slots.running_in(name)) for name in workers.names}


def _described(engine: JobEngine, workers: Workers, config: SchedulerConfig) -> str:
    limits = {name: engine.slots.limit_of(name) for name in workers.names}
    names = [f"{name} ({limit} at a time)" for name, limit in list(limits.items())[:MOST_NAMED]]
    if len(limits) > MOST_NAMED:
        names.append(f"{len(limits) - MOST_NAMED} more")
    in_all = "" if config.concurrency is None else f", at most {config.concurrency} in all"
    deletes = "" if config.retention is None else f"; retention: {_in_short(config.retention)}"
    return f"runs {', '.join(names) or 'nothing (no workers)'}{in_all}{deletes}"


def _in_short(retention: Retention) -> str:
    ages = {"completed": retention.completed, "failed": retention.failed, "cancelled": retention.cancelled}
    given = [f"{name}={age:.15g} s" for name, age in ages.items() if age is not None]
    return ", ".join(given if retention.keep_last is None else [*given, f"keep_last={retention.keep_last}"])
