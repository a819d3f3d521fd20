"""`--processes`: a parent that keeps several worker processes running."""

from __future__ import annotations

from itertools import count

import trio

from ...log import logger_of
from ..exit_statuses import FAILED
from .change_relay import ChangeRelay
from .children import Children, first_of
from .restarts import GiveUp, ProcessEnd, Restart, decide, described, exit_status, worst

logger = logger_of("cli")


class Supervisor:
    """Keeps worker processes running until a signal, or until the first of them fails at the very first start.

    Args:
        children: The worker processes.
        processes: How many of them.
    """

    def __init__(self, children: Children, processes: int) -> None:
        self._children = children
        self._places = range(1, processes + 1)
        self._statuses: dict[int, int] = {}
        self._any_started = trio.Event()

    async def run(self) -> int:
        """Return the worst exit status of the processes when all have ended."""
        logger.info("running %d worker processes", len(self._places))
        with self._children.signals_received() as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._children.pass_on, signals)
                if self._children.relay is not None:
                    nursery.start_soon(self._relay_changes, self._children.relay)
                async with trio.open_nursery() as places:
                    places.start_soon(self._keep, 1)
                    # The others follow: the first one shows whether target and database can be used, and if they
                    # cannot, the error is printed once.
                    await first_of(self._any_started, self._children.ending)
                    for place in self._places[1:]:
                        places.start_soon(self._keep, place)
                nursery.cancel_scope.cancel(reason="all worker processes have ended")
        status = worst(self._statuses.values())
        logger.info("all worker processes ended; the exit status is %d", status)
        return status

    async def _relay_changes(self, relay: ChangeRelay) -> None:
        # The first process shows whether the database can be used, and says what is wrong.
        await self._any_started.wait()
        await relay.run()

    async def _keep(self, place: int) -> None:
        """Keep one process running in this place."""
        ends, ending = 0, self._children.ending
        for start in count(1):
            if ending.is_set():
                return
            returncode, ran_for = await self._children.run_one(place, start, self._any_started.set)
            self._statuses[place] = exit_status(returncode)
            if ending.is_set():
                return
            how = described(returncode)
            match decide(ProcessEnd(ran_for, ends, self._any_started.is_set())):
                case GiveUp():
                    self._statuses[place] = FAILED  # Also if it ended with status 0: nothing ran.
                    logger.error(
                        "worker process %d %s before a scheduler started; not restarting any worker", place, how
                    )
                    self._children.end("the first start failed")
                case Restart(after, ends):
                    logger.warning(
                        "worker process %d %s after %.1f s; restarting it in %.1f s", place, how, ran_for, after
                    )
                    with trio.move_on_after(after):
                        await ending.wait()
