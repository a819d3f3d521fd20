"""Draws the rooms of the package from the table of allowed imports: `python -m docs.room_diagram` writes the picture.

A test compares the picture with `MAY_IMPORT` in tests/test_architecture.py. Where a room gets a new import, this file
fails or the picture changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path

PICTURE = Path(__file__).parent / "explanation" / "rooms.svg"


@dataclass(frozen=True, eq=False)
class Box:
    """A box of the picture: one room, or several that a reader may take as one.

    Attributes:
        middle: Where its middle is, from the left.
        row: Its layer, from the top. A box imports only from boxes in rows below its own.
    """

    title: str
    purpose: str
    rooms: Set[str]
    middle: int
    row: int
    width: int = 230


SHARED = {
    *(
        "safe_text",
        "foreign_errors",
        "unfinished_work",
        "interruptions",
        "log",
        "error_types",
        "checks",
        "options_and_defaults",
        "exponential_backoff",
        "observations",
        "clock",
        "locks_and_dead_letters",
    ),
    *("loop_time", "thread_turns", "real_time", "threads_and_frozen_time"),
    *("grace", "loops", "process_signals", "async_with"),
}
BOXES = (
    Box("cli/, testing/", "the command; tools for tests", {"cli", "testing", "entry_point", "__main__"}, 250, 0, 300),
    Box("metrics/, otel.py, web/", "numbers, traces, HTTP", {"metrics", "otel", "web"}, 520, 1),
    Box("scheduler/", "runs jobs", {"scheduler"}, 390, 2),
    Box("claims/", "runs work on any document", {"claims"}, 650, 2),
    Box("bridge/", "handlers on trio or asyncio", {"bridge"}, 520, 3),
    Box("embedded/", "a private MongoDB server", {"embedded"}, 105, 3, 180),
    Box("host/", "starts, drains and reports", {"host"}, 520, 4),
    Box("client/, diagnosis/", "enqueues, manages, judges", {"client", "diagnosis"}, 390, 5),
    Box("engine/", "claims, runs, settles; no MongoDB", {"engine"}, 650, 5, 250),
    Box("store/", "sends every MongoDB command", {"store"}, 390, 6),
    Box("jobs/, payloads/, events.py", "what a job is; no I/O", {"jobs", "payloads", "events", "errors"}, 390, 7, 250),
    Box(
        "error_types.py, clock.py and other single modules",
        "used by every layer",
        SHARED,
        395,
        8,
        760,
    ),
)
WIDTH, HEIGHT, STEP, TOP = 800, 806, 90, 14
BOX_HEIGHT = 54


def arrows(may_import: Mapping[str, Set[str]]) -> list[tuple[Box, Box]]:
    """From each box to those that it imports, without the arrows that follow from others."""
    box_of = {room: box for box in BOXES for room in box.rooms}
    assert box_of.keys() == may_import.keys(), box_of.keys() ^ may_import.keys()
    below = {box: {box_of[to] for room in box.rooms for to in may_import[room]} - {box} for box in BOXES}
    reached: dict[Box, set[Box]] = {}
    for box in sorted(BOXES, key=lambda one: -one.row):
        wrong = [to.title for to in below[box] if to.row <= box.row]
        assert not wrong, f"{box.title} imports {wrong}, which must stand in a row below it"
        reached[box] = below[box].union(*(reached[to] for to in below[box]))
    return [
        (box, to)
        for box in BOXES
        for to in BOXES
        if to in below[box] and not any(to in reached[between] for between in below[box])
    ]


def diagram(may_import: Mapping[str, Set[str]]) -> str:
    """The picture, as SVG. It has a background of its own, so that it is readable on dark pages, too."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="#fff"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">',
        '<path d="M0,0 L8,4 L0,8 z" fill="#567"/></marker></defs>',
    ]
    parts.extend(_line(source, target) for source, target in arrows(may_import))
    for box in BOXES:
        left, top = box.middle - box.width // 2, _top(box)
        fill = "#fdf3e1" if box.rooms is SHARED else "#e6eef6"
        size = f'width="{box.width}" height="{BOX_HEIGHT}"'
        text = f'x="{box.middle}" text-anchor="middle"'
        parts += [
            f'<rect x="{left}" y="{top}" {size} rx="8" fill="{fill}" stroke="#345"/>',
            f'<text {text} y="{top + 23}" font-size="15" font-weight="bold" fill="#123">{box.title}</text>',
            f'<text {text} y="{top + 42}" font-size="13" fill="#345">{box.purpose}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _top(box: Box) -> int:
    return TOP + STEP * box.row


def _line(source: Box, target: Box) -> str:
    """Between the nearest points of the lower and the upper edge: upright wherever one box stands above the other."""
    start = min(max(target.middle, source.middle - source.width // 2 + 30), source.middle + source.width // 2 - 30)
    end = min(max(start, target.middle - target.width // 2 + 30), target.middle + target.width // 2 - 30)
    return (
        f'<path d="M{start},{_top(source) + BOX_HEIGHT} L{end},{_top(target)}" '
        'fill="none" stroke="#567" stroke-width="1.6" marker-end="url(#a)"/>'
    )


if __name__ == "__main__":
    from tests.test_architecture import MAY_IMPORT

    PICTURE.write_text(diagram(MAY_IMPORT), encoding="utf-8")
