"""The fleet: which instances there are, and which names none of them is to claim. Async and blocking."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from ..call_context import async_calls
from ..jobs.instance import Instance, is_alive
from ..jobs.new_job import Named, check_name, name_of
from ..store import instances
from ..store.database_threads import DatabaseThreads
from .context import ClientContext
from .enqueuing import IN_A_THREAD
from .wake_board import Announcer, Nobody, instances_here


class SyncFleet:
    """The same as `Fleet`, blocking."""

    def __init__(self, context: ClientContext, announcer: Announcer) -> None:
        self._context = context
        self._announcer = announcer

    def instances(self) -> Sequence[Instance]:
        """See `Monque.instances`."""
        jobs, now = self._context.jobs, self._context.now()
        here = instances_here(jobs.collection.full_name)
        return [
            replace(one, is_live=one.id in here or is_alive(one.last_heartbeat, one.heartbeat_interval, now))
            for one in instances.read_all(jobs)
        ]

    def paused(self) -> Sequence[str]:
        """See `Monque.paused`."""
        return sorted(instances.paused(self._context.jobs))

    def pause(self, worker: str | Named) -> bool:
        """See `Monque.pause`."""
        name = _checked(worker)
        # Also where the answer was lost: it may have been written.
        with self._announcer.telling_of_pauses():
            return instances.pause(self._context.jobs, name, self._context.now())

    def resume(self, worker: str | Named) -> bool:
        """See `Monque.resume`."""
        name = _checked(worker)
        with self._announcer.telling_of_pauses():
            return instances.resume(self._context.jobs, name)


@async_calls(IN_A_THREAD)
class Fleet:
    """Looks at the fleet, and pauses names in it. A base of Monque, which makes the attributes."""

    _context: ClientContext
    _door: DatabaseThreads
    _announcer: Announcer

    async def instances(self) -> Sequence[Instance]:
        """The scheduler instances that work on this collection, by id, as they told of themselves last.

        One that left in order is not among them. One that died is, with `is_live=False`, until another
        instance has seen for ten of its heartbeat intervals that nothing comes of it.

        Raises:
            MonqueConnectionError: The database cannot be reached or used.
        """
        return await self._door.call(self._silent.instances, abandon_on_cancel=True)

    async def paused(self) -> Sequence[str]:
        """The names that are paused, sorted.

        Raises:
            MonqueConnectionError: The database cannot be reached or used.
        """
        return await self._door.call(self._silent.paused, abandon_on_cancel=True)

    async def pause(self, worker: str | Named) -> bool:
        """No instance of the fleet claims jobs of this name any more, from a second later on at the latest.

        What runs goes on. Jobs can be enqueued, and wait. A pause outlives all instances; pausing twice, or what
        nobody runs, is fine. Instances of Monque for Node do not honour it.

        Returns:
            Whether it was not paused before.

        Raises:
            InvalidJobIdentifierError: It can be no name of a job.
            MonqueConnectionError: The database cannot be reached or used.
        """
        return await self._change(partial(self._silent.pause, _checked(worker)))

    async def resume(self, worker: str | Named) -> bool:
        """Jobs of this name are claimed again: at once in this program, within a second elsewhere.

        Returns:
            Whether it was paused before.

        Raises:
            InvalidJobIdentifierError: It can be no name of a job.
            MonqueConnectionError: The database cannot be reached or used.
        """
        return await self._change(partial(self._silent.resume, _checked(worker)))

    async def _change(self, change: Callable[[], bool]) -> bool:
        # Here and not in the thread: the schedulers of this run hear of it also when the caller was cancelled.
        with self._announcer.telling_of_pauses():
            return await self._door.call(change)

    @property
    def _silent(self) -> SyncFleet:
        return SyncFleet(self._context, Nobody())


def _checked(worker: str | Named) -> str:
    name = name_of(worker)
    check_name(name)
    return name
