"""Draws what the library is, for the landing page: `python -m docs.overview_diagram` writes the pictures.

One picture for light pages and one for dark ones. They are narrow, so that their text is readable on a phone. The
statuses and the collection's name come from the code; a test compares the files with what this draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trio_monque.jobs.job import JobStatus
from trio_monque.options_and_defaults import SchedulerConfig

FOLDER: Final = Path(__file__).parent / "images"


@dataclass(frozen=True)
class Colors:
    back: str
    box: str
    store: str
    line: str
    text: str


PALETTES: Final = {
    "light": Colors(back="#ffffff", box="#eef3f8", store="#e3f1e7", line="#445566", text="#112233"),
    "dark": Colors(back="#131416", box="#22303d", store="#1c3527", line="#99aabb", text="#e6edf3"),
}

WIDTH, HEIGHT = 460, 484
COLUMNS: Final = (82, 230, 378)
"""The middles of three boxes side by side."""

PROGRAMS: Final = (("web service", "asyncio"), ("script", "plain Python"), ("Node program", "with Monque"))
BELOW: Final = (("worker process", "handlers"), ("worker process", "handlers"), ("operator", "dashboard, CLI"))
JOBS: Final = (
    ("mail.send", JobStatus.PENDING, "due now"),
    ("mail.send", JobStatus.PENDING, "due in 2 h"),
    ("invoice.pay", JobStatus.PROCESSING, "claimed by worker-1"),
    ("image.resize", JobStatus.COMPLETED, "result stored"),
    ("invoice.pay", JobStatus.FAILED, f"after {SchedulerConfig().max_attempts} attempts"),
)


def diagram(look: str) -> str:
    """The picture for light or dark pages, as SVG."""
    colors = PALETTES[look]
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = 'viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto-start-reverse"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="15">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{colors.back}"/>',
        f'<defs><marker id="a" {head}><path d="M0,0 L8,4 L0,8 z" fill="{colors.line}"/></marker></defs>',
    ]
    for middle, (title, detail) in zip(COLUMNS, PROGRAMS, strict=True):
        parts += [*_titled(colors, middle, 12, title, detail), _arrow(colors, middle, 62, 112)]
    parts += [_text(colors, 240, 92, "enqueue", anchor="start"), *_collection(colors)]
    for middle, (title, detail) in zip(COLUMNS, BELOW, strict=True):
        parts += [*_titled(colors, middle, 422, title, detail), _arrow(colors, middle, 354, 420, is_double=True)]
    for middle, lines in ((156, ("claim, renew,", "settle")), (304, ("look, cancel,", "retry"))):
        parts += [_text(colors, middle, 384 + 17 * number, line) for number, line in enumerate(lines)]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _collection(colors: Colors) -> list[str]:
    """The jobs, each in a line of its own."""
    name = SchedulerConfig().collection_name
    parts = [
        _box(colors, 10, 114, 440, 238, colors.store),
        _text(colors, 230, 138, f"MongoDB: one document a job, in {name}", is_bold=True),
    ]
    for number, (job, status, detail) in enumerate(JOBS):
        top = 152 + 38 * number
        parts += [
            _box(colors, 24, top, 412, 30, colors.back),
            _text(colors, 36, top + 20, job, anchor="start"),
            _text(colors, 152, top + 20, status, anchor="start", is_bold=True),
            _text(colors, 262, top + 20, detail, anchor="start"),
        ]
    return parts


def _titled(colors: Colors, middle: int, top: int, title: str, detail: str) -> list[str]:
    return [
        _box(colors, middle - 72, top, 144, 50, colors.box),
        _text(colors, middle, top + 22, title, is_bold=True),
        _text(colors, middle, top + 40, detail),
    ]


def _box(colors: Colors, left: int, top: int, width: int, height: int, fill: str) -> str:
    place = f'x="{left}" y="{top}" width="{width}" height="{height}"'
    return f'<rect {place} rx="8" fill="{fill}" stroke="{colors.line}"/>'


def _arrow(colors: Colors, x: int, top: int, bottom: int, *, is_double: bool = False) -> str:
    ends = 'marker-start="url(#a)" marker-end="url(#a)"' if is_double else 'marker-end="url(#a)"'
    return f'<path d="M{x},{top} L{x},{bottom}" stroke="{colors.line}" stroke-width="1.6" {ends}/>'


def _text(colors: Colors, x: int, y: int, text: str, *, anchor: str = "middle", is_bold: bool = False) -> str:
    weight = ' font-weight="bold"' if is_bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{colors.text}"{weight}>{text}</text>'


def path_of(look: str) -> Path:
    return FOLDER / f"at-a-glance-{look}.svg"


if __name__ == "__main__":
    for look in PALETTES:
        path_of(look).write_text(diagram(look), encoding="utf-8")
