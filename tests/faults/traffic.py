"""What a command is for, as the wire shows it; and which of them lose their replies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from random import Random
from typing import Any, Final

from tests.support.interception import written_by
from tests.support.wire import Command

WRITES: Final = (
    "claim",
    "resolve",
    "heartbeat",
    "settlement",
    "release",
    "rescue",
    "enqueue",
    "enqueue with a key",
    "manage",
)


def kind_of(command: Command) -> str:
    """One of WRITES, or another word for any other command."""
    name = next(iter(command))
    if command.get(name) != "monque_jobs":
        return "other"
    if name == "insert":
        return "enqueue"
    if name == "delete":
        return "manage"
    if name == "findAndModify":
        return "enqueue with a key" if command.get("upsert") else "manage"
    if name == "update":
        return _kind_of_update(command.get("updates") or command["documents"])
    return "read"


def _kind_of_update(statements: Sequence[Mapping[str, Any]]) -> str:
    updates = [one["u"] for one in statements]
    values = [written_by(one) for one in updates]
    if "$setOnInsert" in updates[0]:
        return "enqueue with a key"
    if "$max" in updates[0]:
        return "heartbeat" if values[0] else "resolve"
    if any("rescues" in one for one in values):
        return "rescue"
    if values[0].get("status") == "processing":
        return "claim"
    if all(one.get("status") == "pending" and "nextRunAt" not in one for one in values):
        return "release"
    return "settlement" if "status" in values[0] else "report"


def _identity(kind: str, command: Command) -> object:
    """What stays the same where a caller's call is sent again; None for what schedulers send, which has no caller."""
    if kind == "enqueue":
        (first, *_) = command.get("documents") or [{}]
        return first.get("_id")
    if kind == "enqueue with a key" and "query" in command:
        return command["update"]["$setOnInsert"]["_id"]
    return None


class HalfOfThem:
    """Chooses half of the commands of each kind, in another order for each; in the other turn, the other half.

    So in two turns each has lost its reply once: the first claim, the second, and so on. Not every other one: what
    takes two commands would never succeed. What a caller's call sends again, because its reply was lost, is not
    lost again: a caller without an answer to both may get an error.

    Attributes:
        seen, chosen: How many of each kind.
    """

    def __init__(self, kinds: Collection[str], *, first: bool) -> None:
        self._kinds = {kind: Random(kind) for kind in kinds}
        self._first = first
        self._known: set[object] = set()
        self.seen: Counter[str] = Counter()
        self.chosen: Counter[str] = Counter()

    def __call__(self, command: Command) -> bool:
        kind = kind_of(command)
        identity = _identity(kind, command)
        if kind not in self._kinds or identity in self._known:
            return False
        self.seen[kind] += 1
        is_of_the_first_half = self.seen[kind] == 1 or self._kinds[kind].random() < 0.5
        is_chosen = is_of_the_first_half is self._first
        self.chosen[kind] += is_chosen
        if is_chosen and identity is not None:
            self._known.add(identity)
        return is_chosen
