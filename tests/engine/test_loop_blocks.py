"""What is kept of a blocked event loop, and which frames of it are shown."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from types import FrameType

import anyio
import pytest

from trio_monque.engine.loop_blocks import LoopBlocks, formatted, latest, outwards


def own_frame() -> FrameType:
    return sys._getframe()


def functions_in(text: str) -> list[str]:
    return [line.rpartition(" in ")[2] for line in text.splitlines() if line.startswith("  File ")]


def test_each_block_counts_once_and_the_last_one_is_kept_with_its_culprit() -> None:
    blocks = LoopBlocks()
    assert (blocks.count, blocks.last) == (0, None)
    blocks.begun("mail", 1.0)
    blocks.goes_on(None, 2.0)
    assert blocks.last is not None
    assert (blocks.count, blocks.last.group, blocks.last.seconds) == (1, "mail", 2.0)
    blocks.begun(None, 1.0)
    blocks.goes_on("report", 2.0)  # Whose it was is seen only in a later frame.
    assert (blocks.count, blocks.last.group, blocks.last.seconds) == (2, "report", 2.0)
    blocks.begun(None, 1.5)
    assert (blocks.count, blocks.last.group, blocks.last.seconds) == (3, None, 1.5)


def test_the_latest_of_several_loops() -> None:
    first, second, third = LoopBlocks(), LoopBlocks(), LoopBlocks()
    assert latest(first, second) is None
    first.begun("a", 1.0)
    second.begun("b", 1.0)
    assert latest(first, second, third) is second.last
    first.goes_on(None, 2.0)
    assert latest(first, second, third) is first.last
    assert first.last is not None
    assert 0.0 <= first.last.ago < 60.0


async def in_a_task(function: Callable[[], str], made: list[str]) -> None:
    made.append(function())


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_frames_begin_with_the_first_one_of_the_user_in_this_turn(backend: str) -> None:
    def shown() -> str:
        return str(formatted(tuple(outwards(own_frame()))))

    async def spawning() -> list[str]:
        made = list[str]()
        async with anyio.create_task_group() as group:
            group.start_soon(in_a_task, shown, made)
        return made

    (text,) = anyio.run(spawning, backend=backend)
    # Neither the loop nor this test, whose frames are around it.
    assert functions_in(text) == ["in_a_task", "shown", "own_frame"]


def test_frames_of_what_drives_the_loop_by_itself_are_left_out() -> None:
    made = list[str]()
    loop = asyncio.new_event_loop()
    try:
        loop.call_soon(lambda: made.append(str(formatted(tuple(outwards(own_frame()))))))
        loop.run_until_complete(asyncio.sleep(0))
    finally:
        loop.close()
    assert functions_in(made[0]) == ["<lambda>", "own_frame"]


def test_frames_of_a_loop_that_runs_no_code_of_the_user_stay_whole() -> None:
    made = list[str]()

    async def asyncio_frames() -> None:
        frame = sys._getframe()
        made.append(str(formatted(tuple(outwards(frame.f_back)))))

    asyncio.run(asyncio_frames())
    (text,) = made
    names = functions_in(text)
    assert "_run" in names
    assert test_frames_of_a_loop_that_runs_no_code_of_the_user_stay_whole.__name__ in names


def test_frames_outside_of_any_turn_are_those_of_the_user() -> None:
    names = functions_in(str(formatted(tuple(outwards(own_frame())))))
    assert names[-2:] == [test_frames_outside_of_any_turn_are_those_of_the_user.__name__, "own_frame"]
    assert formatted(()) == ""
