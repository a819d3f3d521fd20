"""The meta of a job: a few strings that accompany it, such as a tenant or a trace, and are not its data. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from bson import Code

from ..error_types import InvalidOptionError

MOST_ENTRIES: Final = 32
LARGEST_META: Final = 4096
"""Bytes of all keys and values together, in UTF-8. Each look for due jobs reads them, and each list of jobs."""

# A query could not name such a key, and the server treats some of them as operators.
_NOT_A_KEY: Final = re.compile(r"\A\Z|\A\$|[.\0]")


def _refuse(*_args: object, **_kwargs: object) -> Any:
    raise TypeError("the meta of a job cannot be changed: pass meta= when you enqueue")


class _NoMeta(dict[str, str]):
    """An empty dict that stays empty: all jobs without meta share one."""

    __hash__: ClassVar[Any] = object.__hash__  # A dataclass takes no default that has none.
    __setitem__: Any = _refuse
    setdefault: Any = _refuse
    update: Any = _refuse
    __ior__: Any = _refuse


NO_META: Final[Mapping[str, str]] = _NoMeta()


def checked_meta(given: object) -> Mapping[str, str]:
    """Return the meta of a new job as a dict of its own.

    Raises:
        InvalidOptionError: It is not a mapping of strings to strings, or is too large; the message says where.
    """
    if not isinstance(given, Mapping):
        raise InvalidOptionError("meta", given, "must be a mapping of strings to strings, such as {'tenant': 'acme'}")
    if len(given) > MOST_ENTRIES:
        raise InvalidOptionError("meta", given, f"has {len(given)} entries, and at most {MOST_ENTRIES} are allowed")
    meta: dict[str, str] = {}
    for key, value in given.items():
        if not _is_text(key) or _NOT_A_KEY.search(key):
            raise InvalidOptionError(
                "meta", given, f"the key {key!r} must be a string, not empty, without '.', NUL and a '$' at its start"
            )
        if not _is_text(value):
            kind = type(value).__name__
            raise InvalidOptionError("meta", given, f"the value of {key!r} must be a string, not {kind}: use the data")
        meta[str.__str__(key)] = str.__str__(value)
    if (size := size_of(meta)) > LARGEST_META:
        raise InvalidOptionError(
            "meta", given, f"has {size} bytes, and at most {LARGEST_META} are allowed: put large values into the data"
        )
    return meta


def _is_text(value: object) -> bool:
    # MongoDB stores code as another type than text. A lone surrogate cannot be encoded.
    return isinstance(value, str) and not isinstance(value, Code) and not re.search(r"[\ud800-\udfff]", value)


def size_of(meta: Mapping[str, str]) -> int:
    """Bytes of all keys and values."""
    return sum(len(key.encode()) + len(value.encode()) for key, value in meta.items())


def is_meta(stored: Mapping[Any, Any]) -> bool:
    """Whether a stored document contains nothing but strings."""
    return all(type(value) is str for value in stored.values())


def meta_of(stored: object) -> Mapping[str, str]:
    """Return the strings of what any program has stored as meta: a job runs whatever it holds."""
    if type(stored) is not dict:
        return NO_META
    return stored if is_meta(stored) else {key: value for key, value in stored.items() if type(value) is str}
