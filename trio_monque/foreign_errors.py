"""The door for exceptions of users: what a handler raises is made safe here before anything else touches it.

A class of exceptions may replace what Python itself uses: `isinstance(error, X)` asks `error.__class__`, a cancel scope
calls `error.split`, a thread passes an error on by `error.with_traceback`. If such an attribute raises or lies, it does
so inside trio, asyncio or our loops, far away from the handler, and ends them. So where a handler is called, its error
passes `safe_error` first: an error of such a class is replaced by an UnsafeExceptionError, a failure like others.

This file looks at types and at the slots of Python's own classes only, so that no code of the user runs. Texts of
exceptions are another matter: see `safe_text.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from types import GetSetDescriptorType, MethodDescriptorType, TracebackType, WrapperDescriptorType
from typing import Any, Final, cast

from .error_types import UnsafeExceptionError
from .safe_text import message_of, name_of

_WRITTEN_IN_C: Final = (WrapperDescriptorType, MethodDescriptorType, GetSetDescriptorType)
"""Attributes of Python's own classes, and of classes of extensions: no user code runs when they are read."""

_TOUCHED: Final = (
    "__class__",
    "__getattribute__",
    "__traceback__",
    "__cause__",
    "__context__",
    "__suppress_context__",
    "with_traceback",
)
_TOUCHED_OF_GROUPS: Final = (*_TOUCHED, "exceptions", "message", "split", "subgroup", "__bool__", "__len__")

# Reads of Python's own slots. As attributes of the exception, these names may be properties of its author.
_mro: Final[Any] = type.__dict__["__mro__"].__get__
_namespace: Final[Any] = type.__dict__["__dict__"].__get__
_traceback: Final[Any] = BaseException.__dict__["__traceback__"].__get__
_cause: Final[Any] = BaseException.__dict__["__cause__"].__get__
_context: Final[Any] = BaseException.__dict__["__context__"].__get__
_hides_context: Final[Any] = BaseException.__dict__["__suppress_context__"].__get__
_members: Final[Any] = BaseExceptionGroup.__dict__["exceptions"].__get__
_message: Final[Any] = BaseExceptionGroup.__dict__["message"].__get__

LONGEST_MESSAGE: Final = 2000


def is_a(error: BaseException | None, kinds: type[BaseException] | tuple[type[BaseException], ...]) -> bool:
    """Whether the error is of one of these classes. It asks the type, and not `__class__`, as `isinstance` does.

    An UnsafeExceptionError counts as what it stands for.
    """
    kind = error.raised_type if type(error) is UnsafeExceptionError else type(error)
    return issubclass(kind, kinds)


def is_group(error: BaseException | None) -> bool:
    return issubclass(type(error), BaseExceptionGroup)


def leaves_of(error: BaseException) -> list[BaseException]:
    """The errors in a group, at any depth. For an error that is not a group: only that error."""
    leaves: list[BaseException] = []
    left = [error]
    while left:  # Not by recursion: a group may be nested deeper than Python's stack.
        one = left.pop()
        if is_group(one):
            left.extend(reversed(_members(one)))
        else:
            leaves.append(one)
    return leaves


def without(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    """The error without those of this class in it, at any depth; None if nothing else is left.

    A group that Python cannot split is returned whole: it is nested too deep, or is of its author's own class.
    """
    if is_a(error, kind):
        return None
    rest: BaseException | None = error
    if is_group(error):
        with suppress(Exception):  # Not Ctrl-C, which may come at this moment.
            rest = cast("BaseExceptionGroup[Any]", error).split(kind)[1]
    return rest


def unwrapped(group: BaseExceptionGroup[Any], *, around_a_group: bool = False) -> BaseException:
    """The single error in nested groups of one, which nested nurseries make; the group itself if it has several.

    With `around_a_group`, the caller's own code raised a group: only the outermost group is taken off, which trio made.
    """
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
        if around_a_group:
            break
    return error


def traceback_within(error: BaseException) -> TracebackType | None:
    """The traceback of an error of any class."""
    trace: TracebackType | None = _traceback(error)
    return trace


def is_caused_by_another(error: BaseException) -> bool:
    """Whether its traceback shows another error first: its cause, or the one that was handled when it was raised."""
    return _cause(error) is not None or (_context(error) is not None and not _hides_context(error))


def safe_error(error: BaseException, *, for_generators: bool = False) -> BaseException:
    """The error, if its class leaves alone what Python uses of it; otherwise an error that stands for it.

    `for_generators`: it passes a context manager that is a generator, which sets `__traceback__`. A frozen dataclass
    refuses that.

    A group with such an error in it is replaced by a plain group. Raise a stand-in outside of the `except` block:
    inside, Python would make the first error its context.
    """
    is_of_many = is_group(error)
    names = _TOUCHED_OF_GROUPS if is_of_many else _TOUCHED
    names = (*names, "__setattr__") if for_generators else names
    if not is_of_many:
        return error if _overridden(error, names) is None else _stand_in(error, names)
    if all(_overridden(one, names) is None for one in _all_within(error)) and _can_be_split(error):
        return error
    leaves = [safe_error(leaf) for leaf in leaves_of(error)]
    text = _message(error)
    group = BaseExceptionGroup(text if type(text) is str else "several errors", leaves)
    return group.with_traceback(_traceback(error))


def is_safe(error: BaseException) -> bool:
    """Whether the class of this one error leaves alone what Python uses of it; see `safe_error`."""
    return _overridden(error, _TOUCHED_OF_GROUPS if is_group(error) else _TOUCHED) is None


def _all_within(error: BaseException) -> Iterator[BaseException]:
    left = [error]
    while left:
        one = left.pop()
        yield one
        if is_group(one):
            left.extend(_members(one))


def _overridden(error: BaseException, names: tuple[str, ...]) -> str | None:
    """Return which of these attributes a class of the user has replaced; None for none."""
    for base in _mro(type(error)):
        if base is BaseException or base is BaseExceptionGroup:
            continue
        namespace: Mapping[str, Any] = _namespace(base)
        for name in names:
            if name in namespace and type(namespace[name]) not in _WRITTEN_IN_C:
                return name
    return None


class _MatchesNothing(BaseException):
    """No error is of this class."""


def _can_be_split(group: BaseException) -> bool:
    """Whether a cancel scope can take cancellations out of this group.

    Python then calls `derive`, and reads `__notes__`. A class of the user may define either; most do so correctly.
    """
    if all(type(one) in (ExceptionGroup, BaseExceptionGroup) for one in _all_within(group) if is_group(one)):
        return True
    try:
        cast("Any", BaseExceptionGroup).split(group, _MatchesNothing)
    except BaseException:  # noqa: BLE001  # The author's `derive` may raise anything.
        return False
    return True


def _stand_in(error: BaseException, names: tuple[str, ...]) -> UnsafeExceptionError:
    stand_in = UnsafeExceptionError(
        type(error), name_of(error), str(_overridden(error, names)), message_of(error, LONGEST_MESSAGE)
    )
    return stand_in.with_traceback(_traceback(error))
