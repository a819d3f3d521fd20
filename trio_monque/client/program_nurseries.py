"""ProgramNurseries: the parent of a nursery that a program opens, which is a job that stands for the program.

The program inserts the job as running, under a claim of its own, before any child. It renews the claim, and at the end
deletes the job under its fence. If the program dies, an instance of the fleet finds the dead claim, as it finds every
other one. It gives the job up instead of rescuing it, because `max_rescues` is 0, and a sweeper ends the children. So
handlers and programs have the same kind of parent, the same fence and the same sweeper.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Final

import anyio
import anyio.lowlevel

from ..clock import virtual_time
from ..error_types import MonqueConnectionError
from ..jobs.claim_stamps_and_fences import ClaimStamp, claim_id
from ..jobs.ended_job_errors import JobCancelledError
from ..jobs.job import Job, JobStatus
from ..jobs.job_parts import JobLimits, NurseryScope
from ..jobs.nursery_errors import NurseryLostError
from ..jobs.nursery_scopes import PROGRAM, Asking
from ..log import logger_of
from ..options_and_defaults import LEASE_IN_BEATS, SchedulerConfig
from ..store.codec import document_of
from ..store.driver.types import ObjectId
from ..store.jobs import indexes, inserting, leases, nursery_children
from .client_context import ClientContext
from .local_wakeups import watch_claims
from .monque import Monque, carry_out, context_of
from .nursery_owner import NurseryBlock
from .operation import Caused, Write

logger = logger_of("nursery")

BEAT: Final = 10.0
"""Seconds between renewals, for a client that has no `heartbeat_interval` of its own. A lease is three of them."""

CLEANUP: Final = 5.0
"""Seconds for which a cancelled program waits for its children; as `cleanup_timeout`."""

RETRY_AFTER: Final = 1.0


class ProgramNurseries:
    """The `NurseryOwner` of one block in a program."""

    def __init__(self, monque: Monque) -> None:
        self.monque = monque
        self._context: ClientContext = context_of(monque)
        config = self._context.config
        self._beat, self._cleanup = BEAT, CLEANUP
        if isinstance(config, SchedulerConfig):
            self._beat, self._cleanup = config.heartbeat_interval, config.cleanup_timeout
        self._job: Job | None = None
        self._is_lost = False
        self._is_over = False
        self._block: NurseryBlock | None = None

    @property
    def job(self) -> Job:
        assert self._job is not None, "the block is open"
        return self._job

    @property
    def leaves_children(self) -> bool:
        return self._is_lost  # The fleet ends them.

    @asynccontextmanager
    async def opening(self, key: str | None, *, releases: bool) -> AsyncIterator[NurseryBlock]:
        is_left = False
        try:
            await carry_out(self.monque, Write(self._insert))
            job = self.job
            assert job.nursery is not None
            assert job.nursery.id is not None
            asking = Asking(job.nursery.id, job.attempts, job.attempts)
            self._block = NurseryBlock(asking, "0" if key is None else key, is_resumed=False)
            if virtual_time() is not None:
                # In virtual time, schedulers look at claims only as long as they know of one.
                watch_claims(self._context.jobs.collection.full_name, lambda: self._is_over)
            yield self._block
            is_left = True
        finally:
            self._is_over = True
            if self._job is not None:  # The insert was sent, even if the program was cancelled meanwhile.
                with anyio.CancelScope(shield=True), anyio.move_on_after(self._cleanup):
                    was_ours = await self._delete()
                    if is_left and not was_ours:
                        raise self._lost()

    def _insert(self, caused: Caused) -> None:
        context = self._context
        context.ensure_indexes(indexes.SCOPES)
        self._job = job = program_job(context.now(), self._beat)
        self._beaten = job.created_at
        parcel = inserting.Parcel(job, document_of(job))
        # Acknowledged before any child is started: the fleet would end children without a parent.
        inserting.insert_new(context.jobs, [parcel])

    async def _delete(self) -> bool:
        """Delete the job under its fence; return whether this program still had it."""
        try:
            return await carry_out(
                self.monque, Write(lambda _: nursery_children.end_program(self._context.jobs, self.job))
            )
        except MonqueConnectionError as error:
            logger.warning("%s; another instance ends job %s, which represented this program", error, self.job)
            return True

    # --- For a nursery ---

    async def record_failure(self, block: str, children: Sequence[ObjectId]) -> None:
        """Do nothing: a program has no later run."""

    async def work(self) -> None:
        """Renew the claim until cancelled."""
        sent, pause = anyio.current_time(), self._beat
        while not self._is_over:
            await anyio.sleep(pause)
            pause, begins = self._beat, anyio.current_time()
            try:
                renewed = await carry_out(self.monque, Write(self._renew))
            except MonqueConnectionError as error:
                logger.log(
                    logging.WARNING if begins - sent < 2 * self._beat else logging.DEBUG,
                    "%s; retrying (job %s represents this program)",
                    error,
                    self.job,
                )
                # As an engine does, the program ends its block before the fleet takes its claim for dead.
                if anyio.current_time() - sent >= (LEASE_IN_BEATS - 0.5) * self._beat:
                    self.lose()
                    return
                pause = min(RETRY_AFTER, self._beat / 3)
                continue
            sent = begins
            if claim_id(self.job) in renewed.lost:
                self.lose()
                return
            if claim_id(self.job) in renewed.cancel_requested:
                self._end_with(JobCancelledError(self.job))

    def _renew(self, caused: Caused) -> leases.Renewed:
        # Later than the last renewal even if the server's clock steps back: the claim would look dead otherwise.
        self._beaten = max(self._context.now(), self._beaten + timedelta(milliseconds=1))
        return leases.renew(self._context.jobs, [self.job], self._beaten)

    @asynccontextmanager
    async def waiting(
        self, live: Callable[[], Collection[ObjectId]], *, is_cancelling: bool = False
    ) -> AsyncIterator[None]:
        yield  # A program has no slot.

    async def raise_if_cancelled(self) -> None:
        await anyio.lowlevel.checkpoint_if_cancelled()

    def closing(self, *, is_cancelled: bool) -> AbstractContextManager[object]:
        return self._closing(is_cancelled=is_cancelled)

    @contextmanager
    def _closing(self, *, is_cancelled: bool) -> Iterator[None]:
        # Without a cancellation, no limit and no shield: if the program is cancelled inside, the block calls it again.
        is_cancelled = is_cancelled or anyio.current_effective_deadline() == -math.inf
        with anyio.CancelScope(shield=is_cancelled) as scope:
            if is_cancelled:
                scope.deadline = anyio.current_time() + self._cleanup
            yield

    def lose(self) -> None:
        self._is_lost = True
        self._end_with(self._lost())

    def _end_with(self, error: BaseException) -> None:
        if self._block is not None and self._block.is_over is not None:
            self._block.is_over(error)

    def _lost(self) -> NurseryLostError:
        return NurseryLostError(
            f"the nursery of this program is lost: job {self.job}, which represents it, was not renewed in time, or "
            "was deleted or changed. Its children are cancelled"
        )


def program_job(now: datetime, beat: float) -> Job:
    """Return the job that stands for a program: it runs, under a claim of its own."""
    by = f"{socket.gethostname()}-{os.getpid()}-program-{secrets.token_hex(4)}"
    stamp = ClaimStamp.new(by, now, beat, secrets.token_hex(6))
    return Job(
        id=ObjectId(),
        name=PROGRAM,
        status=JobStatus.PROCESSING,
        next_run_at=now,
        created_at=now,
        updated_at=now,
        attempts=1,
        # Given up after its first death: no worker could run it again.
        limits=JobLimits(max_rescues=0),
        claim=stamp.claim(),
        nursery=NurseryScope(id=ObjectId(), since_attempt=1),
    )
