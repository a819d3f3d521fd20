"""Reads stored values as a declared type: a reader is built once for each type, and then called for each value.

A field that the stored document has and the class does not is ignored: a newer release may have added it.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Literal, NoReturn, Union, get_args, get_origin

from .declared_types import Kind, field_hints, fields_of, is_required, kind_of, name_of, resolved
from .libraries import msgspec_keys, msgspec_reader, pydantic_keys, pydantic_reader
from .problems import ValueProblem, wrong
from .reading_containers import CONTAINERS, Reader, anything, document_reader, named_tuple_reader, tuple_reader
from .reading_scalars import SCALARS, Read, enum_reader, literal_reader, text_reader
from .writing import TEXT_TYPES

_ANYTHING: Final = (Any, object)


class Readers:
    """The readers of all types in one payload type.

    Attributes:
        may_mistake: Whether there is a union of several classes with fields: a document may fit more than one.
    """

    def __init__(self) -> None:
        self._known: dict[Any, Reader] = {}
        self.may_mistake = False

    def of(self, declared: Any) -> Reader:
        """The reader of a type.

        Raises:
            NameError: An annotation uses a name that cannot be found.
            TypeError: A payload cannot have this type.
        """
        declared = resolved(declared)
        if declared in _ANYTHING:
            return Reader(anything)
        if isinstance(declared, type | None) and declared in SCALARS:
            return Reader(*SCALARS[declared])
        kind = kind_of(declared)
        if kind is not None:
            return self._with_fields(declared, kind)
        origin, arguments = get_origin(declared), get_args(declared)
        if origin is Literal:
            return Reader(literal_reader(arguments))
        if origin in (Union, types.UnionType):
            return self._union([self.of(argument) for argument in arguments], name_of(declared))
        if origin is tuple and arguments[-1:] != (Ellipsis,):
            return Reader(tuple_reader(name_of(declared), [self.of(argument) for argument in arguments]))
        container = CONTAINERS.get(origin or declared)
        if container is not None:
            parts = [self.of(argument) for argument in arguments if argument is not Ellipsis]
            return Reader(container(name_of(declared), parts))
        if isinstance(declared, type):
            return Reader(_class_reader(declared))
        raise TypeError(
            f"{name_of(declared)} cannot be the type of a payload, nor of a value in it: declare a dataclass, another "
            "class with fields, or a built-in type; or give payload= a function that is called with the stored value"
        )

    # --- Several types ---

    def _union(self, members: Sequence[Reader], name: str) -> Reader:
        by_type = {cls: member.read for member in members for cls in member.first}
        if sum(member.keys is not None for member in members) > 1:
            self.may_mistake = True

        def read(stored: Any) -> Any:
            exact = by_type.get(type(stored))
            if exact is not None:
                try:
                    return exact(stored)
                except ValueProblem:
                    pass  # For example, a binary value that is not a UUID is bytes.
            inside = []
            for member in _likely_first(members, stored):
                try:
                    return member.read(stored)
                except ValueProblem as problem:
                    if problem.is_inside:
                        inside.append(problem)
            # If one member is likely meant, the problem inside it is more useful than "no member fits".
            raise inside[0] if len(inside) == 1 else wrong(name, stored)

        return Reader(read, frozenset(by_type))

    # --- Classes with fields ---

    def _with_fields(self, declared: Any, kind: Kind) -> Reader:
        if declared not in self._known:
            # Registered before its fields: the class of a tree has itself as a field.
            reader = self._known[declared] = Reader(_not_built, keys=frozenset())
            try:
                reader.read, reader.keys = self._build(declared, kind)
            except BaseException:
                del self._known[declared]
                raise
        return self._known[declared]

    def _build(self, declared: Any, kind: Kind) -> tuple[Read, frozenset[str] | None]:
        cls: Any = get_origin(declared) or declared
        if kind is Kind.PYDANTIC:
            return pydantic_reader(declared), pydantic_keys(cls)
        if kind is Kind.MSGSPEC:
            return msgspec_reader(declared, lambda wanted: self.of(wanted).read), msgspec_keys(cls)
        hints = field_hints(cls, get_args(declared))
        name = name_of(declared)
        if kind is Kind.NAMED_TUPLE:
            parts = [self.of(hints.get(one, Any)) for one in cls._fields]
            return named_tuple_reader(cls, name, parts, len(parts) - len(cls._field_defaults)), None
        if kind is Kind.TYPED_DICT:
            readers = {key: self.of(hint) for key, hint in hints.items()}
            required = frozenset(key for key, hint in hints.items() if is_required(cls, key, hint))
            return document_reader(dict, name, readers, required), frozenset(readers)
        fields = [field for field in fields_of(cls, kind) if field.is_argument]
        readers = {field.key: self.of(hints.get(field.attribute, Any)) for field in fields}
        required = frozenset(field.key for field in fields if field.is_required)
        return document_reader(cls, name, readers, required), frozenset(readers)


def _not_built(stored: Any) -> NoReturn:
    raise AssertionError("a reader is used only after all of its parts are built")


def _likely_first(members: Sequence[Reader], stored: Any) -> Sequence[Reader]:
    """Sorts the members of a union: first the class that leaves the fewest fields of the document unread."""
    if not isinstance(stored, Mapping):
        return members
    # A dict counts as half an unread field: it comes after a class that knows all fields, and before the others.
    return sorted(members, key=lambda one: 0.5 if one.keys is None else len(stored.keys() - one.keys))


def _class_reader(cls: type) -> Read:
    if issubclass(cls, Enum):
        return enum_reader(cls)
    if issubclass(cls, TEXT_TYPES):
        return text_reader(cls)

    def read(stored: Any) -> Any:
        # A class of bson, or one that the client's codec options decode.
        if not isinstance(stored, cls):
            raise wrong(cls.__name__, stored)
        return stored

    return read
