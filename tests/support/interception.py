"""Holds a command open: does something on the server after one command was decided and before it is sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pymongo import monitoring


class Interceptor(monitoring.CommandListener):
    """Calls the first `meanwhile` right before the first command that matches is sent, in the thread that sends it.

    A driver's command listener is called synchronously, so that the window between the command before
    and this one stays open for as long as `meanwhile` takes: an interleaving without chance. The second one is called
    before the second command that matches, and so on.
    """

    def __init__(self) -> None:
        self._matches: Callable[[str, Any], bool] = lambda *_: False
        self._meanwhile: list[Callable[[], object]] = []
        self.times = 0

    def before(self, matches: Callable[[str, Any], bool], *meanwhile: Callable[[], object]) -> None:
        self._matches, self._meanwhile = matches, list(meanwhile)

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        if self._meanwhile and self._matches(event.command_name, event.command):
            self.times += 1
            self._meanwhile.pop(0)()

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def written_by(update: Any) -> Mapping[str, Any]:
    """What an update sets, also where it stores many results; nothing where it sets nothing."""
    if isinstance(update, Sequence):
        literal: Mapping[str, Any] = update[0]["$replaceWith"]["$mergeObjects"][1]["$literal"]
        return literal
    values: Mapping[str, Any] = update.get("$set", {})
    return values


def is_claim(name: str, command: Any) -> bool:
    """The guarded write of a claim cycle, or of one job by its id."""
    if name == "findAndModify":
        return bool(command["update"].get("$set", {}).get("status") == "processing")
    return name == "update" and written_by(command["updates"][0]["u"]).get("status") == "processing"


def is_look(name: str, command: Any) -> bool:
    """The first command of a claim cycle; not the question when the next job is due."""
    if name == "find":
        # Not the look for jobs that were not started in time.
        return "status" in command["filter"] and "projection" not in command and "startBy" not in command["filter"]
    return name == "aggregate"


def is_settlement(name: str, command: Any) -> bool:
    """The first write of a batch of settlements."""
    return name == "update" and "receipt" in written_by(command["updates"][0]["u"])


class Recorder(monitoring.CommandListener):
    """Keeps the commands that were sent."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, Any]] = []

    def count(self, matches: Callable[[str, Any], bool]) -> int:
        return sum(matches(name, command) for name, command in self.commands)

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.commands.append((event.command_name, event.command))

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...
