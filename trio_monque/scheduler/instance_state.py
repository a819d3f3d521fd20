"""InstanceState: what an instance does now, as the next heartbeat writes it into its entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from ..engine.loop_blocks import LoopBlock
from ..jobs.instance import MOST_NAMES, MOST_NAMES_HELD, Instance, LastBlock, most_held
from .sources import JobEngine
from .workers import Workers


@dataclass(frozen=True, kw_only=True)
class InstanceState:
    """What an instance does now.

    Attributes:
        names: The names that it runs.
        slots: How many jobs can run at once; None if unknown.
        held: The name of each job that it holds.
        parked: How many of them wait for children, without a slot.
        full: The names whose limits its runs have reached.
        overdue: The name of each job whose plain handler goes on although its run was cancelled.
        time_limits: Seconds that a run of a name may take, for the names whose workers set a limit.
        loop_blocked: How many times something blocked an event loop of it, since its start.
        last_block: The last of these times; None if there was none.
    """

    names: Sequence[str] = ()
    slots: int | None = None
    held: Sequence[str] = ()
    parked: int = 0
    full: Sequence[str] = ()
    overdue: Sequence[str] = ()
    time_limits: Mapping[str, float] = field(default_factory=dict)
    loop_blocked: int = 0
    last_block: LoopBlock | None = None


def state_of(engine: JobEngine, workers: Workers) -> InstanceState:
    """Return the state of the instance with this engine; on its loop."""
    slots, limits = engine.slots, {name: worker.settings.timeout for name, worker in workers.by_name.items()}
    return InstanceState(
        names=workers.names,
        slots=slots.capacity,
        held=[job.name for job in engine.unfinished],
        parked=engine.number_parked,
        full=[name for name, running in slots.running_by_group().items() if running >= slots.limit_of(name)],
        overdue=[job.name for job in engine.overdue],
        time_limits={name: limit for name, limit in limits.items() if limit is not None},
        loop_blocked=engine.loop_blocked,
        last_block=engine.last_block,
    )


def with_state(entry: Instance, state: InstanceState, now: datetime) -> Instance:
    """Return the entry with this state; `now` is the server's time."""
    held, last = most_held(state.held), state.last_block
    return replace(
        entry,
        names=tuple(sorted(state.names)[:MOST_NAMES]),
        slots=state.slots,
        held=len(state.held),
        held_by_name=held,
        parked=state.parked,
        overdue_by_name=most_held(state.overdue),
        full_names=tuple(sorted(state.full)[:MOST_NAMES_HELD]),
        # Not of all names: the entry is written at each heartbeat, and a limit matters for what runs.
        time_limits={name: state.time_limits[name] for name in held if name in state.time_limits},
        loop_blocked=state.loop_blocked,
        last_block=None if last is None else LastBlock(last.group, now - timedelta(seconds=last.ago), last.seconds),
    )
