"""Draws who sends what to whom, in time: `python -m docs.sequence_diagram` writes the pictures of a page.

The conditions of the writes are read from `trio_monque.jobs`, so that no picture can name others. A test compares the
files with what this draws.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any, Final

from bson import ObjectId

from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp, fence
from trio_monque.jobs.claimable import claimable, pins
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store.fields import FIELD

FOLDER: Final = Path(__file__).parent / "explanation"

COLUMN, MARGIN, TOP, ROW, LINE = 300, 124, 62, 40, 15
TEXT: Final = 44
"""Characters of a line beside a message."""


@dataclass(frozen=True)
class Message:
    """An arrow from one party to another. A lost one ends in the middle."""

    sender: str
    receiver: str
    text: str
    is_lost: bool = False


@dataclass(frozen=True)
class Note:
    """What happens at one party."""

    party: str
    text: str


Step = Message | Note


@dataclass(frozen=True)
class Picture:
    """One sequence.

    Attributes:
        parties: From left to right.
        steps: From top to bottom.
    """

    parties: Sequence[str]
    steps: Sequence[Step]


# --- The conditions, as the code has them ---

_NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
_STAMP: Final = ClaimStamp.new("worker-1", _NOW, 30.0, "x")
_DUE: Final = Job(
    id=ObjectId("0" * 24),
    name="mail",
    data=None,
    status=JobStatus.PENDING,
    next_run_at=_NOW,
    fail_count=0,
    created_at=_NOW,
    updated_at=_NOW,
)
_CLAIMED: Final = Job(
    id=_DUE.id,
    name="mail",
    data=None,
    status=JobStatus.PROCESSING,
    next_run_at=_NOW,
    fail_count=0,
    created_at=_NOW,
    updated_at=_NOW,
    claim=_STAMP.claim(),
)


def fields_of(guard: Mapping[str, Any], but: Mapping[str, Any] | None = None) -> str:
    """The names of the fields that a condition has, as they are in documents."""
    return ", ".join(FIELD[name] for name in guard if name not in (but or {}))


CLAIMABLE: Final = fields_of(claimable(["mail"], _NOW))
PINS: Final = fields_of(pins(_DUE))
FENCE: Final = fields_of(fence(_CLAIMED))
BESIDE_FENCE: Final = fields_of(transitions.rescue(_CLAIMED, _NOW, _NOW).guard, but=fence(_CLAIMED))


# --- The pictures ---

A, B, DB, HANDLER = "worker 1", "worker 2", "MongoDB", "handler"

PICTURES: Final = {
    "claim": Picture(
        (A, DB, B),
        (
            Message(A, DB, "look: due jobs, earliest first"),
            Message(B, DB, "look: due jobs, earliest first"),
            Message(DB, A, "job 7, as it is"),
            Message(DB, B, "job 7, as it is"),
            Message(A, DB, f"claim job 7 if still so: {CLAIMABLE}; pinned: {PINS}"),
            Note(DB, "It matches: processing, with the stamp of worker 1."),
            Message(DB, A, "1 changed, held by a majority"),
            Message(B, DB, "claim job 7, with the same condition"),
            Note(DB, "It is not pending any more: nothing matches."),
            Message(DB, B, "0 changed"),
            Note(A, "The copy is exact: the handler starts."),
            Note(B, "It takes other jobs."),
        ),
    ),
    "renewal": Picture(
        (HANDLER, A, DB),
        (
            Note(A, "Moment s: it sends the claim."),
            Message(A, DB, "claim"),
            Message(DB, A, "1 changed"),
            Message(A, HANDLER, "run, in a cancel scope with the deadline s + 80 s"),
            Note(A, "After 30 s, moment r:"),
            Message(A, DB, f"renew: $max renewedAt; fence: {FENCE}"),
            Message(DB, A, "1 changed"),
            Note(A, "The deadline moves to r + 80 s."),
            Message(A, DB, "renew", is_lost=True),
            Note(A, "Again after at most 1 s, and so on."),
            Message(A, HANDLER, "cancel at r + 80 s (lost); clean-up until r + 85 s"),
            Note(DB, "From r + 90 s on, others may take the job."),
        ),
    ),
    "rescue": Picture(
        (A, DB, B),
        (
            Message(A, DB, "claim job 7"),
            Note(A, "It dies, or is frozen or cut off."),
            Message(B, DB, "look at claims: renewedAt of job 7"),
            Note(B, "90 s by its own clock: renewedAt does not change."),
            Message(B, DB, f"rescue: the fence; as seen: {BESIDE_FENCE}"),
            Note(DB, "pending again, one death more."),
            Message(DB, B, "1 changed"),
            Message(B, DB, "claim job 7: a new token"),
            Note(A, "It thaws. Its run is cancelled."),
            Message(A, DB, "settle job 7: fence with the old token"),
            Note(DB, "Another claim holds it: nothing matches."),
            Message(DB, A, "0 changed: JobClaimLost"),
        ),
    ),
    "lost-answer": Picture(
        (HANDLER, A, DB),
        (
            Message(HANDLER, A, "returns"),
            Message(A, DB, "complete: fence; receipt r1"),
            Note(DB, "It matches: completed, receipt r1."),
            Message(DB, A, "1 changed", is_lost=True),
            Message(A, DB, "the same again: fence; receipt r1"),
            Note(DB, "The claim is over: nothing matches."),
            Message(DB, A, "0 changed"),
            Message(A, DB, "read by majority: who has receipt r1?"),
            Message(DB, A, "job 7"),
            Note(A, "It was the first sending: JobCompleted, once."),
        ),
    ),
    "shutdown": Picture(
        ("supervisor", A, HANDLER, DB),
        (
            Message("supervisor", A, "SIGTERM"),
            Note(A, "Drain: it claims nothing more."),
            Message(A, DB, "release claims that have not begun"),
            Note(HANDLER, "Runs go on: 30 s (shutdown_timeout)."),
            Message(HANDLER, A, "most return"),
            Message(A, DB, "settle them"),
            Message(A, HANDLER, "cut: cancel what still runs"),
            Note(HANDLER, "Clean-up: 5 s (cleanup_timeout)."),
            Message(HANDLER, A, "ended"),
            Message(A, DB, "release: pending at once, no failure"),
            Note(A, "At the latest 1.5 s later: the hard end."),
            Message(A, "supervisor", "exit status 0"),
        ),
    ),
}


# --- Drawing ---


def drawn(picture: Picture) -> str:
    """The picture, as SVG."""
    places = {party: MARGIN + number * COLUMN for number, party in enumerate(picture.parties)}
    parts: list[str] = []
    y = TOP
    for step in picture.steps:
        drawing, y = _note(step, places, y) if isinstance(step, Note) else _message(step, places, y)
        parts += drawing
    width, height = 2 * MARGIN + COLUMN * (len(places) - 1), y + 10
    size = f'viewBox="0 0 {width} {height}"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">',
        '<path d="M0,0 L8,4 L0,8 z" fill="#567"/></marker></defs>',
    ]
    for party, x in places.items():
        lines.append(f'<path d="M{x},40 L{x},{height}" stroke="#abc" stroke-dasharray="4 4"/>')
        lines.append(f'<rect x="{x - 60}" y="12" width="120" height="28" rx="7" fill="#eef3f8" stroke="#345"/>')
        lines.append(
            f'<text x="{x}" y="31" text-anchor="middle" font-weight="bold" font-size="13" fill="#123">{party}</text>'
        )
    return "\n".join([*lines, *parts, "</svg>"]) + "\n"


def _message(step: Message, places: Mapping[str, int], y: int) -> tuple[list[str], int]:
    begin, end = places[step.sender], places[step.receiver]
    middle = (begin + end) // 2
    lines = wrap(step.text, TEXT)
    y += LINE * len(lines)
    parts = _text(lines, middle, y - LINE * (len(lines) - 1) - 5)
    if step.is_lost:
        parts.append(f'<path d="M{begin},{y} L{middle},{y}" stroke="#b33" stroke-width="1.4"/>')
        parts.append(f'<path d="M{middle - 5},{y - 5} l10,10 m0,-10 l-10,10" stroke="#b33" stroke-width="2"/>')
    else:
        parts.append(f'<path d="M{begin},{y} L{end},{y}" stroke="#567" stroke-width="1.4" marker-end="url(#a)"/>')
    return parts, y + ROW - LINE - 6


def _note(step: Note, places: Mapping[str, int], y: int) -> tuple[list[str], int]:
    x = places[step.party]
    lines = wrap(step.text, 34)
    height = LINE * len(lines) + 8
    box = f'<rect x="{x - 112}" y="{y - 4}" width="224" height="{height}" rx="4" fill="#fdf6dd" stroke="#cb9"/>'
    return [box, *_text(lines, x, y + LINE - 5)], y + height + 6


def _text(lines: Sequence[str], x: int, y: int) -> list[str]:
    return [
        f'<text x="{x}" y="{y + LINE * number}" text-anchor="middle" fill="#234">{escape(line)}</text>'
        for number, line in enumerate(lines)
    ]


def path_of(name: str) -> Path:
    return FOLDER / f"sequence-{name}.svg"


if __name__ == "__main__":
    for name, picture in PICTURES.items():
        path_of(name).write_text(drawn(picture), encoding="utf-8")
