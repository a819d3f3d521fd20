"""Middleware: functions of the user around each run of a set of workers, outermost first.

A run is a chain: each middleware gets the running job, and a function that runs the rest of the chain. The chain of a
worker is composed when its handler is registered, and a worker without middleware calls its handler directly.

An async middleware runs where async handlers run: on the event loop. A plain one runs in the thread of a plain handler,
so it is always inside of the async ones, and cannot be around an async handler.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any

from ..checks import is_async, signature_of
from ..error_types import InvalidOptionError, MiddlewareError
from ..safe_text import shown
from ..unfinished_work import unfinished_work
from .running_job import RunningJob

Middleware = Callable[[RunningJob[Any, Any], Callable[[], Any]], object]
"""A function of the running job and of `run`, which it calls once; it awaits `run()` if it is async itself."""

AsyncCall = Callable[[RunningJob[Any, Any]], Awaitable[object]]
PlainCall = Callable[[RunningJob[Any, Any]], object]


def checked_middleware(given: Any) -> tuple[Middleware, ...]:
    """Check the `middleware=` of Workers.

    Raises:
        InvalidOptionError: It is not a list of functions that take the job and `run`, or its order cannot be kept.
    """
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise InvalidOptionError("middleware", given, "must be a list of functions: middleware=[timing]")
    middleware = tuple(given)
    plain: Middleware | None = None
    for one in middleware:
        if problem := _problem_of(one):
            raise InvalidOptionError("middleware", one, problem)
        if not is_async(one):
            plain = one
        elif plain is not None:
            raise InvalidOptionError(
                "middleware",
                one,
                f"it is async and comes after {_name_of(plain)}, a plain function, which runs in a thread inside of "
                "all async ones: put the plain functions last",
            )
    return middleware


def _problem_of(one: Any) -> str | None:
    example = "async def timing(job, run): await run()"
    if not callable(one):
        return f"must be a function: {example}"
    if inspect.isclass(one):
        return "is a class: pass a function, or an instance that can be called"
    if inspect.isasyncgenfunction(one) or inspect.isgeneratorfunction(one):
        return f"is a generator; a middleware calls run() and does not yield: {example}"
    try:
        signature_of(one).bind(None, None)
    except TypeError:
        return f"is called with two arguments, the job and run: {example}"
    except ValueError:  # Some functions that are written in C have no signature.
        return None
    return None


def problem_with_handler(middleware: Sequence[Middleware], handler: Callable[..., Any]) -> str | None:
    """Why the middleware cannot be around this handler; None if it can."""
    plain = [_name_of(one) for one in middleware if not is_async(one)]
    if plain and is_async(handler):
        return (
            f"its handler is async, and the middleware {plain[0]} is a plain function, which runs in the thread of a "
            "plain handler: write it as an async function, or register the handler with other Workers"
        )
    return None


# --- The chains ---


def around_async(middleware: Iterable[Middleware], handler: AsyncCall) -> AsyncCall:
    """The async functions of the middleware around an async function of the running job."""
    for one in reversed([one for one in middleware if is_async(one)]):
        handler = partial(_run_async, one, handler)
    return handler


def around_plain(middleware: Iterable[Middleware], handler: PlainCall) -> PlainCall:
    """The plain functions of the middleware around a plain handler."""
    for one in reversed([one for one in middleware if not is_async(one)]):
        handler = partial(_run_plain, one, handler)
    return handler


async def _run_async(middleware: Callable[..., Any], inner: AsyncCall, job: RunningJob[Any]) -> object:
    link = _Link(middleware)

    async def call() -> object:
        link.begin()
        try:
            link.value = _finished(await inner(job))
        finally:
            link.has_ended = True
        return link.value

    def run() -> Awaitable[object]:
        link.call = call()
        return link.call

    try:
        link.check(await middleware(job, run))
    finally:
        link.drop_call()
    return link.result()


def _run_plain(middleware: Callable[..., Any], inner: PlainCall, job: RunningJob[Any]) -> object:
    link = _Link(middleware)

    def run() -> object:
        link.begin()
        try:
            link.value = _finished(inner(job))
        finally:
            link.has_ended = True
        return link.value

    link.check(middleware(job, run))
    return link.result()


def _finished(returned: object) -> object:
    """What the handler returned. The middleware must see its failure, too: it may commit what belongs to the job."""
    if (problem := unfinished_work(returned)) is not None:
        raise TypeError(f"the handler {problem}")
    return returned


class _Link:
    """One middleware in one run, and the end of what it runs.

    The result of a run is what its handler returned: a middleware that forgets `return` does not lose it.
    """

    __slots__ = ("_has_begun", "_middleware", "call", "has_ended", "value")

    def __init__(self, middleware: Callable[..., object]) -> None:
        self._middleware = middleware
        self._has_begun = False
        self.has_ended = False
        self.value: object = None
        self.call: Coroutine[Any, Any, object] | None = None

    def begin(self) -> None:
        if self._has_begun:
            raise MiddlewareError(
                f"the middleware {_name_of(self._middleware)} called run() a second time: to try again, let the error "
                "pass, or raise Retry"
            )
        self._has_begun = True

    def check(self, returned: object) -> None:
        """Raise MiddlewareError if the middleware has returned work that nothing will do."""
        if returned is None or returned is self.call or (self._has_begun and returned is self.value):
            return
        if (problem := unfinished_work(returned)) is not None:
            raise MiddlewareError(f"the middleware {_name_of(self._middleware)} {problem}")

    def drop_call(self) -> None:
        """Close the call that the middleware made and did not await: the error says it, and Python need not warn."""
        if self.call is not None and not self._has_begun:
            self.call.close()

    def result(self) -> object:
        if self._has_begun and not self.has_ended:
            raise MiddlewareError(
                f"the middleware {_name_of(self._middleware)} returned before run() had ended: await it"
            )
        if not self._has_begun and self.call is not None:
            raise MiddlewareError(
                f"the middleware {_name_of(self._middleware)} called run() and did not await it, so the handler did "
                "not run: write await run()"
            )
        if not self._has_begun:
            raise MiddlewareError(
                f"the middleware {_name_of(self._middleware)} returned without run(), so the handler did not run: call "
                "run(), await it if the middleware is async, or raise Discard, Snooze or Retry"
            )
        return self.value


def _name_of(function: object) -> str:
    return getattr(function, "__qualname__", None) or shown(function)
