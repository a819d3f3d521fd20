"""Pruner: deletes ended jobs that retention no longer keeps, at the start and at every interval.

A lock that expires lets one instance of the fleet delete at a time. It only saves work: two instances that delete at
once do no harm. Each delete repeats its whole condition, so a job that is retried after it was chosen stays.
"""

from __future__ import annotations

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, NoReturn, TypeVar

import trio

from ..client.client_context import ClientContext
from ..engine.guard import Stop
from ..engine.progress import Progress
from ..error_types import MonqueConnectionError
from ..jobs.job import JobStatus
from ..log import logger_of
from ..loop_time import loop_time
from ..options_and_defaults import Retention
from ..store.driver.database_threads import Channel, DatabaseThreads
from ..store.driver.types import ObjectId
from ..store.jobs import instances, parents_of_children, retention
from ..store.jobs.retention import Expired

logger = logger_of("scheduler")

T = TypeVar("T")

LOCK: Final = "retention"

RENEWED_AFTER: Final = instances.LOCK_LEASE.total_seconds() / 3
"""Seconds after which the lock is renewed, between two batches of deletes."""

LONGEST_RETRY: Final = 60.0
"""Seconds until the next attempt after a fault, unless the interval is shorter."""

JITTER: Final = 0.1
"""The share by which intervals vary, so that instances that started together drift apart."""

RELEASE_TIMEOUT: Final = 0.5
"""Seconds that a shutdown waits for the release of the lock; after that the lock expires."""


class _LockLostError(Exception):
    """The lock was not renewed in time, and another instance has it."""


