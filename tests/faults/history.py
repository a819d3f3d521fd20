"""Every change that the server made to each job, in order, from its own log of operations. Knows no library.

A replica set writes down all that changed, from any sender: the log cannot leave out a write that no client reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pymongo import MongoClient

Document = Mapping[str, Any]

CLAIM_FIELDS: Final = ("claimedBy", "lockedAt", "claimToken", "lastHeartbeat", "heartbeatInterval")


@dataclass(frozen=True)
class Change:
    """One write to one document.

    Attributes:
        at: The server's time.
        before, after: The document; None where it was not there.
    """

    job: str
    at: datetime
    before: Document | None
    after: Document | None


@dataclass(frozen=True)
class Claim:
    """One hold on a job, from the write that took it to the write that ended it.

    Attributes:
        taken: The write.
        beat_at: When the last sign of life was written.
        ended: How, and by which write: "completed", "failed", "snoozed", "released", "rescued", "given up",
            "cancelled", "deleted" or "replaced"; None while it is held.
    """

    job: str
    token: str
    by: str
    attempt: int
    lease: float
    taken: Change
    beat_at: datetime
    ended: tuple[str, Change] | None

    def __str__(self) -> str:
        how = "held" if self.ended is None else f"{self.ended[0]} at {self.ended[1].at}"
        return (
            f"job {self.job} attempt {self.attempt} of {self.token} at {self.taken.at}, last beat {self.beat_at}, {how}"
        )


def read_history(client: MongoClient[Any], database: str, collection: str = "monque_jobs") -> Sequence[Change]:
    """All changes so far."""
    namespace = f"{database}.{collection}"
    log = client["local"]["oplog.rs"]
    packed = {"op": "c", "o.applyOps.ns": namespace}
    assert log.find_one(packed) is None, "transactions and packed inserts are not understood here"
    documents: dict[Any, Document] = {}
    changes = []
    for entry in log.find({"ns": namespace, "op": {"$in": ["i", "u", "d"]}}).sort("$natural", 1):
        key = entry["o2" if entry["op"] == "u" else "o"]["_id"]
        before = documents.pop(key, None)
        after = _after(entry, before)
        if after is not None:
            documents[key] = after
        changes.append(Change(str(key), entry["wall"], before, after))
    return changes


def _after(entry: Document, before: Document | None) -> Document | None:
    if entry["op"] == "d":
        return None
    written = entry["o"]
    if entry["op"] == "i" or "_id" in written:
        return dict(written)
    assert before is not None
    assert written["$v"] == 2, f"another form of the log than that of MongoDB 5 and later: {written}"
    return _patched(before, written["diff"])


def _patched(before: Document, diff: Document) -> Document:
    """What a document has become: fields that are gone, that are new or others, and that have changed inside."""
    kept = {name: value for name, value in before.items() if name not in diff.get("d", ())}
    inside = {name[1:]: _inside(before[name[1:]], one) for name, one in diff.items() if name not in ("d", "u", "i")}
    return {**kept, **inside, **diff.get("u", {}), **diff.get("i", {})}


def _inside(before: Any, diff: Document) -> Any:
    if "a" not in diff:
        return _patched(before, diff)
    after = list(before)
    for name, one in diff.items():
        if name not in ("a", "l"):
            number = int(name[1:])
            # The one after the last is new.
            after[number : number + 1] = [one if name[0] == "u" else _inside(before[number], one)]
    return after[: diff.get("l")]


def claims(changes: Sequence[Change]) -> Iterator[Claim]:
    """All that there were, in the order in which they ended; those that are held at the end come last."""
    held: dict[str, tuple[Change, datetime]] = {}
    for change in changes:
        if (token := _token(change.before)) is not None and token != _token(change.after):
            taken, beat_at = held.pop(change.job)
            yield _claim(taken, beat_at, (_how_ended(change), change))
        if (token := _token(change.after)) is None:
            continue
        if token != _token(change.before):
            held[change.job] = (change, change.at)
        elif _of(change.before, "lastHeartbeat") != _of(change.after, "lastHeartbeat"):
            held[change.job] = (held[change.job][0], change.at)
    for taken, beat_at in held.values():
        yield _claim(taken, beat_at, None)


def _claim(taken: Change, beat_at: datetime, ended: tuple[str, Change] | None) -> Claim:
    document = taken.after
    assert document is not None
    lease = 3 * document["heartbeatInterval"] / 1000
    return Claim(
        taken.job, document["claimToken"], document["claimedBy"], document["attempts"], lease, taken, beat_at, ended
    )


def _how_ended(change: Change) -> str:
    before, after = change.before, change.after
    if after is None:
        return "deleted"
    if _of(after, "claimToken") is not None:
        return "replaced"
    if after["status"] in ("completed", "cancelled"):
        return str(after["status"])
    if (_of(after, "failCount") or 0) > (_of(before, "failCount") or 0):
        return "failed"
    if (_of(after, "rescues") or 0) > (_of(before, "rescues") or 0):
        return "rescued"
    if after["status"] == "failed":
        return "given up"
    if after["nextRunAt"] == _of(before, "nextRunAt"):
        return "released"
    if "repeatInterval" in after and "saved" not in after and _of(after, "failReason") is None:
        return "completed"  # This occurrence of it.
    return "snoozed"


def _token(document: Document | None) -> str | None:
    token = _of(document, "claimToken")
    assert token is None or isinstance(token, str)
    return token


def _of(document: Document | None, name: str) -> Any:
    return None if document is None else document.get(name)
