"""NurseryOwner: what a job nursery needs of its parent, a handler's run or a program."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ..jobs.job import Job
from ..jobs.nursery_scopes import Asking
from ..store.driver.types import ObjectId
from .monque import Monque


class NurseryOwner(Protocol):
    """The parent of a job nursery. The block calls it on its own event loop."""

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
        """Whether the next run takes the children over: this run has lost its claim, or is cut short by a shutdown."""
        ...

    def opening(self, key: str | None, *, releases: bool) -> AbstractAsyncContextManager[NurseryBlock]:
        """Open a block: write the scope, unless the parent has one. The block is open as long as the context is.

        Args:
            key: Of the block.
            releases: Whether a drain releases a run that waits in the block.

        Raises:
            MonqueError: A block cannot be opened now; the message says what to do.
        """
        ...

    async def record_failure(self, block: str, children: Sequence[ObjectId]) -> None:
        """Write that a block has failed, and by which children, before the failure has any other effect."""
        ...

    @property
    def work(self) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """What the block runs beside its body, until it cancels it; None for nothing."""
        ...

    def waiting(
        self, live: Callable[[], Collection[ObjectId]], *, is_cancelling: bool = False
    ) -> AbstractAsyncContextManager[None]:
        """Return a context in which the run waits for its children, and does not occupy a slot.

        Args:
            live: Returns the children whose ends the block does not know yet. It may be called in any thread.
            is_cancelling: The block has cancelled them: their ends are near, and a drain does not release the run.
        """
        ...

    async def raise_if_cancelled(self) -> None:
        """Raise the cancellation of the run, if there is one, and unless the caller is shielded from it.

        Behind this, a block raises what its children ended with. The handler of a cancelled run must not act on that:
        the block may have left live children behind. On trio, leaving the block would raise the cancellation anyway; on
        asyncio, it comes with the next `await`, and a handler may do without one.
        """
        ...

    def closing(self, *, is_cancelled: bool) -> AbstractContextManager[object]:
        """Return a context for the end of a block, shielded for as long as a cancelled parent may clean up.

        `is_cancelled` is true if a cancellation has ended the body. If asyncio itself has cancelled its task, no cancel
        scope shows it.

        If the parent is cancelled inside the context, that may raise the cancellation, and the block enters a new one.
        """
        ...

    def lose(self) -> None:
        """End this run as one that has lost its claim: a newer run has taken over."""
        ...


@dataclass(slots=True)
class NurseryBlock:
    """An open block.

    Attributes:
        asking: The scope, and the run.
        key: The key of the block, or its number.
        failed_by: The children by which it failed in an earlier run of this try; empty if it did not.
        is_resumed: Whether an earlier run has opened the scope, and may have started children.
        is_over: The parent calls it when it is ended from outside, with the error that the block then raises.
            `ChildrenOfBlock` sets it.
    """

    asking: Asking
    key: str
    is_resumed: bool
    failed_by: Sequence[ObjectId] = ()
    is_over: Callable[[BaseException], None] | None = None
