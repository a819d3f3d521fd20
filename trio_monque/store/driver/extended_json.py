"""Filters and ids as text: MongoDB's extended JSON, in which a date is {"$date": "2026-01-01T00:00:00Z"}."""

from __future__ import annotations

import re
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson import DBRef, ObjectId, json_util
from bson.errors import BSONError
from bson.regex import Regex

from ...error_types import InvalidCursorError, InvalidOptionError
from ..codec import OWN_OPTIONS

OPTIONS: Final = json_util.RELAXED_JSON_OPTIONS.with_options(tz_aware=True, tzinfo=OWN_OPTIONS.tzinfo)
UNREADABLE: Final = (ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError, BSONError)
"""What the driver's parser raises for objects of a wrong shape, such as {"$binary": 5} or {"$numberDecimal": "x"}."""

_OBJECT_ID: Final = re.compile(r"[0-9a-f]{24}")


def filter_in(text: str) -> Mapping[str, Any]:
    """Return the filter. Raises InvalidOptionError if the text is not extended JSON of an object."""
    try:
        found = json_util.loads(text, json_options=OPTIONS)
    except UNREADABLE as error:
        raise InvalidOptionError("filter", text, f"is not extended JSON ({error})") from None
    if not isinstance(found, dict):
        raise InvalidOptionError("filter", text, 'must be an object, for example \'{"status": "new"}\'')
    return found


def id_in(text: str) -> Any:
    """Return the id: 24 hexadecimal digits are an ObjectId, other extended JSON is its value, the rest is text.

    What MongoDB does not take for an id is text, too: a condition with a regular expression would name many documents.
    """
    if _OBJECT_ID.fullmatch(text):
        return ObjectId(text)
    try:
        found = json_util.loads(text, json_options=OPTIONS)
        bson.encode({"": found})
    except UNREADABLE:
        return text
    return found if _is_possible_id(found) else text


def _is_possible_id(value: object) -> bool:
    has_operator = isinstance(value, Mapping) and any(name.startswith("$") for name in value)
    return not has_operator and not isinstance(value, Regex | DBRef | list)


def text_of_place(place: Mapping[str, Any]) -> str:
    """Return a place in the order of ids, a document with an `_id` of any type, as text that is safe in a URL."""
    return urlsafe_b64encode(bson.encode(place, codec_options=OWN_OPTIONS)).rstrip(b"=").decode()


def place_in(text: str) -> Mapping[str, Any]:
    """Return the place that `text_of_place` wrote. Raises InvalidCursorError for another text."""
    try:
        raw = b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        place = bson.decode(raw, codec_options=OWN_OPTIONS)
    except UNREADABLE as error:
        raise InvalidCursorError("invalid cursor: it is not one of this list") from error
    if list(place) != ["_id"]:
        raise InvalidCursorError("invalid cursor: it is not one of this list")
    return place


def text_of_id(document_id: object) -> str:
    """Return the text from which `id_in` reads this id."""
    if isinstance(document_id, ObjectId):
        return str(document_id)
    if isinstance(document_id, str) and id_in(document_id) == document_id:
        return document_id
    try:
        return json_util.dumps(document_id, json_options=OPTIONS)
    except TypeError:
        return repr(document_id)
