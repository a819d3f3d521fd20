"""Draws the state machine from its table: `python docs/state_diagram.py` writes the picture and the list.

A test holds both against `trio_monque.jobs.transitions.TABLE`, so that the page cannot tell anything else.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from trio_monque.jobs.job import JobStatus
from trio_monque.jobs.transitions import TABLE

FOLDER = Path(__file__).parent / "explanation"
PICTURE = FOLDER / "state-diagram.svg"
PAGE = FOLDER / "life-of-a-job.md"
BEGIN, END = "<!-- the table of transitions: python docs/state_diagram.py -->", "<!-- the end of the table -->"

WIDTH, HEIGHT, LINE = 130, 44, 15
# Where the middle of each status is drawn.
PLACES = {
    JobStatus.PENDING: (110, 230),
    JobStatus.PROCESSING: (470, 230),
    JobStatus.COMPLETED: (810, 90),
    JobStatus.FAILED: (810, 230),
    JobStatus.CANCELLED: (810, 400),
}
# Each arrow's curve, and where its label stands.
ARROWS = {
    (JobStatus.PENDING, JobStatus.PROCESSING): ("M175,222 L405,222", (290, 214, "middle")),
    (JobStatus.PROCESSING, JobStatus.PENDING): ("M440,252 C400,330 180,330 140,252", (290, 326, "middle")),
    (JobStatus.PROCESSING, JobStatus.COMPLETED): ("M500,208 C560,140 660,90 745,90", (590, 108, "end")),
    (JobStatus.PROCESSING, JobStatus.FAILED): ("M535,230 L745,230", (630, 222, "middle")),
    (JobStatus.PROCESSING, JobStatus.CANCELLED): ("M510,252 C570,340 660,385 745,392", (610, 330, "start")),
    (JobStatus.PENDING, JobStatus.FAILED): ("M160,208 C330,150 600,150 760,208", (640, 152, "middle")),
    (JobStatus.PENDING, JobStatus.CANCELLED): ("M95,252 C80,470 500,470 745,412", (330, 466, "middle")),
    (JobStatus.FAILED, JobStatus.PENDING): ("M810,208 C780,20 160,-20 120,208", (430, 42, "middle")),
    (JobStatus.COMPLETED, JobStatus.PENDING): ("M760,68 C600,40 260,60 135,208", (420, 88, "middle")),
    (JobStatus.CANCELLED, JobStatus.PENDING): ("M770,422 C600,540 120,540 85,252", (430, 515, "middle")),
    (JobStatus.PENDING, JobStatus.PENDING): ("M80,208 C40,140 120,140 100,208", (12, 140, "start")),
    (JobStatus.PROCESSING, JobStatus.PROCESSING): ("M445,208 C410,140 510,140 480,208", (460, 130, "middle")),
}


def diagram() -> str:
    """The picture, as SVG."""
    names: dict[tuple[JobStatus, JobStatus], list[str]] = defaultdict(list)
    for row in TABLE:
        names[row.source, row.target].append(row.name)
    assert names.keys() == ARROWS.keys(), "every pair of statuses in the table has its arrow, and no other"
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 540" font-family="sans-serif" font-size="13">',
        '<rect width="900" height="540" fill="#fff"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">',
        '<path d="M0,0 L8,4 L0,8 z" fill="#567"/></marker></defs>',
    ]
    for pair, (curve, (x, y, anchor)) in ARROWS.items():
        parts.append(f'<path d="{curve}" fill="none" stroke="#567" stroke-width="1.4" marker-end="url(#a)"/>')
        parts.extend(
            f'<text x="{x}" y="{y + LINE * number}" text-anchor="{anchor}" fill="#234">{name}</text>'
            for number, name in enumerate(names[pair])
        )
    for status, (x, y) in PLACES.items():
        left, top = x - WIDTH // 2, y - HEIGHT // 2
        box = f'x="{left}" y="{top}" width="{WIDTH}" height="{HEIGHT}"'
        parts.append(f'<rect {box} rx="9" fill="#eef3f8" stroke="#345"/>')
        parts.append(f'<text x="{x}" y="{y + 5}" text-anchor="middle" font-weight="bold" fill="#123">{status}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def table() -> str:
    """The list of transitions, as Markdown."""
    rows = [f"| `{row.name}` | {row.source} | {row.target} | {row.why} |" for row in TABLE]
    return "\n".join(["| Transition | From | To | When |", "|---|---|---|---|", *rows])


def page_with_table(page: str) -> str:
    """The page, with the list brought up to date."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PICTURE.write_text(diagram(), encoding="utf-8")
    PAGE.write_text(page_with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
