"""What a text may stand for that a person compares a field with: "5" is a text and a number. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from bson import ObjectId

from .field_conditions import FieldValue, is_field_value

DATA: Final = "data."
"""The paths of fields of the data begin with it."""

_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_WORDS: Final[Mapping[str, FieldValue]] = {"true": True, "false": False, "null": None}


def readings_of(path: str, text: str) -> tuple[FieldValue, ...]:
    """Return all values that the text may stand for: "5" is a text and a number. Meta are texts always."""
    if not path.startswith(DATA):
        return (text,)
    if text in _WORDS:
        return text, _WORDS[text]
    if len(text) == 24 and ObjectId.is_valid(text):
        return (text, *_numbers(text), ObjectId(text))
    return (text, *_numbers(text))


def _numbers(text: str) -> tuple[FieldValue, ...]:
    if not _NUMBER.fullmatch(text) or len(text) > 40:
        return ()
    number = float(text) if re.search("[.eE]", text) else int(text)
    # A larger integer can be stored as a float only.
    number = number if is_field_value(number) else float(text)
    return (number,) if is_field_value(number) else ()
