"""Refuses async calls in a thread without an event loop, and blocking calls in a task of an event loop.

An async method that is called in such a thread returns a coroutine that is never awaited: a job that was to be enqueued
is lost without an error. A blocking method in a task stops every other task, and the renewals of leases with them. Both
are refused at the call, because only there the traceback shows the caller.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from functools import WRAPPER_ASSIGNMENTS, update_wrapper, wraps
from types import MethodType
from typing import Any, Final, Protocol, TypeVar, cast

import trio

from .error_types import CallContextError

ClassT = TypeVar("ClassT", bound=type)

# From Python 3.14 on, `wraps` copies `__annotate__` instead of `__annotations__`. It is None where the annotations were
# assigned, as `present_as` does: a wrapper would have none.
COPIED: Final = (*WRAPPER_ASSIGNMENTS, "__annotations__")


def is_in_event_loop() -> bool:
    """Whether this thread runs an event loop now, of trio or asyncio: 0.1 µs."""
    return trio.lowlevel.in_trio_run() or asyncio._get_running_loop() is not None  # noqa: SLF001  # It is in __all__.


class _AsyncCall:
    """An async method that raises at once if no event loop could await its coroutine.

    It is not a wrapping function: frameworks (Starlette's background tasks, asgiref) ask `inspect.iscoroutinefunction`
    whether they must await, and that looks at the code of the callable. Documentation tools get the method itself.
    """

    def __init__(self, function: Callable[..., Any], problem: str) -> None:
        update_wrapper(self, function, assigned=COPIED)
        # With these three, `inspect.iscoroutinefunction` takes the object for a function.
        for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
            setattr(self, attribute, getattr(function, attribute))
        self._function = function
        self._problem = problem

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._function if instance is None else MethodType(self, instance)

    def __call__(self, instance: object, *args: Any, **kwargs: Any) -> Any:
        if not is_in_event_loop():
            raise CallContextError(self._problem)
        return self._function(instance, *args, **kwargs)


def async_calls(instead: str) -> Callable[[ClassT], ClassT]:
    """Decorates a class: its public async methods raise in a thread without an event loop.

    Args:
        instead: Advice what to call there; `{name}` is replaced by the method's name.
    """

    def decorate(cls: ClassT) -> ClassT:
        for name, method in list(vars(cls).items()):
            if inspect.iscoroutinefunction(method) and not name.startswith("_"):
                advice = instead.format(name=name)
                problem = f"{name}() is async, and no event loop runs in this thread: nothing would be done. {advice}"
                setattr(cls, name, _AsyncCall(method, problem))
        return cls

    return decorate


class MayBlock(Protocol):
    """An object with blocking methods."""

    blocks_loops: bool


def blocking_calls(cls: ClassT) -> ClassT:
    """Decorates a class: its public methods, inherited ones too, raise in a task of an event loop.

    An instance with `blocks_loops = True` allows them.
    """
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_"):
            setattr(cls, name, _refused_in_loops(name, method))
    return cls


def _refused_in_loops(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method, assigned=COPIED)
    def call(self: MayBlock, *args: Any, **kwargs: Any) -> Any:
        if is_in_event_loop() and not self.blocks_loops:
            raise CallContextError(
                f"sync.{name}() blocks, and would stop every task of this event loop: await {name}(...) on the client "
                f"itself, or call it in a thread. To block the loop on purpose, call sync_in_loop.{name}(...)"
            )
        return method(self, *args, **kwargs)

    return cast("Callable[..., Any]", call)
