"""The strip of numbers at the top of the overview. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...diagnosis.overview import Overview
from ..words.lengths import counted, length, short_length
from .last_hour import JUST_NOW, Hour

NO_NUMBER: Final = "–"  # noqa: RUF001


@dataclass(frozen=True, slots=True)
class Vital:
    """One number of the strip at the top.

    Attributes:
        label: What it is.
        value: The number.
        unit: What stands beside it, small.
        loud, note: What stands below; the loud part first.
        kind: The class of the number: "bad", or "".
        loud_kind: The class of the loud part.
        parts, query: Where it leads.
    """

    label: str
    value: str
    note: str
    unit: str = ""
    loud: str = ""
    kind: str = ""
    loud_kind: str = "due"
    parts: Sequence[str] = ("jobs",)
    query: Mapping[str, str] = field(default_factory=dict)


def vitals_of(overview: Overview, hour: Hour, kinds_of_error: int, *, is_capped: bool) -> Sequence[Vital]:
    """Return the numbers at the top."""
    return [
        _due(overview),
        _running(overview),
        _done(hour),
        _failed(hour, kinds_of_error, is_capped=is_capped),
        _waits(hour),
        _instances(overview),
    ]


def _due(overview: Overview) -> Vital:
    due = sum(one.due for one in overview.names.values())
    more = "+" if any("due" in one.capped for one in overview.names.values()) or overview.is_capped else ""
    oldest = max(
        ((one.oldest_due_age, name) for name, one in overview.names.items() if one.oldest_due_age is not None),
        default=None,
    )
    if oldest is None:
        return Vital("Due, not started", "0", "nothing waits", query={"status": "due"})
    return Vital(
        "Due, not started",
        f"{due:,}{more}",
        f"the oldest, {oldest[1]}",
        loud=length(oldest[0]),
        loud_kind="due" if any(one.is_late for one in overview.names.values()) else "",
        query={"status": "due"},
    )


def _running(overview: Overview) -> Vital:
    longest = "nothing runs" if overview.longest_run is None else f"the longest for {length(overview.longest_run)}"
    unit = f"of {overview.slots:,} slots" if overview.slots else ""
    return Vital("Running", f"{overview.running:,}", longest, unit, query={"status": "running"})


def _done(hour: Hour) -> Vital:
    a_minute = hour.just_now.done / JUST_NOW
    shown = f"{a_minute:.1f}" if 0 < a_minute < 10 else f"{round(a_minute):,}"
    return Vital("Done a minute", shown, f"{hour.in_all.done:,} in the last hour", query={"status": "done"})


def _failed(hour: Hour, kinds: int, *, is_capped: bool) -> Vital:
    figures = hour.in_all
    attempts = figures.done + figures.failed_attempts
    if not figures.failed_attempts:
        return Vital("Failed, last hour", "0", "no attempt failed", parts=("errors",), query={"since": "1h"})
    share = 100 * figures.failed_attempts / attempts
    of_all = "under 0.1" if share < 0.1 else f"{share:.1f}"
    more = "+" if is_capped else ""
    note = f"for good; {of_all} % of {counted(attempts, 'attempt')} failed"
    if kinds:
        note += f"; {kinds}{more} {'kind' if kinds == 1 and not more else 'kinds'} of error"
    kind = "bad" if figures.failed_for_good else ""
    shown = f"{figures.failed_for_good:,}"
    return Vital("Failed, last hour", shown, note, kind=kind, parts=("errors",), query={"since": "1h"})


def _waits(hour: Hour) -> Vital:
    wait = hour.just_now.wait.percentile(0.95)
    if wait is None:
        return Vital("Waits, 95 of 100", NO_NUMBER, "nothing started in 5 minutes", query={"status": "due"})
    return Vital("Waits, 95 of 100", short_length(wait), "before start, last 5 minutes", query={"status": "due"})


def _instances(overview: Overview) -> Vital:
    number, silent = len(overview.instances), len(overview.instances) - overview.alive
    if not number:
        return Vital("Instances", "0", "no scheduler runs", kind="bad", parts=("instances",))
    unit = "alive" if not silent else f"of {number:,} alive"
    held = sum(one.held for one in overview.instances if not one.is_live)
    loud = f"{silent:,} silent" if silent else ""
    note = f"held {counted(held, 'job')} when last heard" if silent else "all answer"
    return Vital("Instances", f"{overview.alive:,}", note, unit, loud, loud_kind="bad", parts=("instances",))
