"""The results as a picture: what is wanted of each, and how near it comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from .report import PARTS, Figure, Results, number, reached, wanted

WIDTH, LINE, TOP = 1240, 22, 70
BARS, SCALE = 470, 220  # Where the bars begin, and how long a ratio of 1 is.
LONGEST = 1.5  # What is more is cut, and told by its number.
LABELS = BARS + int(LONGEST * SCALE) + 12
INK, REACHED, MISSED = "#234", "#4a8f6d", "#c8803a"


@dataclass(frozen=True)
class Bar:
    """One figure beside one thing.

    Attributes:
        what, told: What it is, and its numbers.
        ratio: How long it is.
        wanted: Where the mark is.
        reached: Whether it is on the right side of the mark.
    """

    what: str
    told: str
    ratio: float
    wanted: float
    reached: bool


def drawn(results: Results) -> str:
    """As SVG: all of which something is wanted, part by part."""
    lines, y = list[str](), TOP
    for part, title in PARTS.items():
        bars = [bar for figure in results.figures if figure.part == part for bar in _bars(figure)]
        if not bars:
            continue
        lines.append(_text(16, y + 15, title, weight="bold"))
        for bar in bars:
            y += LINE
            lines += _drawn(bar, y)
        y += LINE + LINE // 2
    height, one = y + 8, BARS + SCALE
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(16, 24, "Ratios to what stands beside each, in the same run; the mark is what is wanted", weight="bold"),
        _text(16, 44, _when(results)),
        _text(one, TOP - 8, "1", anchor="middle"),
        f'<path d="M{one},{TOP - 4} V{height - 8}" stroke="{INK}" stroke-dasharray="3 3"/>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _when(results: Results) -> str:
    where = results.environment
    told = f"{where['date']}, MongoDB {where['server']}, Python {where['python']}, {where['cpus']} processors"
    return f"{told}: a trial with few jobs" if where["quick"] else told


def _bars(figure: Figure) -> Iterator[Bar]:
    """A limit on the value itself is what it is compared with then."""
    told = f"{number(figure.value)} {figure.unit}"
    limit = figure.at_least or figure.at_most
    if limit is not None:
        ok = bool(reached(figure, figure.value))
        yield Bar(figure.what, f"{told}, wanted {wanted(figure)}", figure.value / limit, 1.0, ok)
    for beside in figure.floors:
        ratio, mark = figure.ratio(beside), beside.at_least or beside.at_most
        if ratio is not None and mark is not None:
            ok = bool(reached(beside, ratio))
            yield Bar(figure.what, f"{ratio:.2f} of {beside.floor}: {told}", ratio, mark, ok)


def _drawn(bar: Bar, y: int) -> Sequence[str]:
    length, mark = (SCALE * min(LONGEST, max(0.0, one)) for one in (bar.ratio, bar.wanted))
    colour = REACHED if bar.reached else MISSED
    return [
        _text(28, y + 14, bar.what),
        f'<rect x="{BARS}" y="{y + 3}" width="{length:.0f}" height="{LINE - 8}" fill="{colour}"/>',
        f'<path d="M{BARS + mark:.0f},{y} v{LINE - 2}" stroke="{INK}" stroke-width="2"/>',
        _text(LABELS, y + 14, bar.told),
    ]


def _text(x: int, y: int, told: str, *, anchor: str = "start", weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="12" fill="{INK}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(told)}</text>'
