"""ChildrenOfBlock: the children of one block of a job nursery: which have ended, and what their ends mean.

It belongs to the event loop of the block. `block_starts.py` starts the children, `leaving_blocks.py` ends the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import anyio

from ..error_types import MonqueConnectionError, MonqueError
from ..jobs.ended_job_errors import JobDeletedError, JobEndedError
from ..jobs.job import Job, log_extra
from ..jobs.nursery_scopes import ChildFate, is_cancelled_by_block
from ..log import logger_of
from ..store.driver.types import ObjectId
from ..store.jobs import nursery_children
from ..store.jobs.nursery_children import LiveChild, Pass
from .child import Child, leave_behind, note, note_end
from .child_ends import ChildEnds, Ends
from .child_starts import NewChild, ScopeLostError, look_again
from .monque import carry_out, context_of, follow_ends
from .nursery_owner import NurseryBlock, NurseryOwner
from .operation import Caused, Read, Write

logger = logger_of("nursery")

Policy = Literal["cancel", "wait", "keep"]
POLICIES: Final = ("cancel", "wait", "keep")

AGAIN_AFTER: Final = 1.0
"""Seconds until cancelling is repeated if no child ends before; also the pause after a fault of the database."""


class ChildrenOfBlock:
    """See the top of this file.

    Attributes:
        cancel_scope: Around the body.
        owner: The parent.
        block: The open block.
        policy: What the first failure does.
        children: All children that the body has started in this run, by their ids.
        ended: The children that have ended, in the order of their ends.
        unanswered: Children whose start was not answered: the server may still apply it.
        ends: Waits for the ends of live children.
        failed_by: The children by which the block has failed, in this run or in an earlier one of its try.
        is_open: Whether children may be started.
        is_cancelling: Whether the block cancels its children.
        fault: The error with which the parent, or a failure of the wait for ends, has ended the block.
    """

    def __init__(self, owner: NurseryOwner, block: NurseryBlock, policy: Policy) -> None:
        self.cancel_scope = anyio.CancelScope()
        self.owner = owner
        self.block = block
        self.policy = policy
        self.children: dict[ObjectId, Child[Any]] = {}
        self.ended: list[Child[Any]] = []
        self.unanswered: dict[ObjectId, NewChild] = {}
        # A block that keeps failures raises nothing, so it runs although an earlier run with another policy has failed.
        self.failed_by: list[ObjectId] = [] if policy == "keep" else list(block.failed_by)
        self.is_open = True
        self.is_cancelling = False
        self.fault: BaseException | None = None
        self._is_logged = bool(self.failed_by)
        self._is_over = False
        self._monque = owner.monque
        self._context = context_of(owner.monque)
        self._asking = block.asking
        self.ends = ChildEnds(self._take_ends, self.broken)
        self._changed = anyio.Event()
        self._to_do = anyio.Event()
        # Children that a stale run has cancelled: they are run again.
        self._again: set[ObjectId] = set()
        block.is_over = self.broken
        if self.failed_by:
            # An earlier run of this try has recorded the failure of this block: none of its children is started again.
            self.cancel_scope.cancel()

    # --- Ends ---

    def take_found(self, found: Mapping[ObjectId, Job | MonqueError]) -> None:
        """Note children as a start has found them: wait for the live ones, and take the ends of the others."""
        live: list[ObjectId] = []
        ended: list[tuple[ObjectId, Job | MonqueError]] = []
        for one, child in found.items():
            if isinstance(child, Job) and child.status in nursery_children.LIVE:
                note(self.children[one], child)
                live.append(one)
            else:
                ended.append((one, child))
        self.ends.add(live)
        self._take_ends(ended)

    async def some_end(self, *, within: float | None = None) -> None:
        """Wait until a child ends, or something else changes; at most `within` seconds.

        Raises:
            MonqueError: The block is over: the caller is a task around the block, or the handler after the block.
        """
        if not self._is_over:
            await self._change(within)
        if self._is_over:
            raise MonqueError(f"the block {self.block.key!r} of the job nursery has ended: wait inside it")

    async def _change(self, within: float | None) -> None:
        with anyio.move_on_after(within):
            await self._changed.wait()

    def _take_ends(self, ends: Ends) -> None:
        for one, ended in ends:
            child = self.children.get(one)
            if child is None or child.has_ended:
                continue
            if isinstance(ended, Job) and not self._has_cancelled:
                fate = self._asking.fate_of(ended)
                if fate is ChildFate.LOST:
                    self.owner.lose()
                    continue
                if fate is not ChildFate.TAKE:
                    self._again.add(one)
                    self._to_do.set()
                    continue
            note_end(child, ended)
            self.ended.append(child)
            if self.is_failure(child):
                self._note_failure(child)
        self.notify()

    @property
    def _has_cancelled(self) -> bool:
        """Whether this run may itself have cancelled a child that has its epoch: also while the body cleans up."""
        return self.is_cancelling or bool(self.failed_by)

    def is_failure(self, child: Child[Any]) -> bool:
        """Return whether the child has failed by itself; False if the block has cancelled it."""
        if not child.has_ended or child.error is None:
            return False
        return not isinstance(child.error, JobEndedError) or not is_cancelled_by_block(child.error.job)

    def _note_failure(self, child: Child[Any]) -> None:
        if self.policy != "cancel" or self.is_cancelling or self.failed_by:
            return
        self.failed_by.append(child.id)
        self.cancel_scope.cancel()
        self._to_do.set()  # The others are cancelled at once, however long the body takes to clean up.

    def broken(self, error: BaseException) -> None:
        """End the block with this error: the parent has ended it, or it cannot find out ends any more."""
        if self.fault is None:
            self.fault = error
        self.cancel_scope.cancel()
        self.notify()

    def end(self) -> None:
        """Note that the block is over: it does not report ends any more, and all waits for its children end."""
        self._is_over = True
        for child in self.children.values():
            leave_behind(child)
        self.notify()

    def notify(self) -> None:
        """Wake all tasks that wait for a change."""
        self._changed.set()
        self._changed = anyio.Event()

    async def lose(self) -> None:
        """End this run as one that has lost its claim: it is stale. Does not return."""
        self.owner.lose()
        await anyio.sleep_forever()

    # --- Beside the body ---

    async def work(self) -> None:
        """Report the ends of children, cancel or run children again where an end requires it, until cancelled."""
        await follow_ends(self._monque, self.ends, self._act_on_ends)

    async def _act_on_ends(self) -> None:
        while True:
            await self._to_do.wait()
            self._to_do = anyio.Event()
            try:
                await self._act()
            except MonqueConnectionError as error:
                if not error.transient:
                    raise
                logger.warning("%s; retrying (block %r waits meanwhile)", error, self.block.key)
                await anyio.sleep(AGAIN_AFTER)
                self._to_do.set()

    async def _act(self) -> None:
        if self.failed_by:
            if not self.is_cancelling:
                await self.cancel_children()
            return
        if ids := frozenset(self._again):
            again = partial(look_again, self._context, self._asking, ids)
            try:
                found = await carry_out(self._monque, Write(lambda caused: again(caused)))
            except ScopeLostError:
                if not self._has_cancelled:
                    await self.lose()
                return
            self._again -= ids
            self.take_found(found)

    # --- Commands, also for the end of the block ---

    async def record_failure(self) -> None:
        """Write into the parent that the block has failed, unless the parent has it already."""
        if self.failed_by and list(self.block.failed_by) != self.failed_by:
            await self.owner.record_failure(self.block.key, self.failed_by)
            self.block.failed_by = tuple(self.failed_by)

    async def cancel_children(self, ids: tuple[ObjectId, ...] | None = None) -> None:
        """Cancel the live children of the block, or only `ids`. The caller repeats it until no child is live."""
        if ids is None:
            # First: otherwise a later run would start again what this call cancels.
            await self.record_failure()
        one = Pass(self._asking.scope, self._asking.epoch, self.block.key, ids)

        def cancel(caused: Caused) -> int:
            ended, requested = nursery_children.cancel(self._context.jobs, one, self._context.now())
            caused.asked_to_end = requested > 0
            return ended + requested

        number = await carry_out(self._monque, Write(cancel))
        if self.failed_by and ids is None and not self._is_logged:
            self._is_logged = True
            job = self.owner.job
            logger.info(
                "block %r of job %s failed because its child %s did not complete; cancelled others: %d",
                self.block.key,
                job,
                self.failed_by[0],
                number,
                extra=log_extra(job),
            )

    async def live(self) -> Sequence[LiveChild]:
        """Return live children of the block, a thousand at most; also those that this run did not start."""
        look = partial(nursery_children.live, self._context.jobs, self._asking.scope, self.block.key)
        return await carry_out(self._monque, Read(look))


def has_been_deleted(child: Child[Any]) -> bool:
    """Return whether the job of the child was deleted."""
    return child.has_ended and isinstance(child.error, JobDeletedError)
