"""LoopBlocks: how often an event loop did not answer, and whose handler blocked it last.

A watch in another thread writes it, in the turn in which it logs the block. Anything may read it, from any thread: each
attribute is replaced as a whole.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Final

from ..log import OwnLines
from .exceptions import is_beneath

BLOCKED_AFTER: Final = 1.0
"""Seconds without an answer after which a loop counts as blocked."""

_TURNS: Final = {("trio._core._run", "unrolled_run"), ("asyncio.events", "_run"), ("asyncio.runners", "run")}
"""The functions, by module and name, in which a loop calls what is ready."""


@dataclass(frozen=True, slots=True)
class LoopBlock:
    """A time in which an event loop did not answer.

    Attributes:
        group: That of the run whose handler blocked it; None for anything else. Not the run, whose claim may be large.
        seconds: How long it was, or how long it has been so far.
        seen_at: When it was last seen, by `time.monotonic`.
    """

    group: str | None
    seconds: float
    seen_at: float

    @property
    def ago(self) -> float:
        """Seconds since it was last seen."""
        return max(0.0, time.monotonic() - self.seen_at)


class LoopBlocks:
    """The blocks of one event loop.

    Attributes:
        count: How many times it was blocked for longer than a second.
        last: The last one; None if there was none.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last: LoopBlock | None = None

    def begun(self, group: str | None, seconds: float) -> None:
        """Another block has lasted this long."""
        self.last = LoopBlock(group, seconds, time.monotonic())
        self.count += 1

    def goes_on(self, group: str | None, seconds: float) -> None:
        """The block that was begun has lasted this long. Whose it is may be seen only now."""
        before = None if self.last is None else self.last.group
        self.last = LoopBlock(before if group is None else group, seconds, time.monotonic())


def latest(*loops: LoopBlocks) -> LoopBlock | None:
    """The last block of any of these loops."""
    blocks = [block for loop in loops if (block := loop.last) is not None]
    return max(blocks, key=lambda one: one.seen_at, default=None)


def outwards(frame: FrameType | None) -> Iterable[FrameType]:
    """The frames of a stack, which begin with the innermost one."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def formatted(stack: Sequence[FrameType]) -> OwnLines:
    """The frames of a stack, as a traceback shows them: from the first one of the user's code in this turn of the loop.

    The frames before it are the same for everything that blocks a loop. A stack without a frame of the user's code
    stays whole.

    Args:
        stack: The frames, which begin with the innermost one.
    """
    turn = next((at for at, one in enumerate(stack) if (_module_of(one), one.f_code.co_name) in _TURNS), len(stack))
    first = next((at for at in range(turn - 1, -1, -1) if not is_beneath(stack[at])), None)
    shown = stack if first is None else stack[: first + 1]
    return OwnLines("".join(traceback.format_list(_summary(shown))))


def _summary(stack: Sequence[FrameType]) -> traceback.StackSummary:
    return traceback.StackSummary.extract((one, one.f_lineno) for one in stack[::-1])


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))
