"""NurseryOwner: what a job nursery needs of its parent, a handler's run or a program."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ..jobs.job import Job
from ..jobs.nursery_scopes import Asking
from ..store.driver.types import ObjectId
from .monque import Monque


class NurseryOwner(Protocol):
    """The parent. All calls are made on the loop of its block."""

    @property
    def monque(self) -> Monque:
        """The client that starts the children."""
        ...

    @property
    def job(self) -> Job:
        """The parent, as its run holds it."""
        ...

    @property
    def leaves_children(self) -> bool:
        """Whether the run ends in a way that leaves its children to the next one: it is lost, or shut down."""
        ...

    def opening(self, key: str | None) -> AbstractAsyncContextManager[NurseryBlock]:
        """Open a block: write the scope, unless the parent has it. The block is open for as long as the context.

        Raises:
            MonqueError: A block cannot be opened now; the message says what to do.
        """
        ...

    async def record_failure(self, block: str, children: Sequence[ObjectId]) -> None:
        """Write that a block has failed, and by which children, before anything else comes of it."""
        ...

    @property
    def work(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """What must be done beside the body, until cancelled; None for nothing."""
        ...

    def waiting(self) -> AbstractAsyncContextManager[None]:
        """Inside, the run waits for its children, and has no slot."""
        ...

    def closing(self, *, is_cancelled: bool) -> AbstractContextManager[object]:
        """Go around the end of a block: shielded for as long as a cancelled parent may clean up.

        `is_cancelled`: a cancellation has ended the body. No scope knows of it if asyncio itself cancelled its task.

        If the parent is cancelled inside of it, it may raise that, and is then entered once more.
        """
        ...

    def lose(self) -> None:
        """A newer run has taken over: this one ends as one that lost its claim."""
        ...


@dataclass(slots=True)
class NurseryBlock:
    """An open block.

    Attributes:
        asking: The scope, and the run.
        key: The key of the block, or its number.
        failed_by: The children by which it failed in an earlier run of this try; empty if it did not.
        is_resumed: An earlier run has opened the scope, and may have started children.
        is_over: Called by the parent when it is ended from outside, with the error that the block then raises. The
            nursery sets it.
    """

    asking: Asking
    key: str
    is_resumed: bool
    failed_by: Sequence[ObjectId] = ()
    is_over: Callable[[BaseException], None] | None = None
