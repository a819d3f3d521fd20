"""What kind of callable a user gave."""

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
