"""A conditional write to a job, as a value: its guard, what it sets, and how it shrinks for a full document. Pure."""

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


# --- For a full document ---

LIGHTEST: Final = 3
"""How often a write can be made lighter; see `lightened`."""

SHORTEST_REASON: Final = 64
"""Characters of `failReason` in the lightest write. With these, the end of a claim takes less than the claim did."""

# What each step gives up, the least needed first. What a write sets of these is what it is for, and stays; but for the
# history of errors, which only accompanies a failure.
_GIVEN_UP: Final = (("errors",), ("progress",), ("result", "saved"))


def lightened(transition: Transition, steps: int) -> Transition:
    """The same write for a document that has no room for it: what this library added to the document gives way.

    Step by step: the history of errors with its tracebacks; then the progress, and all of `failReason` but its
    beginning; then an earlier result, the checkpoint, and when the run began and ended.
    """
    written = dict(transition.set)
    written.pop("errors", None)
    given_up = [name for names in _GIVEN_UP[:steps] for name in names if name not in written]
    if steps > 1 and isinstance(reason := written.get("fail_reason"), str):
        written["fail_reason"] = _beginning(reason)
    if steps == LIGHTEST:
        for name in ("started_at", "finished_at"):
            written.pop(name, None)
    otherwise = transition.otherwise
    return replace(
        transition,
        set=written,
        cleared=(*transition.cleared, *(name for name in given_up if name not in transition.cleared)),
        otherwise=None if otherwise is None else lightened(otherwise, steps),
    )


def _beginning(reason: str) -> str:
    # In bytes: what is full is a document.
    return reason.encode("utf-8", "replace")[:SHORTEST_REASON].decode("utf-8", "ignore")
