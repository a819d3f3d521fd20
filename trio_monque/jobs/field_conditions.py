"""Conditions on fields of the meta and of the data of a job: paths and values, checked. Pure.

A path is made of letters, digits and `_`, so it can name no operator; a value is compared for equality.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bson import Code, ObjectId

from ..error_types import InvalidOptionError

FieldValue = str | int | float | bool | ObjectId | None
"""What a field is compared with."""

Conditions = tuple[tuple[str, tuple[FieldValue, ...]], ...]
"""Paths, each with values: the field must have one of them."""

MOST_FIELDS: Final = 10
MOST_VALUES: Final = 100
LONGEST_PATH: Final = 100
LONGEST_VALUE: Final = 4096

# A key of the meta has no dots.
_PATH: Final = re.compile(r"meta\.\w+|data(\.\w+)+", re.ASCII)
_LARGEST_INTEGER: Final = 2**63 - 1


def is_field_path(given: object) -> bool:
    """Return whether it is a path such as "meta.tenant" or "data.order.id"."""
    return isinstance(given, str) and len(given) <= LONGEST_PATH and _PATH.fullmatch(given) is not None


def checked_path(option: str, given: object) -> str:
    """Return a valid path. Raises InvalidOptionError otherwise."""
    if not isinstance(given, str) or not is_field_path(given):
        problem = "must be a path such as 'meta.tenant' or 'data.order.id', of letters, digits and '_'"
        raise InvalidOptionError(option, given, problem)
    return given


def is_field_value(given: object) -> bool:
    """Return whether a field can be compared with it: text, a number, True, False, None, or an ObjectId."""
    match given:
        case Code():
            return False
        case str():
            return len(given) <= LONGEST_VALUE and not re.search(r"[\ud800-\udfff]", given)
        case int():
            return -_LARGEST_INTEGER - 1 <= given <= _LARGEST_INTEGER
        case float():
            return math.isfinite(given)
        case _:
            return given is None or isinstance(given, ObjectId)


def checked_fields(given: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Conditions:
    """Return the conditions: a field may have one value, or one of several.

    Raises:
        InvalidOptionError: A path or a value is invalid, or one of them is missing.
    """
    try:
        pairs = dict(given).items()
    except (TypeError, ValueError) as error:
        raise InvalidOptionError("fields", given, "must be a mapping, such as {'meta.tenant': 'acme'}") from error
    if not 0 < len(pairs) <= MOST_FIELDS:
        raise InvalidOptionError("fields", given, f"must have 1 to {MOST_FIELDS} fields")
    return tuple((checked_path("fields", path), _checked_values(path, values)) for path, values in pairs)


def _checked_values(path: str, given: Any) -> tuple[FieldValue, ...]:
    values = tuple(given) if isinstance(given, list | tuple | set | frozenset) else (given,)
    if not 0 < len(values) <= MOST_VALUES:
        raise InvalidOptionError("fields", given, f"must have 1 to {MOST_VALUES} values for {path}")
    for value in values:
        if not is_field_value(value):
            problem = f"must be text, a number, True, False, None or an ObjectId for {path}"
            raise InvalidOptionError("fields", value, problem)
    return values
