"""The screen Overview: how the jobs are, what needs an operator, the last hour."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from ...diagnosis.concerns import Concern
from ...diagnosis.overview import NameOverview, Overview
from ...jobs.minutes import minute_of
from ..words.lengths import grouped
from .charts import MINUTES, Spark, spark
from .errors_screen import selected_by
from .last_hour import NO_FIGURES, Hour, series_of
from .overview_needs import need_of
from .overview_vitals import vitals_of
from .page_actions import RESUME
from .screen import FRESH, PageCall, View

MOST_NAMES: Final = 100
MOST_ERRORS: Final = 4
MOST_INSTANCES: Final = 8

NO_SPARK: Final = Spark(92, 26, "", "")


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
    return frozenset([name for name in names if await call.may(RESUME.permission, {"name": name})])


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
