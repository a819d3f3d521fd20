"""JobNursery: a block that starts jobs and waits for them, wherever they run, as a trio nursery does with its tasks.

A handler or a program opens the block, and its process may die at any moment. So the state of the nursery is in the
documents of parent and children, and not in memory (`jobs/nursery_scopes.py`): the next run of the handler continues
with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypedDict, TypeVar, Unpack, overload

import anyio

from ..jobs.stored_value_limits import AsyncWorker, PlainWorker, TypedWorker
from .block_starts import BlockStarts
from .child import Child
from .children_of_block import ChildrenOfBlock

T = TypeVar("T")
R = TypeVar("R")


class ChildOptions(TypedDict, total=False):
    """The options of a child besides its name, its data and its key; see NewJob."""

    run_at: datetime | None
    delay: float | timedelta | None
    start_by: datetime | None
    max_attempts: int | None
    max_rescues: int | None
    timeout: float | None
    meta: Mapping[str, str] | None


class JobNursery:
    """Starts jobs inside a block of `open_job_nursery`, and waits for them."""

    def __init__(self, block: ChildrenOfBlock) -> None:
        self._block = block
        self._starts = BlockStarts(block)

    @property
    def cancel_scope(self) -> anyio.CancelScope:
        """An `anyio.CancelScope` around the body.

        `cancel_scope.cancel()` cancels the body and the children. The block then ends without an error of its own.
        """
        return self._block.cancel_scope

    @overload
    async def start(
        self, worker: AsyncWorker[T, R], data: T, *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> Child[R]: ...
    @overload
    async def start(
        self, worker: AsyncWorker[None, R], data: None = ..., *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> Child[R]: ...
    @overload
    async def start(
        self, worker: PlainWorker[T, R], data: T, *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> Child[R]: ...
    @overload
    async def start(
        self, worker: PlainWorker[None, R], data: None = ..., *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> Child[R]: ...
    @overload
    async def start(
        self, worker: str, data: Any = ..., *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> Child: ...
    async def start(
        self,
        worker: str | TypedWorker[Any],
        data: Any = None,
        *,
        key: str | None = None,
        **options: Unpack[ChildOptions],
    ) -> Child[Any]:
        """Start a child: a job that ends before the block is left.

        If an earlier run of this handler has started this child, return that one: it does not run twice.

        Args:
            worker, data, options: As for `enqueue`; without `unique_key`, `on_conflict` and `max_wait`. `meta` is the
                parent's if none is given.
            key: The name of the child in this block, the same in every run of the handler. By default, it is made of
                the name and the data of the job, and of the number of equal children before it.

        Raises:
            InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError: The job is
                invalid; nothing was sent.
            MonqueError: The block is over; or an earlier run started this child with another worker.
            MonqueConnectionError: The database did not store it.
        """
        (child,) = await self._starts.start(worker, [data], None if key is None else lambda _: key, dict(options))
        return child

    @overload
    async def map(
        self,
        worker: AsyncWorker[T, R],
        items: Iterable[T],
        *,
        key: Callable[[T], str] | None = ...,
        **options: Unpack[ChildOptions],
    ) -> Sequence[Child[R]]: ...
    @overload
    async def map(
        self,
        worker: PlainWorker[T, R],
        items: Iterable[T],
        *,
        key: Callable[[T], str] | None = ...,
        **options: Unpack[ChildOptions],
    ) -> Sequence[Child[R]]: ...
    @overload
    async def map(
        self,
        worker: str,
        items: Iterable[T],
        *,
        key: Callable[[T], str] | None = ...,
        **options: Unpack[ChildOptions],
    ) -> Sequence[Child]: ...
    async def map(
        self,
        worker: str | TypedWorker[Any],
        items: Iterable[Any],
        *,
        key: Callable[[Any], str] | None = None,
        **options: Unpack[ChildOptions],
    ) -> Sequence[Child[Any]]:
        """Start a child for each item, as `start` does, but up to a thousand with one statement.

        Args:
            key: Returns the key of a child for its item.
        """
        return await self._starts.start(worker, list(items), key, dict(options))

    @overload
    async def run(
        self, worker: AsyncWorker[T, R], data: T, *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> R: ...
    @overload
    async def run(
        self, worker: AsyncWorker[None, R], data: None = ..., *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> R: ...
    @overload
    async def run(
        self, worker: PlainWorker[T, R], data: T, *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> R: ...
    @overload
    async def run(
        self, worker: PlainWorker[None, R], data: None = ..., *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> R: ...
    @overload
    async def run(
        self, worker: str, data: Any = ..., *, key: str | None = ..., **options: Unpack[ChildOptions]
    ) -> Any: ...
    async def run(
        self,
        worker: str | TypedWorker[Any],
        data: Any = None,
        *,
        key: str | None = None,
        **options: Unpack[ChildOptions],
    ) -> Any:
        """Start a child, wait for it, and return its result; raise what `start` and `Child.result` raise."""
        (child,) = await self._starts.start(worker, [data], None if key is None else lambda _: key, dict(options))
        return await child.wait()

    async def as_completed(self) -> AsyncIterator[Child[Any]]:
        """Yield the children of the block in the order in which they end, including those that start meanwhile."""
        number, block = 0, self._block
        while number < len(block.children):
            if number == len(block.ended):
                async with block.owner.waiting(block.ends.live.copy):
                    # A start that fails reduces the number of children.
                    while number == len(block.ended) < len(block.children):
                        await block.some_end()
                continue
            yield block.ended[number]
            number += 1
