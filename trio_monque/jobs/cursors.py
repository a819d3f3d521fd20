"""Cursors: a place in a sorted list of jobs, as a string that a client may keep. The format is Monque's own. Pure.

A cursor is a letter and base64url text without padding. The letter is the direction in which the page was read (`F` or
`B`); a reader may go on in the other direction. The text has one of two forms: the twelve bytes of an id, for the
default order, or JSON, for every other order.
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from bson import ObjectId

from ..error_types import InvalidCursorError
from ..safe_text import shown
from .job import Job


def _in_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(other.capitalize() for other in others)


# The name of each order here, and its name in Monque's cursors.
ORDERS: Final = {
    "id": "identifier",
    **{name: _in_camel_case(name) for name in ("created_at", "updated_at", "next_run_at")},
}
_ID_LENGTH: Final = 12
_HEX_ID: Final = re.compile(r"[0-9a-fA-F]{24}")
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@dataclass(frozen=True, slots=True)
class Anchor:
    """A place in an order: the place of a job with this id and this value of the date that jobs are sorted by.

    Attributes:
        id: Breaks ties; in the order by id, the only value.
        value: The date; None in the order by id.
    """

    id: ObjectId
    value: datetime | None = None

    @property
    def key(self) -> tuple[Any, ...]:
        """The sort key: compare anchors of the same order by it."""
        return (self.id,) if self.value is None else (self.value, self.id)


def anchor_of(job: Job, by: str) -> Anchor:
    """The job's place in the order."""
    return Anchor(job.id) if by == "id" else Anchor(job.id, getattr(job, by))


def encode(anchor: Anchor, by: str, direction: str, *, backward: bool) -> str:
    """The string for a place in the order `by`, "asc" or "desc"."""
    if (by, direction) == ("id", "asc"):
        content = anchor.id.binary
    else:
        # In the order by id the value has no meaning, but Node refuses a cursor without one. Node writes the id's time.
        value = anchor.id.generation_time if anchor.value is None else anchor.value
        sort = {"by": ORDERS[by], "direction": direction, "value": _iso(value)}
        content = json.dumps({"id": str(anchor.id), "sort": sort}, separators=(",", ":")).encode()
    return ("B" if backward else "F") + urlsafe_b64encode(content).decode().rstrip("=")


def decode(cursor: object, by: str, direction: str) -> Anchor:
    """Reads a cursor for the order `by`, `direction`.

    Raises:
        InvalidCursorError: It is not a cursor, or belongs to another order.
    """
    content = _content(cursor)
    # The length comes first: an id may begin with the byte of "{".
    if len(content) == _ID_LENGTH:
        _check_order(cursor, ("identifier", "asc"), by, direction)
        return Anchor(ObjectId(content))
    return _structured(cursor, content, by, direction)


def _content(cursor: object) -> bytes:
    if not isinstance(cursor, str) or cursor[:1] not in {"F", "B"}:
        raise _malformed(cursor, "it does not begin with F or B")
    text = cursor[1:]
    try:
        content = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except ValueError as error:
        raise _malformed(cursor, "it is not base64url") from error
    # The decoder skips characters that it does not know.
    if urlsafe_b64encode(content).decode().rstrip("=") != text:
        raise _malformed(cursor, "it is not base64url without padding")
    return content


def _structured(cursor: object, content: bytes, by: str, direction: str) -> Anchor:
    try:
        said = json.loads(content)
        hex_id, order, other_direction = said["id"], said["sort"]["by"], said["sort"]["direction"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _malformed(cursor, "it contains neither an id nor a place in an order") from error
    if not isinstance(hex_id, str) or not _HEX_ID.fullmatch(hex_id):
        raise _malformed(cursor, "its id is not valid")
    if order not in list(ORDERS.values()) or other_direction not in ["asc", "desc"]:
        raise _malformed(cursor, "it has an unknown order")
    _check_order(cursor, (order, other_direction), by, direction)
    return Anchor(ObjectId(hex_id), None if by == "id" else _moment(cursor, said["sort"].get("value")))


def _moment(cursor: object, value: object) -> datetime:
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass  # For example, a thirteenth month.
    raise _malformed(cursor, "it has no date")


def _iso(moment: datetime) -> str:
    # %Y has no leading zeros before the year 1000 on some systems.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _check_order(cursor: object, its: tuple[str, str], by: str, direction: str) -> None:
    if its != (ORDERS[by], direction):
        raise InvalidCursorError(
            f"cursor {shown(cursor)} belongs to the order by {its[0]}, {its[1]}, but sort is {by}, {direction}: "
            "pass the sort of the page that it came from, or start without a cursor"
        )


def _malformed(cursor: object, problem: str) -> InvalidCursorError:
    return InvalidCursorError(f"{shown(cursor)} is not a cursor of a page: {problem}. Pass the `cursor` of a page")
