"""The event loops that a program may run, on each of which a scheduler can be opened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar, TypeVarTuple, Unpack

import anyio

T = TypeVar("T")
ArgsT = TypeVarTuple("ArgsT")

TRIO: Final = "trio"
ASYNCIO: Final = "asyncio"
BRIDGED: Final = (ASYNCIO, "uvloop")
"""Loops beside which the scheduler runs in a thread of its own."""
LOOPS: Final = (TRIO, *BRIDGED)


def run(loop: str, function: Callable[[Unpack[ArgsT]], Awaitable[T]], *args: *ArgsT) -> T:
    """Run an async function on a loop of this name; return what it returns."""
    options: dict[str, Any] = {} if loop == TRIO else {"use_uvloop": loop == "uvloop"}
    return anyio.run(function, *args, backend=TRIO if loop == TRIO else ASYNCIO, backend_options=options)
