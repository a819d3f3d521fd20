"""A value of JSON as pieces of text that a template prints, each with its class; no HTML is made here. Pure.

No number passes through a float or a script on its way: each piece has the digits that Python's own JSON has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

WIDTH: Final = 72
"""Numbers and short texts in a list share lines of up to this many characters."""

_PLAIN: Final = ""


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece of text.

    Attributes:
        kind: Its class: "j-k" for a key, "j-s" for a text, "j-n" for a number, "j-b" for true, false and null; "" for
            what is between them.
        text: As it is printed; not escaped.
    """

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ColouredJson:
    """A value, ready to be printed.

    Attributes:
        pieces: The text in order.
        is_cut: Whether only its beginning is here.
        size: The bytes of the whole value as JSON without spaces.
    """

    pieces: tuple[Piece, ...]
    is_cut: bool
    size: int


def coloured(value: Any, longest: int) -> ColouredJson:
    """Return the pieces of a value, up to this many characters.

    Raises:
        TypeError, ValueError, RecursionError: JSON cannot hold the value. Only a hook of the host returns such a value.
    """
    # As the API writes it. Tuples become lists, and keys become texts.
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    plain = json.loads(text)
    pieces: list[Piece] = []
    room = longest
    for piece in _joined(_pieces(plain, "\n")):
        if len(piece.text) > room:
            pieces.append(Piece(piece.kind, piece.text[:room]))
            return ColouredJson(tuple(pieces), is_cut=True, size=len(text))
        pieces.append(piece)
        room -= len(piece.text)
    return ColouredJson(tuple(pieces), is_cut=False, size=len(text))


def _pieces(value: Any, line: str) -> Iterator[Piece]:
    """Yield the pieces of a value; `line` begins a new line at its depth."""
    if isinstance(value, Mapping) and value:
        yield from _object(value, line)
    elif isinstance(value, list) and value:
        yield from _list(value, line)
    else:
        yield _scalar(value)


def _object(value: Mapping[str, Any], line: str) -> Iterator[Piece]:
    if _stands_for_a_value(value):
        ((key, one),) = value.items()
        yield from (Piece(_PLAIN, "{"), Piece("j-k", _text(key)), Piece(_PLAIN, ": "), _scalar(one), Piece(_PLAIN, "}"))
        return
    inner, before = f"{line}  ", "{"
    for key, one in value.items():
        yield Piece(_PLAIN, before + inner)
        yield Piece("j-k", _text(key))
        yield Piece(_PLAIN, ": ")
        yield from _pieces(one, inner)
        before = ","
    yield Piece(_PLAIN, f"{line}}}")


def _stands_for_a_value(value: Mapping[str, Any]) -> bool:
    """Whether it is one value in extended JSON, such as {"$date": "2026-01-01T00:00:00Z"}."""
    key, one = next(iter(value.items()))
    return len(value) == 1 and key.startswith("$") and isinstance(one, str | int | float) and len(str(one)) <= WIDTH


def _list(value: list[Any], line: str) -> Iterator[Piece]:
    inner = f"{line}  "
    if all(_is_short(one) for one in value):
        yield from _packed(value, line, inner)
        return
    before = "["
    for one in value:
        yield Piece(_PLAIN, before + inner)
        yield from _pieces(one, inner)
        before = ","
    yield Piece(_PLAIN, f"{line}]")


def _packed(value: list[Any], line: str, inner: str) -> Iterator[Piece]:
    """Yield a list of short values: as many in a line as fit."""
    is_one_line = sum(len(_scalar(one).text) + 2 for one in value[:WIDTH]) <= WIDTH and len(value) <= WIDTH
    yield Piece(_PLAIN, "[" if is_one_line else "[" + inner)
    used = 0
    for place, one in enumerate(value):
        piece = _scalar(one)
        width = len(piece.text) + 2
        if place:
            is_full = not is_one_line and used + width > WIDTH
            yield Piece(_PLAIN, "," + inner if is_full else ", ")
            used = 0 if is_full else used
        yield piece
        used += width
    yield Piece(_PLAIN, "]" if is_one_line else line + "]")


def _is_short(value: Any) -> bool:
    return not value if isinstance(value, dict | list) else not isinstance(value, str) or len(value) <= WIDTH // 2


def _scalar(value: Any) -> Piece:
    match value:
        case str():
            return Piece("j-s", _text(value))
        case bool() | None:
            return Piece("j-b", json.dumps(value))
        case int() | float():
            return Piece("j-n", json.dumps(value))
        case _:
            return Piece(_PLAIN, "{}" if isinstance(value, dict) else "[]")


def _text(value: str) -> str:
    # Letters stay letters: what cannot be seen is made visible where the page is printed.
    return json.dumps(value, ensure_ascii=False)


def _joined(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Join neighbours of one kind, so that the page has fewer elements."""
    last: Piece | None = None
    for piece in pieces:
        if last is not None and last.kind == piece.kind:
            last = Piece(last.kind, last.text + piece.text)
        else:
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last
