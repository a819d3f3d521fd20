"""One conditional write to a job, as a value: what must hold, and what is written. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from .job import Job

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


# --- Conditions a guard may put on a field; a plain value means equality, and None means absent ---


@dataclass(frozen=True, slots=True)
class AtMost:
    """The field is at most this."""

    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field is one of these; None among them means that it may be absent."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """The field is a value between these, of their type; None where there is no end."""

    at_least: Any = None
    above: Any = None
    at_most: Any = None
    below: Any = None


@dataclass(frozen=True, slots=True)
class Containing:
    """The field is a text with this in it, or at its beginning."""

    text: str
    at_the_beginning: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """One conditional write.

    Attributes:
        guard: What must hold, by field; all of it is repeated in the write.
        set: Fields and their new values.
        cleared: Fields that are removed.
        added: Fields and what is added to them; an absent field counts as 0.
        otherwise: What to write where the guard failed because a cancellation had been requested.
    """

    guard: Mapping[str, Any]
    set: Mapping[str, Any]
    cleared: tuple[str, ...] = ()
    added: Mapping[str, int] = field(default_factory=lambda: _NOTHING)
    otherwise: Transition | None = None


def applied(job: Job, transition: Transition) -> Job:
    """The job after the transition, as the database holds it: the after-image of a write whose guard held."""
    values = vars(job).copy()
    for name in transition.cleared:
        values.pop(name, None)  # An absent field has its default.
    for name, step in transition.added.items():
        values[name] = getattr(job, name) + step
    values.update(transition.set)
    return Job.kept(values)


def is_borne_by(job: Job, transition: Transition) -> bool:
    """Whether the job is as the transition leaves it. The moment that it sets tells it from others like it."""
    return applied(job, replace(transition, added=_NOTHING)) == job
