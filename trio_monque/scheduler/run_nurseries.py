"""RunNurseries: writes for the job nurseries of runs, under their claims, in the trio run of the engine."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import trio

from ..client.operation import Caused
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..engine.source import Control
from ..error_types import ClaimLostError, DocumentRefusedError, InvalidPayloadError, MonqueConnectionError, MonqueError
from ..jobs import transitions
from ..jobs.claim_stamps_and_fences import ClaimId, claim_id
from ..jobs.conditional_write import applied
from ..jobs.job import Job, log_extra
from ..jobs.job_parts import NurseryScope
from ..jobs.nursery_scopes import Asking, opened_by, scope_of, with_scope
from ..jobs.stored_value_limits import snapshot
from ..log import logger_of
from ..store.driver.types import ObjectId
from ..store.jobs import job_changes, nursery_children
from ..store.jobs.nursery_children import Pass
from .context import SchedulerContext
from .settlement import JobSettlement
from .workers import Workers

logger = logger_of("scheduler")

LOOK_AGAIN_AFTER: Final = 0.25
"""Seconds between two looks for children that are being cancelled, before the end of their parent is written."""

MOST_NAMED: Final = 10


class RunNurseries:
    """Implements `NurseryReporting` for handlers that run, and `ClosesScopes` for the ends of runs.

    Args:
        announce: Announces the effects of a write to the schedulers of this trio run.
    """

    def __init__(
        self,
        shared: SchedulerContext,
        control: Control[Job, JobSettlement],
        announce: Callable[[Caused], None],
    ) -> None:
        self._announce = announce
        self._context = shared.client
        self._db_threads = shared.db_threads
        self._workers: Workers = shared.workers
        self._max_payload_size = shared.config.max_payload_size
        self._max_parked = shared.config.max_parked
        self._control = control
        self._put_back: set[ClaimId] = set()
        self._has_warned = False

    # --- While the handler runs ---

    async def open_scope(self, run: Run[Job]) -> Asking:
        """Write the scope of a run under its claim, unless it has one in this try; return it."""
        _check_open(run)
        scope = opened_by(run.claim)
        if scope != run.claim.nursery:
            await self._write(run, scope)
        assert scope.id is not None
        assert scope.since_attempt is not None
        return Asking(scope.id, run.claim.attempts, scope.since_attempt)

    async def record_failure(self, run: Run[Job], block: str, children: Sequence[ObjectId]) -> None:
        """Write that a block has failed, and by which children, before it is left or anything is cancelled."""
        scope = opened_by(run.claim)
        failed = {**(scope.failed or {}), block: list(children)}
        if failed != scope.failed:
            await self._write(run, replace(scope, failed=failed))

    async def store_step(self, run: Run[Job], key: str, value: Any) -> None:
        """Write the result of a step under the claim of the run."""
        _check_open(run)
        stored = snapshot(value, self._max_payload_size, self._context.jobs.codec.callers, f"step {key!r}")
        scope = opened_by(run.claim)
        await self._write(run, replace(scope, steps={**(scope.steps or {}), key: stored}))

    async def _write(self, run: Run[Job], scope: NurseryScope) -> None:
        transition = transitions.open_scope(run.claim, self._context.clock.now(), scope)
        write = partial(job_changes.report_if_held, self._context.jobs, transition)
        try:
            is_held = await self._db_threads.call(write)
        except DocumentRefusedError as error:
            raise InvalidPayloadError(f"the steps of job {run.claim} cannot be stored in it: {error}") from error
        if not is_held:
            run.lose()
            raise _lost(run)
        # The end of the run is written by this copy, and clears only fields that the copy has.
        run.claim = with_scope(run.claim, scope)

    async def reset_deaths(self, run: Run[Job]) -> None:
        """Reset the count of deaths in a row: the run has reached a wait without killing this process.

        Otherwise the fourth deployment would fail a workflow that waits for days.
        """
        transition = transitions.reset_deaths(run.claim, self._context.clock.now())
        try:
            is_held = await self._db_threads.call(partial(job_changes.report_if_held, self._context.jobs, transition))
        except MonqueConnectionError as error:
            if not error.transient:
                raise
            # The next wait tries it again. An error here would end a block with live children.
            logger.debug("could not reset the death count of job %s: %s", run.claim, error)
            return
        if not is_held:
            run.lose()
            return
        run.claim = applied(run.claim, replace(transition, set={}))

    def park(self, run: Run[Job]) -> None:
        """Release the slot of a run that waits for its children. If too many runs wait, put it back: it waits later."""
        if not run.parked and self._control.number_parked >= self._max_parked and run.reason is None:
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%d jobs are waiting for the children of their job nurseries, the most that max_parked allows; "
                    "further ones are released and wait later",
                    self._max_parked,
                )
            self._put_back.add(claim_id(run.claim))
            run.cancel(CancelReason.SHUTDOWN)
        own = self._own_time_limit(run.claim)
        self._control.park(run, math.inf if own is None else own)

    def unpark(self, run: Run[Job]) -> None:
        """Let a run that does not wait any more take a slot again."""
        self._control.unpark(run)

    def changed(self) -> None:
        """A run may do nothing but wait from now on."""
        self._control.changed()

    def takes_back(self, claim: Job) -> bool:
        """Whether a run that has ended was put back because too many waited. Called once, at its end."""
        if not self._put_back or claim_id(claim) not in self._put_back:
            return False
        self._put_back.discard(claim_id(claim))
        return True

    def _own_time_limit(self, job: Job) -> float | None:
        worker = self._workers.by_name.get(job.name)
        own = None if worker is None else worker.settings.timeout
        return own if job.limits.timeout is None else job.limits.timeout

    # --- At its end ---

    async def closing_scope(self, run: Run[Job], handler: Awaitable[object]) -> object:
        """Run the handler, end the children of earlier runs that it has not asked for, and return its value.

        The handler may have returned without opening the block of those children. That costs one look, and only for
        runs whose job had a scope before.
        """
        try:
            value = await handler
        except trio.Cancelled:
            if run.reason is CancelReason.USER:
                # This ends the job. After any other cancellation, the next run goes on with these children.
                with run.cleaning_up(math.inf):
                    await self.close_scope(run)
            raise
        await self.close_scope(run)
        return value

    async def close_scope(self, run: Run[Job]) -> None:
        """Cancel the live children in the scope of a run, and wait until none is live."""
        scope = scope_of(run.claim)
        if scope is None or scope.id is None:
            return
        jobs, is_logged = self._context.jobs, False
        closing = Pass(scope.id, run.claim.attempts)
        look = partial(nursery_children.live, jobs, scope.id)
        while True:
            try:
                alive = await self._db_threads.call(look, abandon_on_cancel=True)
                if not alive:
                    return
                _, asked = await self._db_threads.call(
                    lambda: nursery_children.cancel(jobs, closing, self._context.now())
                )
                self._announce(Caused(asked_to_end=asked > 0))
            except MonqueConnectionError as error:
                if not error.transient:
                    raise
                logger.warning("%s; retrying (cancelling the children of job %s)", error, run.claim)
                alive = ()
            if alive and not is_logged:
                is_logged = True
                names = ", ".join(sorted({child.name for child in alive})[:MOST_NAMED])
                logger.warning(
                    "%d children of job %s were started by an earlier run, but not by this one: %s. Cancelling them",
                    len(alive),
                    run.claim,
                    names,
                    extra=log_extra(run.claim),
                )
            await trio.sleep(LOOK_AGAIN_AFTER)


def _check_open(run: Run[Job]) -> None:
    if run.is_settling_early or run.is_settled_early:
        raise MonqueError(f"job {run.claim} has had its transaction, which ends it: open job nurseries before that")
    if run.reason is CancelReason.LOST:
        raise _lost(run)


def _lost(run: Run[Job]) -> ClaimLostError:
    return ClaimLostError(f"the claim on job {run.claim} was lost: no child was started")
