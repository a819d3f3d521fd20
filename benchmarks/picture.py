"""The results as a picture: each ratio to a floor as a bar, beside what is wanted of it."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

from .report import PARTS, Comparison, Figure, Results, number, reached

WIDTH, LINE, TOP = 900, 22, 64
BARS, SCALE = 430, 280  # Where the bars begin, and how long a ratio of 1 is.
LONGEST = 1.5  # What is more is cut, and told by its number.
INK, GOOD, BAD, PLAIN, MARK = "#234", "#4a8f6d", "#c8803a", "#8aa3b8", "#234"


def drawn(results: Results) -> str:
    """As SVG: what is compared with something that limits it, part by part."""
    lines, y = list[str](), TOP
    for part, title in PARTS.items():
        bars = [(figure, beside) for figure in results.figures if figure.part == part for beside in figure.floors[:1]]
        if not bars:
            continue
        lines.append(_text(16, y + 15, title, weight="bold"))
        y += LINE
        for figure, beside in bars:
            lines += _bar(figure, beside, y)
            y += LINE
        y += LINE // 2
    height = y + 16
    floor = BARS + SCALE
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
        _text(16, 24, "Ratios to what stands beside each, in the same run", weight="bold", size=15),
        _text(16, 44, _when(results)),
        _text(floor, 56, "1", anchor="middle"),
        f'<path d="M{floor},{TOP - 4} V{height - 16}" stroke="{MARK}" stroke-dasharray="3 3"/>',
    ]
    return "\n".join([*head, *lines, "</svg>"]) + "\n"


def _when(results: Results) -> str:
    where = results.environment
    told = f"{where['date']}, MongoDB {where['server']}, Python {where['python']}, {where['cpus']} processors"
    return f"{told}: a trial with few jobs" if where["quick"] else told


def _bar(figure: Figure, beside: Comparison, y: int) -> Sequence[str]:
    ratio = figure.ratio(beside) or 0.0
    colour = {None: PLAIN, True: GOOD, False: BAD}[reached(beside, ratio)]
    length = SCALE * min(LONGEST, max(0.0, ratio))
    lines = [
        _text(28, y + 14, figure.what),
        f'<rect x="{BARS}" y="{y + 3}" width="{length:.0f}" height="{LINE - 8}" fill="{colour}"/>',
        _text(BARS + round(length) + 6, y + 14, f"{ratio:.2f}  {number(figure.value)} {figure.unit}"),
    ]
    for wanted in (beside.at_least, beside.at_most):
        if wanted is not None:
            at = BARS + SCALE * min(wanted, LONGEST)
            lines.append(f'<path d="M{at:.0f},{y} v{LINE - 2}" stroke="{MARK}" stroke-width="2"/>')
    return lines


def _text(x: int, y: int, told: str, *, anchor: str = "start", weight: str = "normal", size: int = 12) -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" fill="{INK}"'
    return f'<text x="{x}" y="{y}" {style}>{escape(told)}</text>'
