"""BlockStarts: starts children inside one block of a job nursery, and gives each one the id that every run finds again.

It belongs to the event loop of the block. `child_starts.py` stores the children, a thousand with one statement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel

from ..error_types import InvalidOptionError, MonqueError
from ..jobs.job_parts import ChildOf
from ..jobs.new_job import Draft, NewJob, name_of
from ..jobs.nursery_scopes import child_id, default_key, is_key
from ..jobs.stored_value_limits import TypedWorker, result_reader_of
from ..store.driver.types import ObjectId
from .child import Child
from .child_starts import NewChild, ScopeLostError, start_children
from .children_of_block import ChildrenOfBlock
from .enqueue import OPTIONS, draft_of
from .monque import carry_out, context_of
from .operation import Write

NOT_FOR_CHILDREN: Final = frozenset({"unique_key", "on_conflict", "max_wait"})
"""With a unique key, a child could be the document of another job, or another call could replace or schedule it."""

MOST_IN_A_STATEMENT: Final = 1000

MOST_DRAFTED_AT_ONCE: Final = 100
"""Children that are checked between two turns of the event loop."""

LONGEST_KEY: Final = 1024


class BlockStarts:
    """See the top of this file."""

    def __init__(self, block: ChildrenOfBlock) -> None:
        self._block = block
        self._asking = block.block.asking
        self._context = context_of(block.owner.monque)
        # How often the body has asked for each content without a key.
        self._used: Counter[str] = Counter()

    async def start(
        self, worker: Any, items: Sequence[Any], key: Callable[[Any], str] | None, options: dict[str, Any]
    ) -> Sequence[Child[Any]]:
        """Start a child for each item, or find those that an earlier run has started."""
        await anyio.lowlevel.checkpoint()  # Before anything else: a failed block does not start children any more.
        self._check_open()
        _check_options(options)
        parent = self._block.owner.job
        if options.get("meta") is None and parent.meta:
            options = {**options, "meta": parent.meta}
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
        # The block's cancellation does not reach a task that was started around the block.
        if not self._block.is_open or self._block.failed_by:
            key = self._block.block.key
            raise MonqueError(f"the block {key!r} of the job nursery has ended: start children inside it")

    def _drafted(self, worker: str | TypedWorker[Any], data: Any, options: dict[str, Any]) -> Draft:
        return draft_of(self._context, NewJob(name=name_of(worker), data=data, **options), worker)

    def _named(self, drafts: Sequence[Draft], keys: Sequence[str] | None) -> dict[ObjectId, NewChild]:
        asking, parent, block = self._asking, self._block.owner.job.id, self._block.block.key
        new: dict[ObjectId, NewChild] = {}
        for number, draft in enumerate(drafts):
            given = None if keys is None else keys[number]
            # With these prefixes, a given key never equals the default key of another child.
            full = (
                f"by content:{default_key(draft.new.name, draft.payload, self._used)}"
                if given is None
                else f"by key:{given}"
            )
            one = child_id(asking.scope, block, full)
            if one in self._block.children or one in new:
                raise InvalidOptionError("key", given, "is the key of another child of this block")
            part = ChildOf(scope=asking.scope, parent=parent, block=block, key=given, run=asking.epoch)
            new[one] = NewChild(draft, part, full)
        return new

    async def _wait(self, event: anyio.Event) -> None:
        async with self._block.owner.waiting(self._block.ends.live.copy):
            await event.wait()

    async def _send(self, children: Sequence[Child[Any]], new: Mapping[ObjectId, NewChild]) -> None:
        block = self._block
        if block.failed_by:
            await anyio.lowlevel.checkpoint()
        self._check_open()  # The block may have ended since the first look.
        sent = {child.id: new[child.id] for child in children}
        block.children.update((child.id, child) for child in children)
        # Noted until the answer arrives. The server may still apply a call that failed or was cancelled, and its
        # children would outlive the block: before the block is left, `prevent_children` makes that impossible.
        block.unanswered |= sent
        start = partial(start_children, self._context, self._asking, sent, is_resumed=block.block.is_resumed)
        try:
            found = await carry_out(block.owner.monque, Write(lambda caused: start(caused=caused)))
        except BaseException as error:
            for one in sent:
                block.children.pop(one, None)  # The block does not wait for children that its body did not get.
            block.notify()  # Nor does a task that waits for the next end.
            if not isinstance(error, ScopeLostError):
                raise
            self._check_open()  # After a failure, the block itself may have cancelled what was found.
            await block.lose()
            return
        for one in sent:
            del block.unanswered[one]
        block.take_found(found)


def _check_options(options: Mapping[str, Any]) -> None:
    if wrong := options.keys() & NOT_FOR_CHILDREN:
        name = min(wrong)
        raise InvalidOptionError(name, options[name], "is not for children: `key` names a child in its block")
    if unknown := options.keys() - OPTIONS:
        name = min(unknown)
        raise InvalidOptionError(name, options[name], "is not an option of a child")


def _checked_key(key: object) -> str:
    if not is_key(key, LONGEST_KEY):
        raise InvalidOptionError("key", key, f"must be a string of 1 to {LONGEST_KEY} characters")
    return key
