"""The types that `payload=` declares: annotations resolved, kinds of classes recognised, and their fields listed.

A class is recognised by attributes that its library sets, without an import of that library: whether pydantic, msgspec
or attrs is installed changes nothing for the classes of another.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, InitVar, dataclass, fields, is_dataclass
from enum import Enum, auto
from inspect import get_annotations
from typing import Annotated, Any, Final, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

# By name: typing_extensions has its own versions, and only newer versions of typing have all of them.
_QUALIFIERS: Final = frozenset({"Required", "NotRequired", "ReadOnly", "Final"})
_NO_VARIABLES: Final[Mapping[Any, Any]] = types.MappingProxyType({})


def resolved(declared: Any, variables: Mapping[Any, Any] = _NO_VARIABLES) -> Any:
    """A type without wrappers that do not change its values: NewType, Annotated, Required, `type` statements.

    Args:
        variables: The types of the type variables. A variable that is missing here counts as its bound, or Any.
    """
    while True:
        declared = _substituted(declared, variables)
        origin = get_origin(declared)
        if isinstance(declared, NewType):
            declared = declared.__supertype__
        elif origin is Annotated or _name(origin) in _QUALIFIERS:
            declared = get_args(declared)[0]
        elif _name(type(origin)) == "TypeAliasType":  # type Pair[T] = ...
            declared = _substituted(
                origin.__value__, dict(zip(origin.__type_params__, get_args(declared), strict=False))
            )
        elif _name(type(declared)) == "TypeAliasType":
            declared = declared.__value__
        else:
            return declared


def _substituted(declared: Any, variables: Mapping[Any, Any]) -> Any:
    if isinstance(declared, TypeVar):
        declared = variables.get(declared, declared)
        if not isinstance(declared, TypeVar):
            return declared
        # A constrained variable is one of several types, like a union.
        return declared.__bound__ or (Union[declared.__constraints__] if declared.__constraints__ else Any)  # noqa: UP007
    own = getattr(declared, "__parameters__", ())
    if not own or isinstance(declared, type) or not isinstance(own, tuple):
        return declared  # A generic class without arguments keeps its variables: they are resolved at its fields.
    return declared[tuple(variables.get(one, one) for one in own)] if variables else declared


def _name(form: Any) -> str:
    return str(getattr(form, "_name", None) or getattr(form, "__name__", ""))


def field_hints(cls: type, arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The annotations of a class's fields, inherited ones included, with type variables replaced.

    Raises:
        NameError: An annotation uses a name that its module does not have at run time.
        TypeError: An InitVar has no default. It is not stored, so no instance could be made again.
    """
    meanings = dict(reversed(list(_meanings(cls, arguments))))
    if issubclass(cls, dict):  # A TypedDict contains the fields of its bases: each counts as its own.
        meanings = {cls: {variable: meaning for one in meanings.values() for variable, meaning in one.items()}}
    hints = {}
    for name, hint in get_type_hints(cls, include_extras=True).items():
        if isinstance(hint, InitVar) and not hasattr(cls, name):
            raise TypeError(f"{cls.__name__}.{name} is an InitVar, which is not stored: give it a default")
        # The same variable may have another type in a base class.
        owner = next((base for base in cls.__mro__ if name in get_annotations(base)), cls)
        hints[name] = _substituted(hint, meanings.get(owner, _NO_VARIABLES))
    return hints


def _meanings(cls: type, arguments: tuple[Any, ...]) -> Iterator[tuple[type, dict[Any, Any]]]:
    """For a class and each of its bases: the types of its type variables."""
    own = dict(zip(getattr(cls, "__parameters__", ()), arguments, strict=False))
    yield cls, own
    for base in cls.__dict__.get("__orig_bases__", cls.__bases__):
        origin = get_origin(base) or base
        if isinstance(origin, type) and origin not in (typing.Generic, object):
            yield from _meanings(origin, tuple(_substituted(argument, own) for argument in get_args(base)))


def is_required(cls: Any, name: str, hint: Any) -> bool:
    """Whether a field of a TypedDict is required."""
    while (qualifier := _name(get_origin(hint))) in _QUALIFIERS:
        if qualifier != "ReadOnly":
            return qualifier == "Required"
        (hint,) = get_args(hint)
    return name in cls.__required_keys__


def name_of(declared: Any) -> str:
    """The name of a type in messages: `Item`, `list[Item]`, `int | None`."""
    if get_origin(declared) in (Union, types.UnionType):
        return " | ".join(name_of(argument) for argument in get_args(declared))
    if declared is type(None):
        return "None"
    if get_args(declared) and not isinstance(declared, type):
        origin = get_origin(declared)
        return f"{name_of(origin)}[{', '.join(name_of(argument) for argument in get_args(declared))}]"
    return getattr(declared, "__name__", None) or repr(declared)


# --- Kinds of classes ---


class Kind(Enum):
    """The library that stores and reads the instances of a class."""

    PYDANTIC = auto()
    MSGSPEC = auto()
    ATTRS = auto()
    DATACLASS = auto()
    TYPED_DICT = auto()
    NAMED_TUPLE = auto()


_MARKS = {
    Kind.PYDANTIC: "__pydantic_validator__",  # pydantic's dataclasses have it too.
    Kind.MSGSPEC: "__struct_config__",
    Kind.ATTRS: "__attrs_attrs__",
}


def kind_of(declared: object) -> Kind | None:
    """The kind of a class, or of a generic alias such as `Page[Item]`; None for any other type."""
    cls = get_origin(declared) or declared
    if not isinstance(cls, type):
        return None
    for kind, mark in _MARKS.items():
        if hasattr(cls, mark):
            return kind
    if is_dataclass(cls):
        return Kind.DATACLASS
    # Not typing.is_typeddict, which does not recognise the TypedDict of typing_extensions.
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
        is_argument: Whether the class takes it as an argument. Otherwise it is stored for readers, and computed again.
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
