"""In what a value differs from the one that was expected, place by place, in words."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

_NOTHING: Final = object()

# Python 3.11 has no way to say this in one call.
_short = reprlib.Repr()
_short.maxlevel = 4
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = 12
_short.maxstring = _short.maxother = _short.maxlong = 120


def shown(value: object) -> str:
    """As it is spelled in Python, shortened where it is long."""
    return "nothing" if value is _NOTHING else _short.repr(value)


def differences(path: str, expected: Any, actual: Any) -> Iterator[str]:
    """One line for each place in which they differ; none where they are equal.

    Goes into mappings and sequences; elsewhere `==` decides, so that `unittest.mock.ANY` and its like
    can stand anywhere in what is expected.
    """
    if expected is not _NOTHING and expected == actual:
        return
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            yield from differences(f"{path}[{key!r}]", expected.get(key, _NOTHING), actual.get(key, _NOTHING))
    elif _is_sequence(expected) and _is_sequence(actual):
        for place in range(max(len(expected), len(actual))):
            yield from differences(f"{path}[{place}]", _at(expected, place), _at(actual, place))
    else:
        yield f"{path}: {shown(actual)} instead of {shown(expected)}"


def agreements(expected: Any, actual: Any) -> int:
    """In how many places they agree: how much a value has to do with the one that was expected."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return sum(agreements(value, actual.get(key, _NOTHING)) for key, value in expected.items())
    if _is_sequence(expected) and _is_sequence(actual):
        return sum(agreements(one, other) for one, other in zip(expected, actual, strict=False))
    return int(bool(expected == actual))


def _is_sequence(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _at(values: Sequence[Any], place: int) -> Any:
    return values[place] if place < len(values) else _NOTHING
