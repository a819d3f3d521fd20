"""The shapes of charts: numbers in, paths for SVG out. Pure.

A path for each series, and not an element for each bar: a table of a hundred names with sixty minutes each would be six
thousand elements. The content policy allows attributes, and no inline styles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil, floor, log10
from typing import Final

MINUTES: Final = 60

LEFT: Final = 40.0
RIGHT: Final = 42.0
TOP: Final = 10.0
BOTTOM: Final = 148.0
"""Of the plot within a chart of `HEIGHT`: the scales stand beside it, the times below."""
HEIGHT: Final = 168
GAP: Final = 0.1
"""The share of a bar's place that is left free."""


@dataclass(frozen=True, slots=True)
class Spark:
    """Done and failed by minute, as small bars."""

    width: int
    height: int
    done: str
    failed: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A text at a place of a chart."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class HourChart:
    """Done, failed and waits by minute.

    Attributes:
        width: Of the chart, whose height is `HEIGHT`.
        done, failed, wait: The paths.
        grid: The heights of the lines, with the numbers on the left.
        waits: The heights of the numbers on the right.
        times: The places of times below.
        right: Where the plot ends.
    """

    width: int
    done: str
    failed: str
    wait: str
    grid: Sequence[Mark]
    waits: Sequence[Mark]
    times: Sequence[Mark]
    right: float


def spark(done: Sequence[int], failed: Sequence[int], width: int = 92, height: int = 26) -> Spark:
    """Return the bars of one name or error, the earliest minute first."""
    most = max([*map(sum, zip(done, failed, strict=True)), 1])
    scale = (height - 2) / most
    step = width / len(done)
    good = [(place * step, height - count * scale, count * scale) for place, count in enumerate(done) if count]
    bad = [
        (place * step, height - (done[place] + count) * scale, count * scale)
        for place, count in enumerate(failed)
        if count
    ]
    return Spark(width, height, _bars(good, step * 0.7), _bars(bad, step * 0.7))


def hour_chart(
    width: int,
    last: datetime,
    done: Sequence[int],
    failed: Sequence[int],
    waits: Sequence[float | None],
    merged: int = 1,
) -> HourChart:
    """Return the chart of the minutes that end with `last`.

    Args:
        width: In pixels.
        last: The last minute.
        done, failed, waits: Of each minute, the earliest first; a wait is in seconds, None where nothing started.
        merged: How many minutes share a bar.
    """
    done, failed = _merged(done, merged), _merged(failed, merged)
    longest = [max((one for one in part if one is not None), default=None) for part in _parts(waits, merged)]
    right = width - RIGHT
    step = (right - LEFT) / len(done)
    top = nice_maximum(max([*map(sum, zip(done, failed, strict=True)), 1]))
    top_wait = nice_maximum(max([one for one in longest if one is not None], default=1.0))

    def height(value: float, of: float) -> float:
        return (BOTTOM - TOP) * value / of

    good = [(LEFT + place * step, BOTTOM - height(one, top), height(one, top)) for place, one in enumerate(done) if one]
    bad = [
        (LEFT + place * step, BOTTOM - height(done[place] + one, top), height(one, top))
        for place, one in enumerate(failed)
        if one
    ]
    points = [
        None if one is None else (LEFT + (place + 0.5) * step, BOTTOM - height(one, top_wait))
        for place, one in enumerate(longest)
    ]
    levels = (0.0, 0.5, 1.0)
    places = [BOTTOM - height(level, 1.0) for level in levels]
    first = last - timedelta(minutes=MINUTES - 1)
    every = 10 if merged == 1 else 20
    return HourChart(
        width=width,
        done=_bars(good, step * (1 - GAP)),
        failed=_bars(bad, step * (1 - GAP)),
        wait=_line(points),
        grid=[Mark(at, _short_count(top * level)) for at, level in zip(places, levels, strict=True)],
        waits=[Mark(at, _short_seconds(top_wait * level)) for at, level in zip(places, levels, strict=True)],
        times=[
            Mark(LEFT + minute / merged * step, f"{first + timedelta(minutes=minute):%H:%M}")
            for minute in range(0, MINUTES - every // 2, every)
        ],
        right=right,
    )


def nice_maximum(value: float) -> float:
    """Return the end of a scale for values up to this one: 1, 2, 4, 6 or 10 times a power of ten."""
    power = 10.0 ** floor(log10(value)) if value > 0 else 1.0
    return next(power * step for step in (1, 2, 4, 6, 10) if power * step >= value * 0.999999)


def _parts(values: Sequence[float | None], merged: int) -> Sequence[Sequence[float | None]]:
    return [values[place : place + merged] for place in range(0, len(values), merged)]


def _merged(values: Sequence[int], merged: int) -> Sequence[int]:
    return [ceil(sum(values[place : place + merged]) / merged) for place in range(0, len(values), merged)]


def _bars(bars: Sequence[tuple[float, float, float]], width: float) -> str:
    """Return one path of all bars: the left edge, the top and the height of each."""
    return "".join(f"M{x:.1f} {y:.1f}h{width:.1f}v{max(height, 0.6):.1f}h-{width:.1f}z" for x, y, height in bars)


def _line(points: Sequence[tuple[float, float] | None]) -> str:
    """Return the path through the points; it is interrupted where there is none."""
    path, is_drawing = [], False
    for point in points:
        if point is not None:
            path.append(f"{'L' if is_drawing else 'M'}{point[0]:.1f} {point[1]:.1f}")
            if not is_drawing:
                path.append("h.1")  # A single point would not be seen.
        is_drawing = point is not None
    return "".join(path)


def _short_count(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:g}M"
    return f"{value / 1000:g}k" if value >= 1000 else f"{value:g}"


def _short_seconds(value: float) -> str:
    if value >= 3600:
        return f"{value / 3600:.3g} h"
    if value >= 60:
        return f"{value / 60:.3g} m"
    return f"{value:.3g} s" if value >= 1 or value == 0 else f"{1000 * value:.3g} ms"
