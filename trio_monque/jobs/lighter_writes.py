"""A write for a document that has no room for it: what this library added to the document gives way. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from .transition import Transition

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
