"""JobNursery: a block that starts jobs and waits for them, wherever they run, as a trio nursery does with its tasks.

The block is in the handler of a job, or in a program, and that may be killed anywhere. Nothing in memory counts: what
the children are to each other lies in their documents (`jobs/nursery_scopes.py`), and the next run of the handler goes
on with them.
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
    """What the body of a block sees; see `open_job_nursery`."""

    def __init__(self, block: ChildrenOfBlock) -> None:
        self._block = block
        self._starts = BlockStarts(block)

    @property
    def cancel_scope(self) -> anyio.CancelScope:
        """An `anyio.CancelScope` around the body.

        `cancel_scope.cancel()` gives up: the children are cancelled, and the block is left without an error of its own.
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
        """Start a child: a job that has ended when the block is left.

        If an earlier run of this handler has started it, that one is returned: it is not run twice.

        Args:
            worker, data, options: As for `enqueue`; without `unique_key`, `on_conflict` and `max_wait`. `meta` is the
                parent's if none is given.
            key: What names the child in this block for every run of the handler; by default its name and its data do,
                and how many equal ones were started before it.

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
        """Start a child for each item, a thousand with one statement; as `start`.

        Args:
            key: Makes the key of a child of its item.
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
        """Start a child, wait for it, and return its result; errors as `start` and as `Child.result`."""
        (child,) = await self._starts.start(worker, [data], None if key is None else lambda _: key, dict(options))
        return await child.wait()

    async def as_completed(self) -> AsyncIterator[Child[Any]]:
        """Yield the children of the block in the order of their ends, also those that are started meanwhile."""
        number, block = 0, self._block
        while number < len(block.children):
            if number == len(block.ended):
                async with block.owner.waiting():
                    # A start that failed leaves fewer children.
                    while number == len(block.ended) < len(block.children):
                        await block.some_end()
                continue
            yield block.ended[number]
            number += 1
