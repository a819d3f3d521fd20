"""trio.run in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TypeVar, TypeVarTuple, Unpack

import trio
from trio.testing import MockClock

from .clockwork import start_virtual_time
from .order import FIRST_MOMENT, new_seed, reproducible_order
from .own_threads import hold_for_own_threads

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def run_virtual(
    main: Callable[[Unpack[Ts]], Awaitable[T]],
    *args: *Ts,
    start: datetime | None = None,
    deterministic: bool = False,
    seed: int | None = None,
) -> T:
    """`trio.run` under a clock that jumps: whatever sleeps is over as soon as nothing else is left to do.

    Args:
        main: The async function, and its arguments.
        start: What time it is then, timezone-aware; by default now, and in a deterministic run 2030-01-01 UTC.
        deterministic: The same seed makes the same order of everything; see "Testing your jobs".
        seed: For a deterministic run; by default a random one, named in a note on the exception that it raises.
    """
    return trio.run(_run, main, args, start, seed, deterministic, clock=MockClock(autojump_threshold=0))


async def _run(
    main: Callable[[Unpack[Ts]], Awaitable[T]],
    args: tuple[*Ts],
    start: datetime | None,
    seed: int | None,
    deterministic: bool,  # noqa: FBT001  # trio.run passes positional arguments only.
) -> T:
    hold_for_own_threads()
    if start is not None or deterministic:
        start_virtual_time(start or FIRST_MOMENT)
    if not deterministic:
        return await main(*args)
    with reproducible_order(new_seed() if seed is None else seed):
        return await main(*args)
