"""NurserySweeper: ends the children of job nurseries whose parents have ended, whichever process died.

A block ends its own children. It cannot do that if its process was killed, if its job was deleted, cancelled or given
up, or if its clean-up took too long. So every instance of the fleet looks for such children: at its start, at each
heartbeat interval, and at once after an end that it has written itself. Several instances may sweep at the same time,
because each write repeats its conditions.

It does not query the database unless the collection has the index of live children, which the first nursery creates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NoReturn

import trio

from ..client.client_context import ClientContext
from ..client.local_wakeups import WITH_NURSERIES
from ..client.operation import Caused
from ..engine.progress import Progress
from ..error_types import ClientClosedError, MonqueConnectionError
from ..jobs.job import Job
from ..log import logger_of
from ..loop_time import loop_time
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.driver.types import IndexModel, ObjectId
from ..store.jobs import indexes, nursery_children, parents_of_children
from ..store.jobs.nursery_children import Pass
from ..store.jobs.parents_of_children import Abandoned

logger = logger_of("scheduler")

JITTER: Final = 0.1

RETRY_AFTER: Final = 1.0
"""Seconds until the next attempt after a fault."""

MOST_LOGGED: Final = 1000
"""Scopes that were logged, and are not logged again while their children end."""


class NurserySweeper:
    """The loop of the sweeper, a chore of the engine. It may be cancelled at any time.

    Args:
        announce: Announces the effects of a pass to the schedulers of this trio run. Called in any thread.
        indexes_there: Returns the indexes that the collection has among those that few jobs need.
        interval: Seconds between two looks.
    """

    def __init__(
        self,
        context: ClientContext,
        db_threads: DatabaseThreads,
        announce: Callable[[Caused], None],
        indexes_there: Callable[[], Sequence[IndexModel]],
        interval: float,
    ) -> None:
        self.progress = Progress("nursery sweeper")
        self._context = context
        self._db_threads = db_threads
        self._announce = announce
        self._indexes_there = indexes_there
        self._interval = interval
        self._time = loop_time()
        self._signal = trio.Event()
        self._logged: dict[ObjectId, None] = {}
        self._again_after = RETRY_AFTER  # Seconds. It grows while children of abandoned scopes do not end.

    def ended(self, jobs: Iterable[Job]) -> None:
        """Look at once if one of these jobs, which have ended or were given up, was a parent. In the run's thread."""
        if any(job.nursery is not None for job in jobs):
            self._signal.set()

    def look(self) -> None:
        """Look at once: jobs were ended or deleted, or the index of children was found. In the run's thread."""
        self._signal.set()

    async def run(self) -> NoReturn:
        while True:
            # In virtual time, each end of a parent is announced, so it does not look at intervals.
            pause = math.inf if self._time.is_event_driven else self._time.jittered(self._interval, JITTER)
            await self._turn(pause)

    async def _turn(self, pause: float) -> None:
        self._signal = trio.Event()  # Before the look: its answer may miss a parent that ends meanwhile.
        if self.has_children():
            self.progress.ask()
            try:
                found, ended = await self._db_threads.call(
                    self._sweep, channel=Channel.COMMANDS, abandon_on_cancel=True
                )
            except ClientClosedError:
                raise  # It ends the scheduler.
            except MonqueConnectionError as error:
                if self.progress.fail(error):
                    logger.warning("could not look for abandoned children: %s; retrying", error)
                pause = RETRY_AFTER
            else:
                self.progress.answered(found)
                self._again_after = min(2 * self._again_after, self._interval) if found and not ended else RETRY_AFTER
                if found:
                    # Running children were asked to end, and one of them may become pending again.
                    pause = min(pause, self._again_after)
        self.progress.plan(trio.current_time() + pause)
        with trio.move_on_after(pause):
            await self._signal.wait()

    def has_children(self) -> bool:
        """Whether the collection has children of job nurseries, as far as is known. In any thread."""
        return self._context.jobs.collection.full_name in WITH_NURSERIES or indexes.SCOPES in self._indexes_there()

    # --- In a database thread ---

    def _sweep(self) -> tuple[int, int]:
        """End the children of all abandoned scopes; return how many scopes there are, and how many children changed."""
        jobs, number, ended, after = self._context.jobs, 0, 0, None
        while True:
            found, after = parents_of_children.abandoned(jobs, after)
            for one in found:
                cancelled, asked = nursery_children.cancel(jobs, Pass(one.scope, one.epoch), self._context.now())
                self._log(one, cancelled, asked)
                ended += cancelled + asked
                if cancelled or asked:  # In virtual time, each announcement is followed by another look.
                    self._announce(Caused(asked_to_end=asked > 0))
            number += len(found)
            if after is None:
                return number, ended

    def _log(self, one: Abandoned, cancelled: int, asked: int) -> None:
        if one.scope in self._logged:
            return
        self._logged[one.scope] = None
        if len(self._logged) > MOST_LOGGED:
            del self._logged[next(iter(self._logged))]
        logger.info(
            "job %s, which opened a job nursery, %s; cancelled %d of its children and asked %d running ones to end",
            one.parent,
            one.why,
            cancelled,
            asked,
        )