class Pruner:
    """The loop. It may be cancelled at any time, as no running job depends on it.

    Args:
        by: The id of this instance; it is stored in the lock, for operators.
        has_children: Whether the collection has children of job nurseries, as far as is known. Until it is known, no
            child is deleted.
    """

    def __init__(
        self,
        context: ClientContext,
        db_threads: DatabaseThreads,
        stop: Stop,
        by: str,
        wanted: Retention,
        has_children: Callable[[], bool],
    ) -> None:
        self.progress = Progress("pruner")
        self._context = context
        self._jobs = context.jobs
        self._db_threads = db_threads
        self._stop = stop
        self._by = by
        self._wanted = wanted
        self._has_children = has_children
        self._time = loop_time()
        self._token = ""
        self._renew_at = 0.0

    async def run(self) -> NoReturn:
        while True:
            moment = await self._take_turn()
            self.progress.plan(moment)
            await trio.sleep_until(moment)

    async def _take_turn(self) -> float:
        """Delete expired jobs, unless another instance does. Return when the next turn is, on trio's clock."""
        began, again = trio.current_time(), self.progress.is_failing
        self.progress.ask()
        try:
            free_at = await self._prune_alone()
        except MonqueConnectionError as error:
            self.progress.fail(error)
            pause = min(self._wanted.interval, LONGEST_RETRY)
            level = logging.DEBUG if again else logging.WARNING
            logger.log(level, "retention: %s; retrying in %g s", error, pause)
            return trio.current_time() + pause
        self.progress.answered()
        if free_at is not None:
            return max(trio.current_time(), free_at) + self._jittered(1.0)
        return max(trio.current_time(), began + self._jittered(self._wanted.interval))

    def _jittered(self, seconds: float) -> float:
        return self._time.jittered(seconds, JITTER)

    async def _prune_alone(self) -> float | None:
        """Delete under the lock. Return when the lock expires if another instance holds it; otherwise None."""
        # A new token each time: a command with an older one may still be on its way.
        self._token = secrets.token_hex(8)
        now = await self._call(self._take_lock)
        if now is None:
            until = await self._call(partial(instances.locked_until, self._jobs, LOCK))
            return trio.current_time() if until is None else self._context.clock.on_run_clock(until)
        self._renew_at = trio.current_time() + RENEWED_AFTER
        deleted: Counter[str] = Counter()
        try:
            await self._prune(now, deleted)
        except _LockLostError:
            logger.info("stopped retention: another instance took over, because the lock was not renewed in time")
        finally:
            if deleted.total():
                counts = ", ".join(f"{count} {status}" for status, count in deleted.items() if count)
                logger.info("retention deleted jobs: %s", counts)
            await self._release_lock()
        return None

    def _take_lock(self) -> datetime | None:
        """Runs in a database thread. Return the server's time if the lock is ours now; None if another has it."""
        now = self._context.now()
        return now if instances.take_lock(self._jobs, LOCK, self._token, self._by, now) else None

    async def _prune(self, now: datetime, deleted: Counter[str]) -> None:
        for name, age in self._wanted.ages.items():
            status = JobStatus(name)
            cutoff = now - timedelta(seconds=age)
            if self._wanted.keep_last is None:
                await self._delete(retention.ended_before(status, cutoff), deleted)
            else:
                await self._delete_beyond(self._wanted.keep_last, status, cutoff, deleted)

    async def _delete_beyond(self, keep: int, status: JobStatus, cutoff: datetime, deleted: Counter[str]) -> None:
        for name in await self._call(partial(retention.names, self._jobs, status)):
            look = partial(retention.beyond_the_last, self._jobs, status, name, keep, cutoff)
            for expired in await self._call(look):
                await self._delete(expired, deleted)
            await self._keep_lock()

    async def _delete(self, expired: Expired, deleted: Counter[str]) -> None:
        since: Any = None
        after: ObjectId | None = None
        while True:
            batch = await self._call(partial(retention.choose, self._jobs, expired, since, after))
            count = 0
            if batch.ids:
                count = await self._call(partial(self._delete_of, expired, batch.ids))
            deleted[expired.status.value] += count
            self.progress.answered(count)
            if batch.is_last and after is None:
                return
            if batch.is_last:
                # This was the last batch of that moment. Dates have milliseconds.
                since, after = since + timedelta(milliseconds=1), None
            elif batch.last_ended_at == since:
                # The whole batch has ended at the same moment, so the next batch begins after its last id. Some of it
                # stays: documents that are not jobs, and children that their parents need. Without this, the same batch
                # would be chosen for ever.
                after = batch.ids[-1]
            else:
                since = batch.last_ended_at
            await self._keep_lock()
            self.progress.ask()

    def _delete_of(self, expired: Expired, ids: Sequence[ObjectId]) -> int:
        """Delete the jobs among these that no parent needs; return how many. Runs in a database thread."""
        if not self._has_children():
            return retention.delete_if_expired(self._jobs, expired, ids)
        needed = parents_of_children.needed(self._jobs, ids)
        ids = [one for one in ids if one not in needed]
        return retention.delete_if_expired(self._jobs, expired, ids, children=True) if ids else 0

    async def _keep_lock(self) -> None:
        if trio.current_time() < self._renew_at:
            return
        self._renew_at = trio.current_time() + RENEWED_AFTER
        if not await self._call(self._renew_lock):
            raise _LockLostError

    def _renew_lock(self) -> bool:
        return instances.renew_lock(self._jobs, LOCK, self._token, self._context.now())

    async def _release_lock(self) -> None:
        """Release the lock, except after a cut, which has no time for it."""
        if self._stop.cutting.is_set():
            return
        with trio.move_on_after(RELEASE_TIMEOUT, shield=True):
            try:
                await self._call(partial(instances.release_lock, self._jobs, LOCK, self._token))
            except MonqueConnectionError as error:
                logger.debug("could not release the retention lock: %s; it expires by itself", error)

    async def _call(self, function: Callable[[], T]) -> T:
        # The channel of ordinary commands: claims and renewals never wait behind deletes.
        return await self._db_threads.call(function, channel=Channel.COMMANDS, abandon_on_cancel=True)
