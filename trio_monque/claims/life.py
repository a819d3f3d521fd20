"""The life of one instance that claims documents: it gets ready, runs, and says what it did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from ..backoff import Backoff, asked_backoff
from ..client.bus import GRACE, Bus
from ..client.server_time import ServerTime
from ..clock import virtual_time
from ..engine.limits import EngineLimits
from ..engine.nursery import Engine
from ..engine.progress import Progress
from ..engine.start import start_within
from ..errors import MonqueConnectionError, MonqueError, ScanRefusedError
from ..jobs.error_text import ErrorText
from ..jobs.verdicts import RetryPolicy
from ..safe_text import shown
from ..store import document_indexes
from ..store.connection import check_collection, check_pool
from ..store.locked_collection import LockedCollection
from ..store.offload import CONNECTIONS_NEEDED, Door
from .candidates import LANE
from .claim import Claim
from .held import HeldDocument
from .options import ClaimConfig, check_filter, checked_sort
from .settlement import DocumentSettlement
from .source import DocumentSource
from .telling import ClaimsReport, Teller

LAST_WORDS: Final = 0.5 - GRACE
"""Seconds that listeners have, when all else has ended, to hear of it."""

Work = Callable[[Claim[Any]], Awaitable[object]]


class Claiming:
    """Claims documents and has them worked on, once.

    Attributes:
        report: What it did; None until it has ended.
        engine: What it runs on.
    """

    def __init__(
        self, collection: object, wanted: object, config: ClaimConfig, listeners: Mapping[Any, Any] | None, work: Work
    ) -> None:
        """`wanted` is the filter."""
        if not trio.lowlevel.in_trio_task():
            raise MonqueError("documents are claimed inside trio.run: call it in a trio program")
        handle = check_collection(collection)
        check_pool(handle.database, CONNECTIONS_NEEDED)
        self._config = config
        self._locked = LockedCollection.of(
            handle,
            check_filter(wanted, config.lock_field),
            lock_field=config.lock_field,
            sort=checked_sort(config.sort),
            operation_timeout=config.operation_timeout,
        )
        self.report: ClaimsReport | None = None
        self._ended = trio.Event()
        self._door, self._time, self._bus = Door(), ServerTime(self._locked), Bus()
        self._bus.add_all({} if listeners is None else listeners)
        policy = _policy_of(config)
        self._teller = Teller(self._bus, config.instance_id, policy.error_text)
        self._has_begun = False
        source = DocumentSource(self._locked, self._door, self._time, config, policy, self._teller, work)
        self._source = source
        self.engine: Engine[HeldDocument, DocumentSettlement] = Engine(source, _limits(config))
        source.settle_early = self.engine.settle_early
        source.expect = self.engine.waker.expect
        source.end_with = self.engine.stop.end_with
        self._time.clock_moved = partial(self._on_the_run, trio.lowlevel.current_trio_token())
        self.engine.slots.set_limit(LANE, config.concurrency)
        self.engine.company.take_in(source.repeats.run, source.repeats.progress)
        if not config.wait:
            progress = Progress("finisher")
            self.engine.company.take_in(partial(self._end_when_nothing_is_left, progress), progress)

    def _on_the_run(self, token: trio.lowlevel.TrioToken) -> None:
        """Timers were set by the time that was taken for the server's."""
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(self.engine.waker.look)

    @property
    def ended(self) -> trio.Event:
        return self._ended

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """The whole life: returns when it has ended, raises what crashed of it."""
        stop = self.engine.stop
        try:
            await start_within(self._config.start_timeout, self._try_to_get_ready)
            await self._run_listened_to(task_status)
        except BaseException as error:
            self._end()
            if crashes := stop.crashes:
                raise BaseExceptionGroup("the claims crashed and were cancelled", [*crashes, error]) from None
            raise
        self._end()
        if crashes := stop.crashes:
            raise BaseExceptionGroup("the claims crashed", crashes)

    def _begin(self, task_status: trio.TaskStatus[None]) -> None:
        locked = self._locked
        self._teller.tell_started(locked.collection.full_name, locked.shown_filter, self._config.concurrency)
        self._has_begun = True
        task_status.started()

    def _end(self) -> None:
        engine = self.engine
        unfinished = tuple(held.id for held in engine.unfinished)
        self.report = self._teller.report(unfinished, tuple(engine.stop.crashes))
        if self._has_begun:
            self._teller.tell_ended(self.report, engine.stop.cause)
        self._ended.set()

    async def _try_to_get_ready(self) -> None:
        await self._door.call(self._get_ready, abandon_on_cancel=True)

    def _get_ready(self) -> None:
        """In a thread: the server's time, and with it whether the database can be used; and whether an index serves."""
        self._time.measure_clock_offset()
        # Asked in any case: whatever is wrong with the filter, the server says so now, and no loop crashes of it later.
        is_served = document_indexes.is_served(self._locked, self._time.clock.now())
        if not (is_served or self._config.allow_scan) and document_indexes.is_large(self._locked):
            raise ScanRefusedError(
                f"no index of {self._locked.collection.full_name} serves the filter "
                f"{shown(self._locked.shown_filter)}, and each look would read all of "
                "its documents: call create_claim_index(collection, filter) once, with the same lock_field and sort, "
                "or say allow_scan=True"
            )

    async def _run_listened_to(self, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as listening:
            hearing = await listening.start(self._deliver_events)
            try:
                await self.engine.run(started=partial(self._begin, task_status))
            finally:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WORDS):
                    await self._bus.wait_caught_up()
                self._bus.lose_patience()
                hearing.cancel(reason="the claims have ended")

    async def _deliver_events(self, *, task_status: trio.TaskStatus[trio.CancelScope]) -> None:
        # Shielded: what happens while everything else is being cancelled is what listeners want to hear of.
        with trio.CancelScope(shield=True) as scope:
            task_status.started(scope)
            await self._bus.run()

    async def _end_when_nothing_is_left(self, progress: Progress) -> None:
        while True:
            progress.wait_for_others()
            await self.engine.wait_changed()
            # What is held is left, and what is being claimed may be. A handler that goes on after its document was
            # finished is waited for: nobody has asked for an end that it would have to hurry for.
            if self.engine.is_at_work or self.engine.is_claiming:
                continue
            progress.ask()
            try:
                is_anything_left = await self._source.is_anything_left()
            except MonqueConnectionError as error:
                progress.fail(error)
                continue  # The claimer meets the same error, retries, and tells of it.
            progress.answered()
            if not is_anything_left and not self.engine.is_at_work:
                self.engine.stop.drain("nothing is left")
                return


def _policy_of(config: ClaimConfig) -> RetryPolicy:
    exponential = Backoff(base=config.base_retry_interval, cap=config.max_backoff_delay, jitter=config.retry_jitter)
    own = config.backoff
    return RetryPolicy(
        max_retries=config.max_attempts,
        backoff=exponential,
        own_backoff=partial(asked_backoff, own, exponential) if callable(own) else own,
        error_text=ErrorText(redact=config.redact_errors),
    )


def _limits(config: ClaimConfig) -> EngineLimits:
    return EngineLimits(
        poll_interval=config.poll_interval,
        heartbeat_interval=config.heartbeat_interval,
        shutdown_timeout=config.shutdown_timeout,
        cleanup_timeout=config.cleanup_timeout,
        concurrency=config.concurrency,
        rests=virtual_time() is not None,
        is_told=False,
        stuck_after=max(2 * config.operation_timeout, config.heartbeat_interval),
    )
