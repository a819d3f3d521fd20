"""The last hour as pages show it: its minutes, what they add up to, and its chart. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ...jobs.minutes import MINUTE, Figures, Minute, minute_of, total, totals_by_name
from .charts import MINUTES, HourChart, Spark, hour_chart, spark

WIDE: Final = 1040
NARROW: Final = 366
"""Pixels of the chart on a large screen, and on a phone, where two minutes share a bar."""
NO_FIGURES: Final = Figures()

JUST_NOW: Final = 5
"""Minutes that "done a minute" and "waits" are taken over."""


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


def _by_minute(minutes: Sequence[Minute], name: str) -> tuple[Sequence[int], Sequence[int]]:
    figures = [one.by_name.get(name, NO_FIGURES) for one in minutes]
    return [one.done for one in figures], [one.failed_attempts for one in figures]
