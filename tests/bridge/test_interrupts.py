"""A Ctrl-C at any line of the bridge: the program ends, and so does the runtime."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

from tests.bridge.support import AppRunner, open_engine
from tests.support.thoroughly import FULL
from trio_monque import bridge

ROOM: Final = str(Path(bridge.__file__).parent)
MOST_STEPS: Final = 2_000
SECONDS: Final = 30.0
"""For a program that ends. Only one that does not end takes so long."""
STRIDE: Final = 1 if FULL else 13


class Interrupt:
    """Raises KeyboardInterrupt at a step that this thread takes in the bridge: a call or a line; counted from 0.

    CPython raises it in the same places: above all before the first line of a function.

    Attributes:
        where: The step, once it was raised there.
    """

    def __init__(self, step: int) -> None:
        self._steps_left = step
        self.where = ""

    def __enter__(self) -> Interrupt:
        self._tracer = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if self.where or not frame.f_code.co_filename.startswith(ROOM):
            return None
        if event in ("call", "line"):
            if self._steps_left == 0:
                self.where = f"{event} {frame.f_code.co_qualname}:{frame.f_lineno}"
                raise KeyboardInterrupt
            self._steps_left -= 1
        return self._trace


def run_interrupted(interrupt: Interrupt, app: AppRunner) -> None:
    """Open a block with a call that runs, and end it by a cancellation."""

    async def handler() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        began = asyncio.Event()

        async def called() -> None:
            began.set()
            await handler()

        async with open_engine() as engine:
            engine.runtime.post(lambda: engine.nursery.start_soon(engine.app_loop.call, called))
            await began.wait()
            task.cancel()
            await asyncio.sleep(60)

    with suppress(BaseException), interrupt:  # It may arrive in a group with the errors of the block.
        app.run(main)


@pytest.mark.full
@pytest.mark.larger_in_full
@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")  # A Ctrl-C may leave one so.
def test_ctrl_c_at_any_step_of_the_loop_lets_the_program_end(app: AppRunner) -> None:
    before = set(threading.enumerate())
    wrong: list[str] = []
    for step in range(0, MOST_STEPS, STRIDE):
        interrupt = Interrupt(step)
        program = threading.Thread(target=run_interrupted, args=(interrupt, app), daemon=True)
        program.start()
        program.join(SECONDS)
        if program.is_alive():
            wrong.append(f"the program does not end: {step} {interrupt.where}")
        for one in set(threading.enumerate()) - before:
            if one.name == "trio_monque runtime":
                one.join(0 if program.is_alive() else SECONDS)
                if one.is_alive():
                    wrong.append(f"the runtime does not end: {step} {interrupt.where}")
        before = set(threading.enumerate())
        if not interrupt.where:
            gc.collect()  # While the warning is ignored.
            assert step > 200
            assert not wrong, wrong
            return
    raise AssertionError("the program takes more steps than expected")
