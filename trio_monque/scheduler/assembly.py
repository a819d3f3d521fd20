"""What a scheduler is made of, and who is given whom. Wiring only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from ..client.context import ClientContext
from ..engine.limits import EngineLimits
from ..engine.nursery import Engine
from ..engine.run import Run
from ..host.limits import engine_limits
from ..jobs.job import Job
from ..options import SchedulerConfig
from ..store.database_threads import DatabaseThreads
from .context import SchedulerContext
from .job_source import JobSource
from .job_stream import JobStream
from .neighbour import EngineOnTheBoard
from .paused_names import PausedNames
from .presence import Presence
from .pruner import Pruner
from .running_job import RunningJob
from .settlements import JobEngine
from .telling import Teller
from .told import Told
from .workers import Workers


@dataclass(frozen=True)
class Parts:
    """What a scheduler holds on to; the rest is held by these."""

    source: JobSource
    engine: JobEngine
    presence: Presence
    on_the_board: EngineOnTheBoard


def assembled(
    context: ClientContext,
    door: DatabaseThreads,
    config: SchedulerConfig,
    workers: Workers,
    teller: Teller,
    running_job: Callable[[Run[Job]], RunningJob[Any]],
    *,
    rests: bool,
) -> Parts:
    """The parts, on what a client stands on (`context` and `door`); nothing runs yet. `rests` as in EngineLimits."""
    paused, told = PausedNames(door, rests=rests), Told()
    shared = SchedulerContext(context, door, workers, config, paused, teller)
    source = JobSource(shared, running_job)
    stream = JobStream(context, door, workers, paused, config.instance_id, told)
    # In virtual time everything is told in the run itself: what the server says belongs to no moment of it.
    is_streamed = config.change_stream and not rests
    engine: JobEngine = Engine(source, teller, _limits(config, rests=rests), stream if is_streamed else None)
    presence = Presence(
        context,
        door,
        config,
        engine.stop,
        names=lambda: workers.names,
        held=lambda: engine.unfinished,
        rests=rests,
    )
    engine.add_service(presence.run, presence.progress, presence.end)
    engine.add_service(partial(paused.run, context.jobs, engine.waker.look), paused.progress)
    if config.retention is not None:
        pruner = Pruner(context, door, engine.stop, config.instance_id, config.retention, rests=rests)
        engine.add_chore(pruner.run, pruner.progress)
    on_the_board = EngineOnTheBoard(engine, context, paused, told, config.instance_id)
    return Parts(source, engine, presence, on_the_board)


def _limits(config: SchedulerConfig, *, rests: bool) -> EngineLimits:
    common = engine_limits(config, concurrency=config.concurrency, rests=rests)
    return replace(common, safety_poll_interval=config.safety_poll_interval, rescues=config.recover_stale_jobs)
