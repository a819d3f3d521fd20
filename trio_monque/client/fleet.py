"""The fleet: which instances there are, and which names are paused in all of them. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ..jobs.instance import Instance, is_alive
from ..jobs.name_pause import NamePause, checked_by
from ..jobs.new_job import Named, check_name, name_of
from ..store.jobs import instances as stored
from .client_context import ClientContext
from .local_wakeups import local_instance_ids
from .operation import Caused, Operation, Read, Write


def instances(context: ClientContext) -> Operation[Sequence[Instance]]:
    """Return the scheduler instances that work on this collection, by id, each as of its last heartbeat.

    An instance that shut down in order is not among them. One that died is, with `is_live=False`, until another
    instance has observed for ten of its heartbeat intervals that it does not change. That instance counts from its own
    start at the earliest; while none is alive, the entry stays.

    Raises:
        MonqueConnectionError: The database cannot be reached or used.
    """
    return Read(partial(read_instances, context))


def paused(context: ClientContext) -> Operation[Sequence[str]]:
    """Return the names that are paused, sorted.

    Raises:
        MonqueConnectionError: The database cannot be reached or used.
    """
    return Read(lambda: sorted(stored.paused(context.jobs)))


def pauses(context: ClientContext) -> Operation[Sequence[NamePause]]:
    """Return the pauses, sorted by name: since when, and by whom.

    Raises:
        MonqueConnectionError: The database cannot be reached or used.
    """
    return Read(lambda: stored.pauses(context.jobs))


def pause(context: ClientContext, worker: str | Named, *, by: str | None = None) -> Operation[bool]:
    """Pause a name: within a second, no instance of the fleet claims its jobs any more.

    Jobs that run continue. Jobs can be enqueued, and wait. A pause outlives all instances. Pausing a name twice, or one
    without a worker, is allowed. Instances of Monque for Node do not honour it.

    Args:
        worker: The name, or the worker.
        by: Who pauses it, for those who look at the pause; by default the instance, if this client is a scheduler, and
            otherwise its process. The first 200 characters are kept.

    Returns:
        Whether it was not paused before.

    Raises:
        InvalidJobIdentifierError: It cannot be the name of a job.
        InvalidOptionError: `by` is not a text.
        MonqueConnectionError: The database cannot be reached or used.
    """
    name, by = _checked(worker), checked_by(by) or context.who
    return _change_pauses(lambda: stored.pause(context.jobs, name, context.now(), by))


def resume(context: ClientContext, worker: str | Named) -> Operation[bool]:
    """Resume a name: its jobs are claimed again, at once in this program, within a second elsewhere.

    Returns:
        Whether it was paused before.

    Raises:
        InvalidJobIdentifierError: It cannot be the name of a job.
        MonqueConnectionError: The database cannot be reached or used.
    """
    name = _checked(worker)
    return _change_pauses(lambda: stored.resume(context.jobs, name))


def read_instances(context: ClientContext) -> Sequence[Instance]:
    """Return the entries of all instances, each with whether it is live."""
    return _judged(context, stored.read_all(context.jobs))


def read_fleet(context: ClientContext) -> tuple[Sequence[Instance], Mapping[str, NamePause]]:
    """Return the entries of all instances, each with whether it is live, and the pauses by name."""
    entries, paused_names = stored.read_fleet(context.jobs)
    return _judged(context, entries), paused_names


def _judged(context: ClientContext, entries: Sequence[Instance]) -> Sequence[Instance]:
    now = context.now()
    # In virtual time schedulers send no heartbeats: those of this run are alive because they are here.
    here = local_instance_ids(context.jobs.collection.full_name)
    return [
        replace(one, is_live=one.id in here or is_alive(one.last_heartbeat, one.heartbeat_interval, now))
        for one in entries
    ]


def _change_pauses(write: Callable[[], bool]) -> Operation[bool]:
    def change(caused: Caused) -> bool:
        # Before the write, so that it is announced also if the answer is lost.
        caused.changed_pauses = True
        return write()

    return Write(change)


def _checked(worker: str | Named) -> str:
    name = name_of(worker)
    check_name(name)
    return name
