"""Filters and ids as text: MongoDB's extended JSON, in which a date is {"$date": "2026-01-01T00:00:00Z"}."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

import bson
from bson import ObjectId, json_util
from bson.errors import BSONError

from ...error_types import InvalidOptionError
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
    """Return the id: 24 hexadecimal digits are an ObjectId, other extended JSON is its value, the rest is text."""
    if _OBJECT_ID.fullmatch(text):
        return ObjectId(text)
    try:
        found = json_util.loads(text, json_options=OPTIONS)
        bson.encode({"": found})
    except UNREADABLE:
        return text
    return found


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
