"""Context managers that must be entered with `async with`: any other use raises an error that shows the right form.

Without it, `await open_scheduler(...)` and `scheduler = open_scheduler(...)` end in an error of contextlib that names
a private class, and a call whose result is dropped does nothing, without any error.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

from .error_types import AsyncWithError

P = ParamSpec("P")
T = TypeVar("T")


def entered_by_async_with(
    name: str,
) -> Callable[[Callable[P, AbstractAsyncContextManager[T]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """Decorates a function that returns a context manager; `name` is the variable in the example of the message."""

    def decorate(function: Callable[P, AbstractAsyncContextManager[T]]) -> Callable[P, AbstractAsyncContextManager[T]]:
        how = f"async with {function.__name__}(...) as {name}:"

        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T]:
            return _AsyncWith(function.__name__, how, function(*args, **kwargs))

        return call

    return decorate


class _AsyncWith(AbstractAsyncContextManager[T], Generic[T]):
    _is_entered = False

    def __init__(self, name: str, how: str, manager: AbstractAsyncContextManager[T]) -> None:
        self._name = name
        self._how = how
        self._manager = manager

    async def __aenter__(self) -> T:
        self._is_entered = True
        return await self._manager.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._manager.__aexit__(kind, error, trace)

    def _refuse(self, what: str) -> NoReturn:
        self._is_entered = True  # The error is enough: no warning in addition.
        raise AsyncWithError(f"{self._name}(...) {what}: write `{self._how}`")

    def __await__(self) -> NoReturn:
        self._refuse("must not be awaited")

    def __enter__(self) -> NoReturn:
        self._refuse("is entered with `async with`, not with `with`")

    def __exit__(self, *_: object) -> None: ...

    def __aiter__(self) -> NoReturn:
        self._refuse("cannot be iterated")

    __iter__ = __aiter__

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # Python and its tools probe for many of these.
        self._refuse(f"has no attribute {attribute!r}, because it was not entered")

    def __del__(self) -> None:
        if not self._is_entered:
            warnings.warn(
                f"{self._name}(...) was never entered, so nothing runs: write `{self._how}`", RuntimeWarning, 2
            )
