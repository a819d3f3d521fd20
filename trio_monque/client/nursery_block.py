"""ChildrenOfBlock: the children of one block of a job nursery: how they are started, and what their ends mean.

On the loop of the block. `leaving_blocks.py` has how the block ends, and `JobNursery` is what the body of it sees.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, Literal

import anyio
import anyio.lowlevel

from ..error_types import InvalidOptionError, MonqueConnectionError, MonqueError
from ..jobs.ended_job_errors import JobDeletedError, JobEndedError
from ..jobs.job import Job, log_extra
from ..jobs.job_parts import ChildOf
from ..jobs.new_job import Draft, NewJob, name_of
from ..jobs.nursery_scopes import ChildFate, child_id, default_key, is_cancelled_by_block, is_key
from ..jobs.stored_value_limits import TypedWorker, result_reader_of
from ..log import logger_of
from ..store.driver.types import ObjectId
from ..store.jobs import nursery_children
from ..store.jobs.nursery_children import LiveChild, Pass
from .child import Child, leave_behind, note, note_end
from .child_ends import ChildEnds, Ends
from .child_starts import NewChild, ScopeLostError, look_again, start_children
from .enqueue import OPTIONS, draft_of
from .monque import carry_out, context_of, follow_ends
from .nursery_owner import NurseryBlock, NurseryOwner
from .operation import Caused, Read, Write

logger = logger_of("nursery")

Policy = Literal["cancel", "wait", "keep"]
POLICIES: Final = ("cancel", "wait", "keep")

NOT_FOR_CHILDREN: Final = frozenset({"unique_key", "on_conflict", "max_wait"})
"""A child with a unique key would be another job's document, or become one's: a call could replace or schedule it."""

MOST_IN_A_STATEMENT: Final = 1000

MOST_DRAFTED_AT_ONCE: Final = 100
"""Children that are checked between two turns of the event loop."""

AGAIN_AFTER: Final = 1.0
"""Seconds until a pass is repeated, if no end is heard before; also after a fault of the database."""

LONGEST_KEY: Final = 1024


class ChildrenOfBlock:
    """See the top of this file.

    Attributes:
        cancel_scope: Around the body.
        owner: The parent.
        block: The open block.
        policy: What the first failure means.
        children: All that were asked for, by their ids.
        ended: Those that have ended, in the order of their ends.
        unanswered: Starts whose answer is not known: they may still be applied.
        failed_by: The children by which the block has failed, in this run or in an earlier one of its try.
        is_open: Whether children may be started.
        is_cancelling: Whether the block cancels its children.
        fault: What has ended the block from outside, or made its work impossible.
    """

    def __init__(self, owner: NurseryOwner, block: NurseryBlock, policy: Policy) -> None:
        self.cancel_scope = anyio.CancelScope()
        self.owner = owner
        self.block = block
        self.policy = policy
        self.children: dict[ObjectId, Child[Any]] = {}
        self.ended: list[Child[Any]] = []
        self.unanswered: dict[ObjectId, NewChild] = {}
        # If the policy was another one then, a block that keeps failures is not skipped for one: it raises nothing.
        self.failed_by: list[ObjectId] = [] if policy == "keep" else list(block.failed_by)
        self.is_open = True
        self.is_cancelling = False
        self.fault: BaseException | None = None
        self._is_logged = bool(self.failed_by)
        self._is_over = False
        self._monque = owner.monque
        self._context = context_of(owner.monque)
        self._asking = block.asking
        self._used: Counter[str] = Counter()
        self.ends = ChildEnds(self._told, self.broken)
        self._changed = anyio.Event()
        self._to_do = anyio.Event()
        # Children that a stale run has cancelled, and that run again.
        self._again: set[ObjectId] = set()
        block.is_over = self.broken
        if self.failed_by:
            # An earlier run of this try has seen this block fail: nothing of it is started again.
            self.cancel_scope.cancel()

    # --- Starting ---

    async def start(
        self, worker: Any, items: Sequence[Any], key: Callable[[Any], str] | None, options: dict[str, Any]
    ) -> Sequence[Child[Any]]:
        """Start a child for each item, or find those that an earlier run has started."""
        await anyio.lowlevel.checkpoint()  # Before anything else: a failed block starts nothing any more.
        self._check_open()
        _check_options(options)
        if options.get("meta") is None and self.owner.job.meta:
            options = {**options, "meta": self.owner.job.meta}
        drafts = []
        for number, item in enumerate(items, 1):
            drafts.append(self._drafted(worker, item, options))
            if number % MOST_DRAFTED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
        new = self._named(drafts, None if key is None else [_checked_key(key(item)) for item in items])
        read, scope = result_reader_of(worker), self._asking.scope
        children = [Child[Any](one, child.part.key, scope, read, self._wait) for one, child in new.items()]
        for begin in range(0, len(children), MOST_IN_A_STATEMENT):
            await self._send(children[begin : begin + MOST_IN_A_STATEMENT], new)
        return children

    def _check_open(self) -> None:
        # A task around the block is not cancelled with it.
        if not self.is_open or self.failed_by:
            raise MonqueError(f"the block {self.block.key!r} of the job nursery is over: start children inside of it")

    def _drafted(self, worker: str | TypedWorker[Any], data: Any, options: dict[str, Any]) -> Draft:
        return draft_of(self._context, NewJob(name=name_of(worker), data=data, **options), worker)

    def _named(self, drafts: Sequence[Draft], keys: Sequence[str] | None) -> dict[ObjectId, NewChild]:
        asking, parent, block = self._asking, self.owner.job.id, self.block.key
        new: dict[ObjectId, NewChild] = {}
        for number, draft in enumerate(drafts):
            given = None if keys is None else keys[number]
            # So that no given key is the default one of another child.
            full = (
                f"by content:{default_key(draft.new.name, draft.payload, self._used)}"
                if given is None
                else f"by key:{given}"
            )
            one = child_id(asking.scope, block, full)
            if one in self.children or one in new:
                raise InvalidOptionError("key", given, "is the key of another child of this block")
            part = ChildOf(scope=asking.scope, parent=parent, block=block, key=given, run=asking.epoch)
            new[one] = NewChild(draft, part, full)
        return new

    async def _send(self, children: Sequence[Child[Any]], new: Mapping[ObjectId, NewChild]) -> None:
        if self.failed_by:
            await anyio.lowlevel.checkpoint()
        self._check_open()  # It may have ended since the first look.
        sent = {child.id: new[child.id] for child in children}
        self.children.update((child.id, child) for child in children)
        # Until the answer: a call that failed or was cancelled may still be applied, and a child would live after the
        # block. Before it is left, that is made impossible.
        self.unanswered |= sent
        start = partial(start_children, self._context, self._asking, sent, is_resumed=self.block.is_resumed)
        try:
            found = await carry_out(self._monque, Write(lambda caused: start(caused=caused)))
        except BaseException as error:
            for one in sent:
                self.children.pop(one, None)  # The block does not wait for what its body did not get.
            self._notify()  # Nor does a task that waits for the next end.
            if not isinstance(error, ScopeLostError):
                raise
            self._check_open()  # After a failure, the block itself may have cancelled what was found.
            await self._lose()
            return
        for one in sent:
            del self.unanswered[one]
        self._found(found)

    def _found(self, found: Mapping[ObjectId, Job | MonqueError]) -> None:
        live: list[ObjectId] = []
        ended: list[tuple[ObjectId, Job | MonqueError]] = []
        for one, child in found.items():
            if isinstance(child, Job) and child.status in nursery_children.LIVE:
                note(self.children[one], child)
                live.append(one)
            else:
                ended.append((one, child))
        self.ends.add(live)
        self._told(ended)

    # --- Ends ---

    async def _wait(self, event: anyio.Event) -> None:
        async with self.owner.waiting():
            await event.wait()

    async def some_end(self, *, within: float | None = None) -> None:
        """Wait until something has changed, or for that number of seconds.

        Raises:
            MonqueError: The block is over: a task around it waits, or a handler that goes on behind it.
        """
        if not self._is_over:
            await self._change(within)
        if self._is_over:
            raise MonqueError(f"the block {self.block.key!r} of the job nursery is over: wait inside of it")

    async def _change(self, within: float | None) -> None:
        with anyio.move_on_after(within):
            await self._changed.wait()

    def _told(self, ends: Ends) -> None:
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
        self._notify()

    @property
    def _has_cancelled(self) -> bool:
        """Whether a child with the epoch of this run may be its own doing: also while the body still cleans up."""
        return self.is_cancelling or bool(self.failed_by)

    def is_failure(self, child: Child[Any]) -> bool:
        """Whether its end is a failure of its own, and not what the block has done to it."""
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
        """The block is ended from outside, or can find out nothing more: with this error."""
        if self.fault is None:
            self.fault = error
        self.cancel_scope.cancel()
        self._notify()

    def end(self) -> None:
        """The block is over, and learns nothing any more."""
        self._is_over = True
        for child in self.children.values():
            leave_behind(child)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _lose(self) -> None:
        """This run is a stale one: it ends as if it had lost its claim."""
        self.owner.lose()
        await anyio.sleep_forever()

    # --- Beside the body ---

    async def work(self) -> None:
        """Follow the ends of children, and do what they ask for, until cancelled."""
        await follow_ends(self._monque, self.ends, self._do_what_ends_ask)

    async def _do_what_ends_ask(self) -> None:
        while True:
            await self._to_do.wait()
            self._to_do = anyio.Event()
            try:
                await self._do()
            except MonqueConnectionError as error:
                if not error.transient:
                    raise
                logger.warning("%s; retrying (the block %r waits)", error, self.block.key)
                await anyio.sleep(AGAIN_AFTER)
                self._to_do.set()

    async def _do(self) -> None:
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
                    await self._lose()
                return
            self._again -= ids
            self._found(found)

    # --- Commands, also for the end of the block ---

    async def record_failure(self) -> None:
        """Write into the parent that the block has failed, unless it is written."""
        if self.failed_by and list(self.block.failed_by) != self.failed_by:
            await self.owner.record_failure(self.block.key, self.failed_by)
            self.block.failed_by = tuple(self.failed_by)

    async def cancel_children(self, ids: tuple[ObjectId, ...] | None = None) -> None:
        """Cancel what lives of the block, or these children of it. To be repeated until nothing lives."""
        if ids is None:
            # First: a later run must not start again what is cancelled here.
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
                "block %r of job %s failed by its child %s; %d other children are cancelled",
                self.block.key,
                job,
                self.failed_by[0],
                number,
                extra=log_extra(job),
            )

    async def live(self) -> Sequence[LiveChild]:
        """Return what lives of the block, a thousand at most; also children that this run did not ask for."""
        look = partial(nursery_children.live, self._context.jobs, self._asking.scope, self.block.key)
        return await carry_out(self._monque, Read(look))


def _check_options(options: Mapping[str, Any]) -> None:
    if wrong := options.keys() & NOT_FOR_CHILDREN:
        name = min(wrong)
        raise InvalidOptionError(name, options[name], "is not for children: `key` names a child in its block")
    if unknown := options.keys() - OPTIONS:
        name = min(unknown)
        raise InvalidOptionError(name, options[name], "is not an option of a child")


def _checked_key(key: object) -> str:
    if not is_key(key, LONGEST_KEY):
        raise InvalidOptionError("key", key, f"must be a text of 1 to {LONGEST_KEY} characters")
    return key


def has_been_deleted(child: Child[Any]) -> bool:
    """Whether its job is gone."""
    return child.has_ended and isinstance(child.error, JobDeletedError)
