"""Exceptions whose text misbehaves, by what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final


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
