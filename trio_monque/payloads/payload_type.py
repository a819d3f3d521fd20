"""What `payload=` was given: a type, which stores and reads the data of a worker, or a callable that makes the data."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any, Final, NewType, get_origin

from .declared_types import Kind, fields_of, kind_of, name_of
from .problems import ValueProblem, key_step
from .reading import Readers
from .reading_scalars import SCALARS, Read
from .writing import TEXT_TYPES, stored_form, stored_key

# As `payload=`, these are called with the stored value, like any callable: `int` also reads "7".
BUILTINS: Final = frozenset({bool, int, float, str, bytes, bytearray, list, tuple, dict, set, frozenset})

_ARRAYS: Final = (list, tuple, deque)


class PayloadType:
    """Stores the data of one worker's jobs, and reads it.

    Attributes:
        name: The declared type, for messages.
        is_type: A type is declared, and not a callable that makes the data.
    """

    def __init__(self, declared: Any) -> None:
        self.name = name_of(declared)
        self._declared = declared
        self.is_type = _is_type(declared)
        self._read: Read | None = None if self.is_type else declared
        self._may_mistake = False
        kind = kind_of(declared)
        instances = get_origin(declared) or declared if kind is not None else declared
        self._instances = instances if isinstance(instances, type) else None

    def prepare(self) -> None:
        """Checks at once whether a payload can have this type. Otherwise the first value would show it.

        Raises:
            TypeError: A payload cannot have this type.
        """
        with suppress(NameError):  # A class that is defined further down exists at the first use.
            self._reader()

    def takes(self, data: Any) -> bool:
        """Whether the data is an instance of the declared class. True if something else than a class was declared."""
        if self._instances is None:
            return True
        try:
            return isinstance(data, self._instances)
        except TypeError:  # A TypedDict, or a Protocol that is not runtime_checkable.
            return True

    def store(self, data: Any) -> Any:
        """The stored form of the data, after `read` has accepted it.

        Raises:
            ValueProblem: The data does not have the declared type, or cannot be stored.
            NameError: An annotation uses a name that cannot be found.
        """
        if not self.is_type:
            return stored_form(data) if isinstance(data, set | frozenset) else stored_instance(data)
        stored = stored_form(data)
        # Everything that is enqueued can be read: no check is as reliable as reading it.
        found = self._reader()(stored)
        if self._may_mistake:
            _check_same_classes(data, found)
        return stored

    def read(self, stored: Any) -> Any:
        """The data as the handler gets it. Raises ValueProblem, NameError, or what a callable raises."""
        return self._reader()(stored)

    def _reader(self) -> Read:
        if self._read is None:
            readers = Readers()
            self._read = readers.of(self._declared).read
            self._may_mistake = readers.may_mistake
        return self._read


def _is_type(declared: Any) -> bool:
    if not isinstance(declared, type):
        return not callable(declared) or isinstance(declared, NewType) or get_origin(declared) is not None
    if declared in BUILTINS:
        return False
    return kind_of(declared) is not None or declared in SCALARS or issubclass(declared, (Enum, *TEXT_TYPES))


def stored_instance(data: Any) -> Any:
    """The stored form of an instance of a class with fields; any other value unchanged.

    Raises:
        ValueProblem: A field cannot be stored.
    """
    cls = type(data)
    # BUILTINS have no fields: for them, which most data is, this spares the look for a kind.
    return data if cls in BUILTINS or kind_of(cls) is None else stored_form(data)


def _check_same_classes(data: Any, found: Any) -> None:
    """Checks that values of a union of classes were read back as the class that they have."""
    kind = kind_of(type(data))
    if kind is None and isinstance(data, Mapping):
        parts = _same_keys(data, found) if isinstance(found, Mapping) else []  # A dict may stand for a class.
    elif kind is None or kind is Kind.NAMED_TUPLE:
        is_array = isinstance(data, _ARRAYS) and isinstance(found, _ARRAYS)
        parts = (
            [(f"[{number}]", *pair) for number, pair in enumerate(zip(data, found, strict=False))] if is_array else []
        )
    elif not isinstance(data, type(found)):
        raise ValueProblem(
            f"a stored {type(data).__name__} would be read as {type(found).__name__}: give the classes of the union "
            "a field that tells them apart, for example kind: Literal['circle']"
        )
    elif kind in (Kind.DATACLASS, Kind.ATTRS):
        names = [field.attribute for field in fields_of(type(found), kind) if field.is_argument]
        parts = [(f".{name}", getattr(data, name), getattr(found, name)) for name in names]
    else:
        return  # pydantic and msgspec distinguish the classes inside theirs themselves.
    for step, value, back in parts:
        try:
            _check_same_classes(value, back)
        except ValueProblem as problem:
            problem.under(step)
            raise


def _same_keys(data: Mapping[Any, Any], found: Mapping[Any, Any]) -> list[tuple[str, Any, Any]]:
    """The values that were read back, with those they were. Some keys come back as text; a TypedDict ignores others."""
    keys = [(key, key if key in found else stored_key(key)) for key in data]
    return [(key_step(key), data[key], found[back]) for key, back in keys if back in found]
