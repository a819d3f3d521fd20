"""The screen Overview: how the jobs are, what needs an operator, the last hour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from ...diagnosis.concerns import Concern
from ...diagnosis.overview import NameOverview, Overview
from ...jobs.minutes import MINUTE, Figures, Minute, minute_of, total, totals_by_name
from ..words.concern_sentences import sentence_for
from ..words.lengths import counted, grouped, length, short_length
from .charts import MINUTES, HourChart, Spark, hour_chart, spark
from .deeds import RESUME
from .errors_screen import selected_by
from .screen import FRESH, PageCall, View

WIDE: Final = 1040
NARROW: Final = 366
"""Pixels of the chart on a large screen, and on a phone, where two minutes share a bar."""
JUST_NOW: Final = 5
"""Minutes that "done a minute" and "waits" are taken over."""
MOST_NAMES: Final = 100
MOST_ERRORS: Final = 4
MOST_INSTANCES: Final = 8

NO_NUMBER: Final = "–"  # noqa: RUF001
NO_FIGURES: Final = Figures()
NO_SPARK: Final = Spark(92, 26, "", "")


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


@dataclass(frozen=True, slots=True)
class NameRow:
    """One row of the table of names."""

    name: str
    now: NameOverview
    done_a_minute: float
    run: float | None
    wait: float | None
    spark: Spark


async def overview_facts(call: PageCall) -> View:
    """Ask for what the screen shows."""
    overview = await call.monque.get_overview(max_age=FRESH)
    minutes = await call.monque.get_minutes()
    errors = await call.monque.get_error_groups(since=call.now - timedelta(hours=1), limit=MOST_ERRORS)
    hour = call.dashboard.hours.get(minutes, minute_of(call.now), lambda: series_of(minutes, call.now))
    shows_errors = call.dashboard.hooks.show_errors is True
    failed = sum(one.failed for one in overview.names.values())
    sort = call.query("sort") or "due"
    rows = name_rows(overview, hour, sort)
    return View(
        "overview.html",
        f"{grouped(failed)} failed" if failed else "All well" if not overview.concerns else "Overview",
        {
            "vitals": vitals_of(overview, hour, len(errors.groups), is_capped=errors.is_capped),
            "needs": [need_of(one) for one in overview.concerns],
            "more_needs": overview.more_concerns,
            "resumable": await _resumable(call, overview.concerns),
            "wide": hour.wide,
            "narrow": hour.narrow,
            "hour": hour.in_all,
            "rows": rows[:MOST_NAMES],
            "more_names": max(0, len(rows) - MOST_NAMES),
            "names_capped": overview.is_capped,
            "sort": sort if sort in ORDERS else "due",
            "errors": [(one, selected_by(one.prefix), spark((0,) * MINUTES, one.by_minute)) for one in errors.groups]
            if shows_errors
            else [],
            "hides_errors": bool(errors.groups) and not shows_errors,
            "instances": sorted(overview.instances, key=lambda one: (one.is_live, -one.held, one.id))[:MOST_INSTANCES],
            "alive": overview.alive,
            "more_instances": max(0, len(overview.instances) - MOST_INSTANCES),
            "upcoming": overview.upcoming[:5],
        },
    )


async def _resumable(call: PageCall, concerns: Sequence[Concern]) -> frozenset[str]:
    """Return the paused names that the caller may resume."""
    names = [one.values["name"] for one in concerns if one.kind == "paused"]
    return frozenset([name for name in names if await call.may(RESUME.action, {"name": name})])


# --- The last hour ---


@dataclass(frozen=True, slots=True)
class Hour:
    """The last sixty minutes that are over, and what is drawn of them.

    Attributes:
        in_all: All of it together.
        just_now: The last minutes together.
        by_name: The figures of each name.
        wide, narrow: The charts.
        sparks: The small chart of each name.
    """

    in_all: Figures
    just_now: Figures
    by_name: Mapping[str, Figures]
    wide: HourChart
    narrow: HourChart
    sparks: Mapping[str, Spark]


def series_of(minutes: Sequence[Minute], now: datetime) -> Hour:
    """Return the sixty minutes before the one that has begun, the earliest first."""
    last = minute_of(now) - MINUTE
    known = {one.at: one for one in minutes}
    moments = [last - place * MINUTE for place in reversed(range(MINUTES))]
    # Also those in which nothing ended.
    series = [known.get(at, Minute(at, 0)) for at in moments]
    every = [one.in_all for one in series]
    by_name = totals_by_name(series)
    return Hour(
        in_all=total(every),
        just_now=total(every[-JUST_NOW:]),
        by_name=by_name,
        wide=_chart(last, every, WIDE, 1),
        narrow=_chart(last, every, NARROW, 2),
        sparks={name: spark(*_by_minute(series, name)) for name in by_name},
    )


def _chart(last: datetime, figures: Sequence[Figures], width: int, merged: int) -> HourChart:
    return hour_chart(
        width,
        last,
        [one.done for one in figures],
        [one.failed_attempts for one in figures],
        [one.wait.percentile(0.95) for one in figures],
        merged,
    )


# --- The strip of numbers ---


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


# --- What needs an operator ---


def need_of(concern: Concern) -> Need:
    """Return the line for a concern, with the page where it is mended."""
    values = concern.values
    label, parts, query = _WHERE[concern.kind](values)
    look = "bad" if concern.kind in ("not_served", "no_instance", "failing", "silent_instance", "stuck") else "due"
    return Need(concern.kind, look, sentence_for(concern), label, parts, query, values.get("name"))


def _jobs(status: str, label: str) -> Callable[[Mapping[str, Any]], tuple[str, Sequence[str], Mapping[str, str]]]:
    return lambda values: (label, ("jobs",), {"status": status, "name": values["name"]})


_WHERE: Final[Mapping[str, Callable[[Mapping[str, Any]], tuple[str, Sequence[str], Mapping[str, str]]]]] = {
    "not_served": lambda _values: ("See instances", ("instances",), {}),
    "no_instance": lambda _values: ("See instances", ("instances",), {}),
    "failing": lambda values: ("See its errors", ("errors",), {"name": values["name"], "since": "1h"}),
    "stuck": _jobs("running", "See its running jobs"),
    "silent_instance": lambda values: ("See the instance", ("instances", values["instance"]), {}),
    "late": _jobs("due", "See its due jobs"),
    "schedule_failed": lambda values: ("See the schedule", ("jobs", values["job"]), {}),
    "paused": _jobs("due", "See its due jobs"),
}


# --- The table of names ---

ORDERS: Final[Mapping[str, Callable[[NameRow], Any]]] = {
    "due": lambda row: (-row.now.due, row.name),
    "oldest": lambda row: (-(row.now.oldest_due_age or 0), row.name),
    "running": lambda row: (-row.now.running, row.name),
    "later": lambda row: (-row.now.later, row.name),
    "failed": lambda row: (-row.now.failed, row.name),
    "done": lambda row: (-row.done_a_minute, row.name),
    "run": lambda row: (-(row.run or 0), row.name),
    "wait": lambda row: (-(row.wait or 0), row.name),
    "name": lambda row: row.name,
}
"""How the table can be sorted, by the text in the URL."""


def name_rows(overview: Overview, hour: Hour, sort: str) -> Sequence[NameRow]:
    """Return the rows, sorted."""
    rows = [
        NameRow(
            name,
            now,
            (figures := hour.by_name.get(name, NO_FIGURES)).done / MINUTES,
            figures.run.percentile(0.95),
            figures.wait.percentile(0.95),
            hour.sparks.get(name, NO_SPARK),
        )
        for name, now in overview.names.items()
    ]
    return sorted(rows, key=ORDERS.get(sort, ORDERS["due"]))


def _by_minute(minutes: Sequence[Minute], name: str) -> tuple[Sequence[int], Sequence[int]]:
    figures = [one.by_name.get(name, NO_FIGURES) for one in minutes]
    return [one.done for one in figures], [one.failed_attempts for one in figures]
