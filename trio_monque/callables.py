"""What kind of callable a user gave, and what is wrong with it as a handler."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await; sees through partials, methods and callable objects."""
    while isinstance(function, partial):
        function = function.func
    if inspect.iscoroutinefunction(function):
        return True
    return inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004  # Not whether, but how.


def problem_of_handler(handler: Any, argument: str) -> str | None:
    """Why it cannot be called with one argument, the job or the claim; None where it can, or where nothing is known."""
    if inspect.iscoroutine(handler):
        handler.close()  # It will not be awaited, which is no second fault.
        name = handler.__name__
        return f"its handler was called already: register the function itself, {name} and not {name}()"
    if not callable(handler):
        return f"its handler {handler!r} is not callable"
    if inspect.isclass(handler):
        return f"its handler is the class {handler.__name__}: register a function, or a method of an instance"
    if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
        return "its handler is a generator: a handler returns, it does not yield"
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):  # Of some that are written in C nothing is known.
        return None
    try:
        signature.bind(None)
    except TypeError:
        needs, advice = _needs(signature), _advice(signature)
        return f"its handler takes {needs}, and is called with one argument, the {argument}: {advice}"
    return None


def _needs(signature: inspect.Signature) -> str:
    needed = [name for name, one in signature.parameters.items() if one.default is one.empty and one.kind not in _REST]
    return f"{len(needed)} argument{'s' * (len(needed) > 1)} ({', '.join(needed)})" if needed else "no argument"


def _advice(signature: inspect.Signature) -> str:
    first = next(iter(signature.parameters), "")
    if first in ("self", "cls"):
        return "register the method of an instance"
    return "bind the others with functools.partial, or use resources=" if first else "add it, also where it is unused"


_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
