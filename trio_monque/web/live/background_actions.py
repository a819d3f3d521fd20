"""Bulk actions that go on after their request was answered: what is known of each, for those who ask.

It is kept in memory. When the process ends, what was done stays done, and nothing goes on: the action may be asked for
again, and then changes what is left.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from ...jobs.bulk_changes import BulkResult
from ..answers import RefusedRequestError
from .hub import Hub

MOST_KEPT: Final = 100
"""Actions that are remembered: of those that have ended, the oldest are forgotten first."""

MOST_RUNNING: Final = 20
TOO_MANY: Final = "Too many bulk actions are in progress"


class State(StrEnum):
    """What became of an action. STOPPED: the server ended its request, as it does when it shuts down."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(eq=False, kw_only=True)
class BackgroundAction:
    """One of them. Only its own task writes it.

    Attributes:
        id: 24 random hexadecimal digits.
        action: What `authorize` was asked for. Callers who may do the same may see it.
        selector: Which jobs.
        count: How many there were when it began.
        is_capped: There were more than that.
        state: What became of it.
        result: What is done so far.
        error: Why it failed.
    """

    action: str
    selector: Mapping[str, Any]
    count: int
    is_capped: bool
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    state: State = State.RUNNING
    result: BulkResult = field(default_factory=BulkResult)
    error: str | None = None


class BackgroundActions:
    """The latest ones of one application.

    Args:
        hub: Where viewers wait for news of them.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._known: OrderedDict[str, BackgroundAction] = OrderedDict()

    def get(self, action_id: str) -> BackgroundAction | None:
        """Return the action of this id, if it is known."""
        return self._known.get(action_id)

    def add(self, action: BackgroundAction) -> None:
        """Remember one that begins. Raise RefusedRequestError (503) if too many are under way."""
        ended = [one.id for one in self._known.values() if one.state is not State.RUNNING]
        if len(self._known) - len(ended) >= MOST_RUNNING:
            raise RefusedRequestError(503, TOO_MANY, {"Retry-After": "10"})
        for known in ended[: max(len(self._known) - MOST_KEPT + 1, 0)]:
            del self._known[known]
        self._known[action.id] = action

    def progress(self, action: BackgroundAction, result: BulkResult) -> None:
        """Note what is done so far."""
        action.result = result
        self._hub.mark({region_of_action(action.id)})

    def end(self, action: BackgroundAction, state: State, error: str | None = None) -> None:
        """Note what became of it."""
        action.state, action.error = state, error
        self._hub.mark({region_of_action(action.id)})


def region_of_action(action_id: str) -> str:
    """Return the region that one action is, for a viewer."""
    return f"action:{action_id}"
