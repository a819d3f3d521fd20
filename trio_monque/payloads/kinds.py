"""Which classes have fields that can be stored one by one, and who knows how.

A class is recognised by what its library has left in it, so that nothing is imported for that: whether pydantic,
msgspec or attrs is installed changes nothing for the classes of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum, auto
from typing import Any, get_origin


class Kind(Enum):
    """Who knows how instances of a class are stored and read."""

    PYDANTIC = auto()
    MSGSPEC = auto()
    ATTRS = auto()
    DATACLASS = auto()
    TYPED_DICT = auto()
    NAMED_TUPLE = auto()


_MARKS = {
    Kind.PYDANTIC: "__pydantic_validator__",  # Its dataclasses have it, too.
    Kind.MSGSPEC: "__struct_config__",
    Kind.ATTRS: "__attrs_attrs__",
}


def kind_of(declared: object) -> Kind | None:
    """The kind of a class, or of an alias such as `Page[Item]` of one; None for all else."""
    cls = get_origin(declared) or declared
    if not isinstance(cls, type):
        return None
    for kind, mark in _MARKS.items():
        if hasattr(cls, mark):
            return kind
    if is_dataclass(cls):
        return Kind.DATACLASS
    # Not typing.is_typeddict: it does not know those of typing_extensions.
    if issubclass(cls, dict) and hasattr(cls, "__required_keys__"):
        return Kind.TYPED_DICT
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Kind.NAMED_TUPLE
    return None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a dataclass or of an attrs class.

    Attributes:
        attribute: Its name in instances.
        key: Its name in the stored document, and as an argument of the class.
        is_argument: Whether the class takes it; otherwise it is stored for people, and computed again.
        is_required: Whether the class has no default for it.
    """

    attribute: str
    key: str
    is_argument: bool
    is_required: bool


def fields_of(cls: Any, kind: Kind) -> Sequence[Field]:
    """The fields of a dataclass or an attrs class."""
    if kind is Kind.DATACLASS:
        return [
            Field(one.name, one.name, one.init, one.default is MISSING and one.default_factory is MISSING)
            for one in fields(cls)
        ]
    from attrs import NOTHING

    return [Field(one.name, one.alias, one.init, one.default is NOTHING) for one in cls.__attrs_attrs__]
