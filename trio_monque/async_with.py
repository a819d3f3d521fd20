"""What must be entered by `async with`: every other use is answered with how it is written.

Without it, `await open_scheduler(...)` and `scheduler = open_scheduler(...)` end in an error of contextlib's that names
a private class; and a call whose result is dropped does nothing at all.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from types import TracebackType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar

from .errors import AsyncWithError

P = ParamSpec("P")
T = TypeVar("T")


def entered_by_async_with(
    name: str,
) -> Callable[[Callable[P, AbstractAsyncContextManager[T]]], Callable[P, AbstractAsyncContextManager[T]]]:
    """Decorates what returns a context manager; `name` is what it gives, in an example."""

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
        self._is_entered = True  # One answer is enough.
        raise AsyncWithError(f"{self._name}(...) {what}: write `{self._how}`")

    def __await__(self) -> NoReturn:
        self._refuse("is not awaited")

    def __enter__(self) -> NoReturn:
        self._refuse("is entered by `async with`, not by `with`")

    def __exit__(self, *_: object) -> None: ...

    def __aiter__(self) -> NoReturn:
        self._refuse("is not iterated itself")

    __iter__ = __aiter__

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)  # Python and its tools ask for many of these.
        self._refuse(f"has no attribute {attribute!r}, as it was not entered")

    def __del__(self) -> None:
        if not self._is_entered:
            warnings.warn(
                f"{self._name}(...) was never entered, so nothing runs: write `{self._how}`", RuntimeWarning, 2
            )
