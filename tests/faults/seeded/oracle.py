"""The laws, and what a schedule is known by. Both go by the guarantees, and by nothing of the library's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bson import ObjectId

from . import laws_of_records, laws_of_steps
from .evidence import Evidence
from .history import Change
from .records import Played


def harm_in(evidence: Evidence) -> list[str]:
    """What is wrong; nothing where all is as it must be."""
    broken = [
        f"{law.__name__.replace('_', ' ')}: {one}"
        for law in (*laws_of_steps.LAWS, *laws_of_records.LAWS)
        for one in law(evidence)
    ]
    return evidence.odd + broken


def account_of(played: Played, changes: Sequence[Change]) -> list[Any]:
    """All of it, in order, with what is of chance (ids, tokens, receipts) left out or numbered."""
    numbers: dict[ObjectId, int] = {}

    def number(job: ObjectId | None) -> int | None:
        return None if job is None else numbers.setdefault(job, len(numbers))

    lines: list[Any] = [
        (str(one.at), one.who, one.what, number(one.job), one.attempt, str(one.detail)) for one in played.records
    ]
    lines += played.troubles
    for change in changes:
        after = {} if change.after is None else change.after
        shown = sorted((name, str(value)) for name, value in after.items() if name not in ("claimToken", "receipt"))
        lines.append((number(change.job), [one for one in shown if one[0] != "_id"]))
    return lines
