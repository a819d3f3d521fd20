"""Recognises work that a function returns instead of doing it: a coroutine that it did not await, a generator that it
did not run, a task that it did not wait for.

A handler that does so has done nothing, and without this its job would count as completed. Only the type of the value
is looked at, so that no code of the value runs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from itertools import starmap
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Final


@contextmanager
def _plain_context() -> Iterator[None]:
    yield


@asynccontextmanager
async def _async_context() -> AsyncIterator[None]:
    yield


_CONTEXTS: Final = (type(_plain_context()), type(_async_context()))
_LAZY_CALLS: Final = (map, filter, starmap)
_FINISHED: Final = frozenset({type(None), bool, int, float, str, bytes, list, tuple, dict, set})
"""Most results are of these types, and need no further look."""


def unfinished_work(returned: object) -> str | None:
    """Describe what was returned instead of done, and how to do it: "returned the generator ..."; None for a result.

    A coroutine that has not begun is closed, and a task or future is cancelled: nothing else would ever await it.
    """
    kind = type(returned)
    if kind in _FINISHED:
        return None
    problem = _problem_of(kind, returned)
    if problem is not None:
        _abandon(kind, returned)
    return problem


def _problem_of(kind: type, returned: Any) -> str | None:
    if kind is CoroutineType:
        return (
            f"returned the coroutine {returned.__qualname__}, which would never run: await it, or register the async "
            "function itself"
        )
    if kind is AsyncGeneratorType:
        return f"returned the async generator {returned.__qualname__}, which would never run: loop over it (async for)"
    if kind is GeneratorType:
        return f"returned the generator {returned.__qualname__}, which would never run: loop over it, or return a list"
    if issubclass(kind, _LAZY_CALLS):
        return f"returned a {kind.__name__} object, which calls nothing by itself: loop over it, or return a list"
    if issubclass(kind, _CONTEXTS):
        return f"returned the context manager {returned.gen.__qualname__}, which was not entered: remove its decorator"
    if issubclass(kind, asyncio.Future):
        return f"returned a {kind.__name__} of asyncio, which it did not wait for, and which was cancelled: await it"
    if issubclass(kind, concurrent.futures.Future):
        return "returned a future, which it did not wait for, and which was cancelled: return future.result()"
    if any("__await__" in vars(base) for base in kind.__mro__):
        return f"returned an awaitable ({kind.__name__}), which nothing awaited: await it"
    if issubclass(kind, Generator | AsyncGenerator):
        return f"returned a generator ({kind.__name__}), which would never run: loop over it"
    return None


def _abandon(kind: type, returned: Any) -> None:
    if kind is CoroutineType:
        # Closed, so that Python does not warn that it was never awaited: the error says it. One that has begun would
        # run code of its author now.
        if inspect.getcoroutinestate(returned) == inspect.CORO_CREATED:
            returned.close()
    elif issubclass(kind, asyncio.Future):
        with suppress(RuntimeError):  # Its loop is closed.
            returned.get_loop().call_soon_threadsafe(returned.cancel)
    elif issubclass(kind, concurrent.futures.Future):
        returned.cancel()
