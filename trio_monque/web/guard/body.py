"""The body of a request: read in pieces up to a limit, and parsed so that nothing in it can be a surprise later."""

from __future__ import annotations

import json
from contextlib import aclosing
from typing import Any, Final

from starlette.requests import Request

from ..answers import RefusedRequestError

MOST_BYTES: Final = 1 << 20
DEEPEST: Final = 100
LARGEST_INTEGER: Final = 2**63 - 1

MALFORMED: Final = "Malformed request. The body must be JSON"
NO_BODY: Final = object()
"""There is none, or an empty one."""


async def body_of(request: Request) -> Any:
    """Return the value of the body, or NO_BODY.

    Raises:
        RefusedRequestError: It is too large (413), has another content type (415), or cannot be read (400).
    """
    raw = await _read(request)
    if not raw:
        return NO_BODY
    # A page of another origin can send a form or plain text without asking, but not JSON.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedRequestError(415, "The body must have the content type application/json")
    return parsed(raw)


async def form_bytes(request: Request) -> bytes:
    """Return the body of a form that a page of ours has posted.

    Raises:
        RefusedRequestError: It is too large (413), or has another content type (415).
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/x-www-form-urlencoded":
        raise RefusedRequestError(415, "The body must be a form")
    return await _read(request)


async def _read(request: Request) -> bytes:
    announced = request.headers.get("content-length", "0")
    if announced.isascii() and announced.isdigit() and int(announced[:20]) > MOST_BYTES:
        raise _too_large()
    raw = bytearray()
    async with aclosing(request.stream()) as pieces:  # Maybe without an end, if it is chunked.
        async for piece in pieces:
            raw += piece
            if len(raw) > MOST_BYTES:
                raise _too_large()
    return bytes(raw)


def _too_large() -> RefusedRequestError:
    return RefusedRequestError(413, f"The body is larger than {MOST_BYTES:,} bytes")


def parsed(raw: bytes) -> Any:
    """Return the value.

    Raises:
        RefusedRequestError: It is not JSON, or JSON that readers understand differently.
    """
    try:
        text = raw.decode("utf-8")
        value = json.loads(text, object_pairs_hook=_once, parse_constant=_refuse_constant, parse_int=_integer)
        _check(value, DEEPEST)
    except (ValueError, RecursionError) as error:
        raise RefusedRequestError(400, f"{MALFORMED}: {_problem(error)}") from None
    return value


def _problem(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8"
    return f"{error.msg}: line {error.lineno}" if isinstance(error, json.JSONDecodeError) else str(error)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object that has a key twice means one thing to some readers, and another to others."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return found


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def _integer(digits: str) -> int:
    if len(digits) > 20 or abs(int(digits)) > LARGEST_INTEGER:
        raise ValueError("an integer has more than 64 bits")
    return int(digits)


def _check(value: Any, depth: int) -> None:
    match value:
        case str():
            _check_text(value)
        case float() if value in (float("inf"), float("-inf")):
            raise ValueError("a number is too large")
        case list() | dict() if depth == 0:
            raise ValueError("it is nested too deeply")
        case list():
            for one in value:
                _check(one, depth - 1)
        case dict():
            for key, one in value.items():
                _check_text(key)
                _check(one, depth - 1)
        case _:
            pass


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("a text has a lone surrogate") from None
