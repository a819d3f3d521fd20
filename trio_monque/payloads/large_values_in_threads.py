"""Decides whether a stored payload is so large that reading it would block the event loop for too long. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LARGE: Final = 64 * 1024
"""Bytes, about as BSON, from which on a payload is read in a thread.

Measured on one core: to read a list of 64 kB takes 1.5 ms as a dataclass, 4 ms as a pydantic model, and 5 ms if all of
it is wrong for pydantic, which collects each problem. The time grows with the size: 256 kB take four times as long. A
call in a thread takes 0.1 ms. So a smaller payload blocks the loop for no longer than a few turns of it, and a larger
one hardly notices the thread.
"""

_ELEMENT: Final = 11
"""The bytes of a number in a list: its type, its key and its value."""


def is_large(stored: Any) -> bool:
    """Whether the stored value has about 64 kB or more. Stops counting there: a small value costs a microsecond."""
    size = 0
    left = [stored]
    while left:
        one = left.pop()
        if isinstance(one, str | bytes):
            size += len(one)
        elif isinstance(one, Mapping):
            size += _ELEMENT * len(one)
            if size < LARGE:
                size += sum(map(len, one))
                left.extend(one.values())
        elif isinstance(one, list):
            size += _ELEMENT * len(one)
            if size < LARGE:
                left.extend(one)
        if size >= LARGE:
            return True
    return False
