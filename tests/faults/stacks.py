"""What a process that does not end waits for: the stacks of its trio tasks and threads, on standard error."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Final

import trio

SHOW_TASKS: Final = signal.SIGUSR1


def show_tasks_on_signal() -> None:
    """On SHOW_TASKS, write the stacks of all tasks, and abort; an abort writes those of all threads."""
    faulthandler.enable()
    signal.signal(SHOW_TASKS, _show_tasks)


def _show_tasks(_signal: int, _frame: FrameType | None) -> None:
    root = trio.lowlevel.current_root_task()
    for task in _below(root) if root is not None else ():
        print(f"task {task.name}", file=sys.stderr)  # noqa: T201
        print("".join(traceback.StackSummary.extract(task.iter_await_frames()).format()), file=sys.stderr)  # noqa: T201
    sys.stderr.flush()
    os.abort()


def _below(task: trio.lowlevel.Task) -> Iterator[trio.lowlevel.Task]:
    yield task
    for nursery in task.child_nurseries:
        for child in nursery.child_tasks:
            yield from _below(child)
