"""trio.run in virtual time, in an order that a seed reproduces, with a clock that waits for threads of handlers."""

from __future__ import annotations

import random
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import trio
import trio.testing
from trio.testing import MockClock

from ..error_types import MonqueError
from ..thread_turns import take_turns
from ..threads_and_frozen_time import calling_back, clock_freeze
from .virtual_time import start_virtual_time

FIRST_MOMENT: Final = datetime(2030, 1, 1, tzinfo=UTC)
"""When virtual time begins in a reproducible run by default."""


def new_seed() -> int:
    return secrets.randbelow(2**32)


@contextmanager
def reproducible_order(seed: int) -> Iterator[None]:
    """Inside, threads take turns, and the seed decides which of several runnable tasks trio runs first.

    It seeds Python's `random`, too, from which the jitter of retries comes. Threads that the program starts
    itself are not ordered.
    """
    run = _trio_run()
    state, allowed, chance = run._r.getstate(), run._ALLOW_DETERMINISTIC_SCHEDULING, random.getstate()
    run._ALLOW_DETERMINISTIC_SCHEDULING = True
    run._r.seed(seed)
    random.seed(seed)
    take_turns()
    try:
        yield
    except BaseException as error:
        error.add_note(f"This run was ordered by seed={seed}; with the same seed it runs in the same order.")
        raise
    finally:
        run._ALLOW_DETERMINISTIC_SCHEDULING = allowed
        run._r.setstate(state)
        random.setstate(chance)


def _trio_run() -> Any:
    """trio's own switch for a deterministic order, which exists for Hypothesis; pytest-trio uses it, too."""
    run = trio._core._run
    if not (hasattr(run, "_ALLOW_DETERMINISTIC_SCHEDULING") and hasattr(run, "_r")):
        raise MonqueError(f"trio {trio.__version__} has no known switch for a deterministic order")
    return run


_installed: trio.lowlevel.RunVar[bool] = trio.lowlevel.RunVar("monque_holds_for_own_threads")


class _HoldsForThreads(trio.abc.Instrument):
    """Checks after each step of a task whether threads are running, under any limiter.

    A thread that waits in `job.from_thread` does not count: the loop works for it.
    """

    def __init__(self) -> None:
        self._freeze = clock_freeze()
        self._holding = False

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        working = trio.testing.active_thread_count() > calling_back()
        if working and not self._holding:
            self._freeze.freeze()
        elif self._holding and not working:
            self._freeze.thaw()
        self._holding = working


def hold_for_own_threads() -> None:
    """From now on, every `trio.to_thread.run_sync` of this run holds its virtual clock, until the run ends."""
    try:
        _installed.get()
    except LookupError:
        _installed.set(True)
        trio.lowlevel.add_instrument(_HoldsForThreads())


T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def run_virtual(
    main: Callable[[Unpack[Ts]], Awaitable[T]],
    *args: *Ts,
    start: datetime | None = None,
    deterministic: bool = False,
    seed: int | None = None,
) -> T:
    """`trio.run` with a clock that jumps: all sleeps end as soon as no task has anything else to do.

    Args:
        main: The async function, and its arguments.
        start: When virtual time begins, timezone-aware. Default: now, or 2030-01-01 UTC in a deterministic run.
        deterministic: The same seed makes the same order of everything; see "Testing your jobs".
        seed: For a deterministic run. Random by default; a note on the exception that the run raises has it.
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
