"""The resources that a `Workers[Pool]()` promises to its handlers."""

from __future__ import annotations

from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from ..error_types import InvalidOptionError
from .workers import Workers


def resources_needed(workers: Workers[Any]) -> str | None:
    """Return the type of the resources that `Workers[Pool]()` names; None if there are none, or they may be missing."""
    made_as = getattr(workers, "__orig_class__", None)
    if get_origin(made_as) is not Workers:  # What the arguments of a subclass mean is unknown.
        return None
    (named,) = get_args(made_as)
    return None if _may_be_missing(named) else str(getattr(named, "__name__", named))


def check_resources(workers: Workers[Any] | None, resources: Any) -> None:
    """Check that a scheduler has the resources that its workers name.

    Raises:
        InvalidOptionError: It has none. Otherwise each handler that uses them would fail.
    """
    if resources is None and workers is not None and (needed := resources_needed(workers)) is not None:
        raise InvalidOptionError("resources", None, f"must be a {needed}: the workers are a Workers[{needed}]")


def _may_be_missing(named: Any) -> bool:
    """Whether None is a value of this type. If that cannot be known, as of a name in quotes, it is taken to be one."""
    if named in (None, type(None), Any, object):
        return True
    origin = get_origin(named)
    if origin is Annotated:
        return _may_be_missing(named.__origin__)
    if origin in (Union, UnionType):
        return any(map(_may_be_missing, get_args(named)))
    return not isinstance(named if origin is None else origin, type)
