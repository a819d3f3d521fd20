"""What needs an operator: a line for each concern, with the page where it is mended. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ...diagnosis.concerns import Concern
from ..words.concern_sentences import sentence_for


@dataclass(frozen=True, slots=True)
class Need:
    """One line of what needs an operator.

    Attributes:
        kind: Of the concern.
        look: The class of its sign: "bad" or "due".
        sentence: What it says.
        label: Of the link.
        parts, query: Where it leads.
        name: The name of jobs that it is about; None for an instance.
    """

    kind: str
    look: str
    sentence: str
    label: str
    parts: Sequence[str]
    query: Mapping[str, str]
    name: str | None


def need_of(concern: Concern) -> Need:
    """Return the line for a concern, with the page where it is mended."""
    values = concern.values
    label, parts, query = _WHERE[concern.kind](values)
    look = "bad" if concern.kind in ("not_served", "no_instance", "failing", "silent_instance", "stuck") else "due"
    return Need(concern.kind, look, sentence_for(concern), label, parts, query, values.get("name"))


def _jobs(status: str, label: str) -> Callable[[Mapping[str, Any]], tuple[str, Sequence[str], Mapping[str, str]]]:
    return lambda values: (label, ("jobs",), {"status": status, "name": values["name"]})


def _failing(values: Mapping[str, Any]) -> tuple[str, Sequence[str], Mapping[str, str]]:
    # The screen Errors has jobs that failed for good. Those that will be tried again are there with their last error.
    if values["failed_for_good"]:
        return "See its errors", ("errors",), {"name": values["name"], "since": "1h"}
    return "See its retries", ("jobs",), {"status": "later", "name": values["name"]}


_WHERE: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[str, Sequence[str], Mapping[str, str]]]]] = {
    "not_served": lambda _values: ("See instances", ("instances",), {}),
    "no_instance": lambda _values: ("See instances", ("instances",), {}),
    "failing": _failing,
    "stuck": _jobs("running", "See its running jobs"),
    "silent_instance": lambda values: ("See the instance", ("instances", values["instance"]), {}),
    "late": _jobs("due", "See its due jobs"),
    "schedule_failed": lambda values: ("See the schedule", ("jobs", values["job"]), {}),
    "failed_jobs": lambda values: (
        "See its failed jobs",
        ("jobs",),
        {"status": "failed", "name": values["name"], "since": "1h"},
    ),
    "paused": _jobs("due", "See its due jobs"),
    "silent_without_jobs": lambda _values: ("See instances", ("instances",), {}),
}
