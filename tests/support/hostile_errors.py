"""Exceptions whose text or class misbehaves, by what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final
from unittest.mock import Mock

import trio

from trio_monque import Discard, MonqueError, Retry, Snooze


class TextOfItsOwnError(Exception):
    """Its `str` and `repr` are what it was given."""

    def __init__(self, text: Callable[[], Any]) -> None:
        super().__init__()
        self.make_text = text

    def __str__(self) -> str:
        text: str = self.make_text()
        return text

    __repr__ = __str__


class Trap(str):
    """A string none of whose methods may be called."""

    __slots__ = ()

    def _raise(self, *_: Any) -> Any:
        raise RuntimeError("a trap")

    __format__ = __len__ = __bool__ = __getitem__ = __eq__ = __add__ = __hash__ = _raise
    encode: Any = _raise
    splitlines: Any = _raise


def _raises(error: BaseException) -> Callable[[], str]:
    def text() -> str:
        raise error

    return text


def _recurses() -> str:
    return _recurses()


HOSTILE: Final[dict[str, Callable[[], BaseException]]] = {
    "raises an error": lambda: TextOfItsOwnError(_raises(ValueError("no text"))),
    "raises SystemExit": lambda: TextOfItsOwnError(_raises(SystemExit(3))),
    "raises a bare BaseException": lambda: TextOfItsOwnError(_raises(BaseException())),
    "recurses": lambda: TextOfItsOwnError(_recurses),
    "returns a number": lambda: TextOfItsOwnError(lambda: 7),
    "returns None": lambda: TextOfItsOwnError(lambda: None),
    "returns a trap": lambda: TextOfItsOwnError(lambda: Trap("trap")),
    "is 100 MB": lambda: TextOfItsOwnError(lambda: "x" * 100_000_000),
    "is 10 MB of surrogates": lambda: TextOfItsOwnError(lambda: "\ud800" * 10_000_000),
    "is a lone surrogate": lambda: TextOfItsOwnError(lambda: "\ud800"),
    "is empty": lambda: TextOfItsOwnError(str),
    "raises itself": lambda: _raising_itself(),
}


def _raising_itself() -> BaseException:
    error = TextOfItsOwnError(lambda: "")
    error.make_text = _raises(error)
    return error


# --- Classes that replace what Python itself uses ---

_PROPERTIES: Final = (
    "__class__",
    "__traceback__",
    "__cause__",
    "__context__",
    "__suppress_context__",
    "__notes__",
    "args",
    "exceptions",
    "message",
)
_METHODS: Final = (
    *("__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__dir__"),
    *("__str__", "__repr__", "__format__", "__hash__", "__eq__", "__ne__", "__bool__", "__len__", "__iter__"),
    *("__reduce__", "__reduce_ex__", "with_traceback", "add_note", "split", "subgroup", "derive"),
)
_LIES: Final[tuple[Any, ...]] = (
    *(trio.Cancelled, asyncio.CancelledError, BaseExceptionGroup, KeyboardInterrupt, SystemExit, GeneratorExit),
    *(Retry, Snooze, Discard, MonqueError, str, dict, Mock(), None),
)


def _replacing(base: type[BaseException], name: str, value: Any) -> Callable[[], BaseException]:
    error_class: Any = type(f"Odd{base.__name__}", (base,), {name: value})
    if issubclass(base, BaseExceptionGroup):
        return lambda: error_class("odd", [ValueError("in it")])
    return lambda: error_class("odd")


def _raising(make: Callable[[], BaseException]) -> Callable[..., Any]:
    def attribute(self: Any, *_: Any, **__: Any) -> Any:
        raise make()

    return attribute


def _telling(lie: Any) -> Callable[[Any], Any]:
    return lambda _self: lie


_EXITS: Final = property(_raising(SystemExit))


def _caused() -> BaseException:
    error = ValueError("caused")
    error.__cause__ = _replacing(Exception, "__class__", _EXITS)()
    return error


def replacing_errors() -> dict[str, Callable[[], BaseException]]:
    """Errors whose classes replace one attribute each: it raises, or it lies."""
    found: dict[str, Callable[[], BaseException]] = {}
    for base in (Exception, ExceptionGroup):
        for what in (ZeroDivisionError, SystemExit, KeyboardInterrupt):
            for name in (*_PROPERTIES, *_METHODS):
                attribute = property(_raising(what)) if name in _PROPERTIES else _raising(what)
                found[f"{base.__name__}.{name} raises {what.__name__}"] = _replacing(base, name, attribute)
        for lie in _LIES:
            key = f"{base.__name__}.__class__ is {getattr(lie, '__name__', type(lie).__name__)}"
            found[key] = _replacing(base, "__class__", property(_telling(lie)))
    odd = _replacing(Exception, "__class__", _EXITS)
    found["in a group"] = lambda: BaseExceptionGroup("g", [ValueError(), odd()])
    found["a base exception"] = _replacing(BaseException, "__class__", _EXITS)
    found["as a cause"] = _caused
    return found
