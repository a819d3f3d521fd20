"""pydantic models and msgspec structs: stored and read by these libraries themselves.

The libraries are imported only after a class of theirs was passed, so they are installed then.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from json import JSONDecoder
from typing import Any, Final
from uuid import UUID

from bson import Binary, Decimal128, Int64, ObjectId
from bson.binary import UUID_SUBTYPE

from .problems import ValueProblem

Read = Callable[[Any], Any]

# --- Types of bson ---


def natural(stored: Any) -> Any:
    """A stored value with Python's types in place of BSON's, at any depth, as other libraries expect them."""
    if isinstance(stored, str | bytes) and not isinstance(stored, Binary):
        return stored
    if isinstance(stored, Mapping):
        return {key: natural(value) for key, value in stored.items()}
    if isinstance(stored, list):
        return [natural(value) for value in stored]
    if isinstance(stored, datetime):
        return aware(stored)
    if isinstance(stored, Decimal128):
        return stored.to_decimal()
    if isinstance(stored, Int64):
        return int(stored)
    if isinstance(stored, Binary):
        return as_uuid(stored) or bytes(stored)
    return stored


def aware(moment: datetime) -> datetime:
    """A date that was read, with the time zone UTC if the client's codec options return naive datetimes."""
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def as_uuid(stored: Binary) -> UUID | None:
    """The UUID in a binary value; None if it is not a UUID."""
    return UUID(bytes=bytes(stored)) if stored.subtype == UUID_SUBTYPE and len(stored) == 16 else None


# --- pydantic ---


@lru_cache(maxsize=1024)
def _adapter(declared: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(declared)


def dumped_by_pydantic(value: Any) -> Any:
    """The fields of a model, under the names that reading expects. The model's own serializers are used."""
    # Values that bypassed the validation are found when the result is read back: warnings are not needed.
    cls: Any = type(value)
    return _adapter(cls).dump_python(value, by_alias=True, round_trip=True, warnings=False)


def pydantic_keys(cls: Any) -> frozenset[str]:
    """The names under which a model's fields may be stored."""
    aliases = (field.alias for field in cls.__pydantic_fields__.values())
    return frozenset(cls.__pydantic_fields__).union(alias for alias in aliases if alias is not None)


def pydantic_reader(declared: Any) -> Read:
    from pydantic import ValidationError

    adapter = _adapter(declared)

    def read(stored: Any) -> Any:
        try:
            # Never strict, even for a strict model: a stored date, set or enum is a string or a list.
            return adapter.validate_python(natural(stored), strict=False)
        except ValidationError as error:
            problem, cause = _of_pydantic(error), error if _is_short(error) else None
        raise problem from cause  # Here, where the long one is not its context: a traceback would list all problems.

    return read


MOST_PROBLEMS: Final = 10
"""How many problems of one value are described. pydantic collects all, and 16 MB may have a million."""


def without_long_list(error: BaseException) -> BaseException:
    """The error, or one with its first problems if it is a ValidationError of pydantic that has very many."""
    core = sys.modules.get("pydantic_core")
    if core is None or not isinstance(error, core.ValidationError) or _is_short(error):
        return error
    return _of_pydantic(error)


def _is_short(error: Any) -> bool:
    return bool(error.error_count() <= MOST_PROBLEMS)


def _of_pydantic(error: Any) -> ValueProblem:
    first, *others = _first_problems(error)
    count = error.error_count() - 1
    problem = ValueProblem(f"{first['msg']} (and {count} more)" if count else first["msg"])
    for step in reversed(_steps(first)):
        problem.under(step)
    if not _is_short(error):
        described = "".join(f"\n  {''.join(_steps(one))}: {one['msg']}" for one in others)
        problem.add_note(f"The next {len(others)} of {count} more problems:{described}")
    return problem


def _first_problems(error: Any) -> list[Any]:
    if _is_short(error):
        return list(error.errors(include_url=False, include_context=False, include_input=False))
    # A Python object for each problem would take five times as long as the JSON of all, without letting other threads
    # run meanwhile.
    found: list[Any] = []
    text = error.json(include_url=False, include_context=False, include_input=False)
    at, decoder = 1, JSONDecoder()  # Behind the bracket that opens the list.
    while len(found) < MOST_PROBLEMS:
        one, end = decoder.raw_decode(text, at)
        found.append(one)
        at = end + 1  # Behind the comma.
    return found


def _steps(problem: Any) -> list[str]:
    return [f"[{step}]" if isinstance(step, int) else f".{step}" for step in problem["loc"]]


def plain_of_pydantic(value: Any) -> Any:
    """The text of a value of one of pydantic's own types, such as a URL."""
    from pydantic_core import to_jsonable_python

    if hasattr(value, "get_secret_value"):
        # Its text is a row of asterisks, and the handler would get these. A field_serializer can store the secret.
        raise ValueProblem(f"a {type(value).__name__} is not stored: give its field a serializer (field_serializer)")
    return to_jsonable_python(value)


# --- msgspec ---

# msgspec leaves these types unchanged, because BSON has them. Other types become JSON types.
_KEPT: Final = (bytes, datetime, Decimal, UUID)


def dumped_by_msgspec(value: Any, plain: Callable[[Any], Any]) -> Any:
    """The fields of a struct, under their encoded names. `plain` converts values that msgspec does not know."""
    import msgspec

    def other(unknown: Any) -> Any:
        # msgspec encodes what this returns again, and knows none of BSON's types.
        return str(unknown) if isinstance(unknown, ObjectId) else plain(unknown)

    return msgspec.to_builtins(value, builtin_types=_KEPT, str_keys=True, enc_hook=other)


def msgspec_keys(cls: Any) -> frozenset[str]:
    """The names under which a struct's fields are stored."""
    tag = cls.__struct_config__.tag_field
    return frozenset(cls.__struct_encode_fields__).union([] if tag is None else [tag])


def msgspec_reader(declared: Any, reader: Callable[[Any], Read]) -> Read:
    import msgspec

    def other(wanted: Any, stored: Any) -> Any:
        try:
            return reader(wanted)(stored)
        except ValueProblem as problem:
            raise ValueError(problem.problem) from problem  # msgspec adds the path.

    with suppress(msgspec.ValidationError):
        msgspec.convert(None, declared, dec_hook=other)  # Reports an unsupported type now, not at the first value.

    def read(stored: Any) -> Any:
        try:
            return msgspec.convert(natural(stored), declared, str_keys=True, dec_hook=other)
        except msgspec.ValidationError as error:
            raise _of_msgspec(str(error)) from error

    return read


def _of_msgspec(message: str) -> ValueProblem:
    text, _, path = message.partition(" - at `$")
    problem = ValueProblem(text)
    if path:
        problem.under(path.removesuffix("`"))
    return problem
