"""A conditional write to a job, as a value: its guard, what it sets, and how it shrinks for a full document. Pure.

It names what it compares and writes by the attributes of a job ("status"), those of its parts by their paths
("claim.token"). A part may also be set and cleared as a whole ("claim"). The codec in `store/` makes fields of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from .job import REQUIRED, Job, kept_of, value_at
from .job_parts import EMPTY, IN_PARTS

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


# --- Conditions on a field. In a guard, a plain value means equality, and None means that the field is absent ---


@dataclass(frozen=True, slots=True)
class AtMost:
    """The field is at most `value`."""

    value: Any


@dataclass(frozen=True, slots=True)
class AbsentOrAbove:
    """The field is absent, or greater than `value`."""

    value: Any


@dataclass(frozen=True, slots=True)
class OneOf:
    """The field has one of these values; None among them means that it may be absent."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PresentAs:
    """The field is there, and has one of these values, or is a list with one of them; None stands for null."""

    values: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Within:
    """The field is between these bounds, and of their type; None for no bound."""

    at_least: Any = None
    above: Any = None
    at_most: Any = None
    below: Any = None


@dataclass(frozen=True, slots=True)
class Containing:
    """The field is a text that contains `text`, or begins with it."""

    text: str
    at_the_beginning: bool = False


@dataclass(frozen=True, slots=True)
class Transition:
    """One conditional write.

    Attributes:
        guard: The conditions, by attribute. The write repeats all of them.
        set: Attributes and their new values. A part that is set as a whole takes the place of the one before.
        cleared: Attributes and parts that are removed.
        added: Attributes and the number to add to them; an absent one counts as 0.
        copied: Attributes and the other attribute of the job that each gets the value of, at the moment of the write;
            if the job does not have that, the attribute is removed, unless a job must have it. What is cleared is
            copied before.
        otherwise: The write to make instead, if the guard failed because a cancellation was requested.
    """

    guard: Mapping[str, Any]
    set: Mapping[str, Any]
    cleared: tuple[str, ...] = ()
    added: Mapping[str, int] = field(default_factory=dict)
    copied: Mapping[str, str] = field(default_factory=dict)
    otherwise: Transition | None = None


_REMOVED: Final = object()


def applied(job: Job, transition: Transition) -> Job:
    """The job after the transition, as the database has it: the after-image of a write whose guard held."""
    changes: dict[str, Any] = {}
    for name, source in transition.copied.items():
        if (value := value_at(job, source)) is not None or name not in REQUIRED:
            changes[name] = value
    changes.update(dict.fromkeys(transition.cleared, _REMOVED))
    for name, step in transition.added.items():
        changes[name] = (value_at(job, name) if name in IN_PARTS else getattr(job, name)) + step
    changes.update(transition.set)
    values = vars(job).copy()
    inside: dict[str, dict[str, Any]] = {}  # Only a few transitions change something inside of a part.
    for name, value in changes.items():
        if name in IN_PARTS:
            part, own = IN_PARTS[name]
            inside.setdefault(part, {})[own] = None if value is _REMOVED else value
        elif value is _REMOVED:
            values.pop(name, None)  # An absent attribute has its default.
        else:
            values[name] = value
    for part, written in inside.items():
        _change(values, part, written)
    return kept_of(values)


def _change(values: dict[str, Any], part: str, changes: Mapping[str, Any]) -> None:
    """Change what is inside of a part. A part that has nothing any more is removed."""
    before, empty = values.pop(part, None), EMPTY[part]
    if before is None and not any(changes.values()):
        return  # Most jobs have nothing of what is cleared.
    after = replace(before or empty, **{name: changes[name] or getattr(empty, name) for name in changes})
    if after != empty:
        values[part] = after


def is_borne_by(job: Job, transition: Transition) -> bool:
    """Whether the job is as the transition leaves it: after a lost answer, that shows whether it was applied."""
    # Not the counters: they are relative, and were added already. `updated_at` differs between two similar writes.
    return applied(job, replace(transition, added=_NOTHING)) == job


# --- For a full document ---

LIGHTEST: Final = 3
"""The last step of `lightened`."""

SHORTEST_REASON: Final = 64
"""Bytes of `failReason` in the lightest write: then the end of a claim needs less room than the claim did."""

# What each step removes, the least important first. What the write itself sets stays, because it is the purpose of the
# write; except the history of errors, which only accompanies a failure.
_GIVEN_UP: Final = (("errors",), ("progress",), ("result", "saved"))


def lightened(transition: Transition, steps: int) -> Transition:
    """The same write for a document that has no room for it (16 MiB): fields that this library added are removed.

    Step 1 removes the history of errors with its tracebacks. Step 2 removes the progress, and cuts `failReason`. Step 3
    removes an earlier result, the checkpoint, and the times of the run.
    """
    # If the end of a run could not be written into a full document, its lease would expire, and the job would run again
    # and again.
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
    # In bytes, because the size of a document is in bytes.
    return reason.encode("utf-8", "replace")[:SHORTEST_REASON].decode("utf-8", "ignore")
