"""HandlerTasks: what the engine asks about handlers that may run on another loop than its own."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from typing import Final, Protocol

import trio

from .loop_blocks import LoopBlocks


class HandlerTasks(Protocol):
    """Where handlers run, for the engine.

    Attributes:
        is_answering: Whether a handler that is called now would begin. While it is False, nothing is claimed.
        lag: Seconds that their loop, if it is another than the engine's, took to answer or has not answered yet;
            otherwise None.
        blocks: When their loop, if it is another than the engine's, was blocked for longer than a second.
    """

    @property
    def lag(self) -> float | None: ...

    @property
    def blocks(self) -> LoopBlocks: ...

    @property
    def is_answering(self) -> bool: ...

    def frames_of(self, task: trio.lowlevel.Task) -> str:
        """Return where a handler waits: its frames, formatted. The task is that of its run, which has called it."""
        ...

    def complaints(self) -> Sequence[str]:
        """Return why their loop keeps handlers from going on; in any thread."""
        ...


class TrioTasks:
    """Handlers that run in the tasks of their runs."""

    is_answering = True
    lag = None
    blocks = LoopBlocks()  # None: the watchdog of the engine watches their loop.

    def frames_of(self, task: trio.lowlevel.Task) -> str:
        """Return the frames of the task, and those of the tasks in its nurseries."""
        stack = traceback.StackSummary.extract(task.iter_await_frames())
        lines = traceback.format_list(stack)
        for nursery in task.child_nurseries:
            for child in nursery.child_tasks:
                lines.append(f"  in its child {child.name}:\n{self.frames_of(child)}")
        return "".join(lines)

    def complaints(self) -> Sequence[str]:
        """Return none: the watchdog of the engine watches this loop."""
        return ()


TRIO_TASKS: Final = TrioTasks()
