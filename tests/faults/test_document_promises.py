"""Of each rule of the checker of claims on documents: a forgery that it refuses, beside what it accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import pytest
from bson import ObjectId

from trio_monque.store.driver.types import Database

from . import document_promises
from .document_promises import RULES, DocumentEvidence, broken
from .history import Change, read_history
from .records import Record

LEASE: Final = 1.2
START: Final = datetime(2026, 1, 1, tzinfo=UTC)

Document = Mapping[str, Any]
Story = list[tuple[float, Document | None]]
"""What a document is, from which second on."""

NEW: Final[Document] = {"state": "new", "results": 0, "address": "1 High Street"}


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def locked(**lock: Any) -> Document:
    return {**NEW, "lock": lock}


def held(until: float, by: str = "one", tries: int = 0, **fields: Any) -> Document:
    return locked(**{"by": by, "until": at(until), "every": 400, "token": f"{by}:{tries}", "tries": tries, **fields})


def free(since: float, tries: int = 1) -> Document:
    return locked(by=None, until=at(since), tries=tries)


def plainly(until: float, by: str = "plain") -> Document:
    return locked(by=by, until=at(until))


def done(by: str = "one", attempt: int = 1, **fields: Any) -> Document:
    written_by = {"by": by} if by == "plain" else {"by": by, "token": f"{by}:{attempt - 1}", "attempt": attempt}
    return {**NEW, "state": "done", "results": 1, "written_by": written_by, **fields}


def history(**stories: Story) -> Sequence[Change]:
    changes = []
    for document, story in stories.items():
        for (_, before), (second, after) in pairwise([(0.0, None), *story]):
            changes.append(Change(document, at(second), before, after))
    return sorted(changes, key=lambda one: one.at)


def run(start: float, end: float, by: str = "one", token: str = "", number: int = 1) -> list[Record]:
    def record(what: str, when: float, detail: str = "") -> Record:
        return Record(by, "a", number, what, when, detail)

    return [
        record("start", start, token or f"{by}:0"),
        record("passed", (start + end) / 2),
        record("finishes", end - 0.1),
        record("finished", end),
        record("end", end),
    ]


def of_test(what: str, when: float, detail: str) -> Record:
    return Record("test", "", 0, what, when, detail)


ONCE: Final[Story] = [(0, NEW), (1, held(2.2)), (1.4, held(2.6)), (1.9, done())]
RESCUED: Final[Story] = [
    (0, NEW),
    (1, held(2.2)),
    (2.5, free(2.6)),
    (4, held(5.2, "two", 1)),
    (4.9, done("two", 2)),
]
FOREIGN: Final[Story] = [
    (0, NEW),
    (1, plainly(2)),
    (3.1, free(3.2)),
    (4, held(5.2, "two", 1)),
    (4.9, done("two", 2)),
]

# A document that was run once; one whose process was killed; one whose process was frozen; one that a program left.
PLAIN: Final = DocumentEvidence(run(1, 2), history(a=ONCE), LEASE, 1.9, START)
KILLED: Final = DocumentEvidence(
    [run(1, 2)[0], of_test("killed", 1.3, "one"), *run(4, 5, "two", "two:1")], history(a=RESCUED), LEASE, 1.9, START
)
FROZEN: Final = DocumentEvidence(
    [
        run(1, 9)[0],
        of_test("frozen", 1.3, "one"),
        *run(4, 5, "two", "two:1"),
        of_test("thawed", 6, "one"),
        Record("one", "a", 1, "cancelled", 6.2),
        Record("one", "a", 1, "end", 6.2),
    ],
    history(a=RESCUED),
    LEASE,
    1.9,
    START,
)
# One whose process was frozen between the last look at its claim and the first line of the handler.
CAUGHT: Final = replace(
    FROZEN,
    records=[
        of_test("frozen", 1.3, "one"),
        *run(4, 5, "two", "two:1"),
        of_test("thawed", 6, "one"),
        run(6.1, 9)[0],
        *FROZEN.records[-2:],
    ],
)
LEFT: Final = DocumentEvidence(
    run(4, 5, "two", "two:1"), history(a=FOREIGN), LEASE, 1.9, START, plain=frozenset({"plain"})
)
# One that had missed too many leases on a busy machine: its own run counts it, before another may.
MISSED: Final = DocumentEvidence(
    [
        run(1, 9)[0],
        Record("one", "a", 1, "cancelled", 1.8),
        Record("one", "a", 1, "end", 1.8),
        *run(4, 5, "two", "two:1"),
    ],
    history(a=[*RESCUED[:2], (1.9, free(2.1)), *RESCUED[3:]]),
    LEASE,
    1.9,
    START,
)
ACCEPTED: Final = {
    "plain": PLAIN,
    "killed": KILLED,
    "frozen": FROZEN,
    "caught": CAUGHT,
    "left": LEFT,
    "missed": MISSED,
}


@pytest.mark.parametrize("what", ACCEPTED)
def test_what_kept_its_promises_is_accepted(what: str) -> None:
    assert broken(ACCEPTED[what]) == []


def test_a_claim_that_was_cut_off_is_rescued_and_one_that_missed_too_many_leases_is_not() -> None:
    cut_off = story(
        replace(MISSED, records=[replace(one, at=2.1) if one.at == 1.8 else one for one in MISSED.records]), a=RESCUED
    )
    assert [cut_off.is_rescue(hold) for hold in cut_off.holds] == [True, False]
    assert [MISSED.is_rescue(hold) for hold in MISSED.holds] == [False, False]


def records(evidence: DocumentEvidence, *more: Record) -> DocumentEvidence:
    """With these as well."""
    return replace(evidence, records=sorted([*evidence.records, *more], key=lambda one: one.at))


def without(evidence: DocumentEvidence, *whats: str) -> DocumentEvidence:
    return replace(evidence, records=[one for one in evidence.records if one.what not in whats])


def story(evidence: DocumentEvidence, **stories: Story) -> DocumentEvidence:
    return replace(evidence, changes=history(**stories))


AGAIN: Final[Story] = [*ONCE, (2, {**done(), "results": 2})]
ALONE: Final[Mapping[str, Any]] = {"left alone": True}

# What is forged -> the rule that refuses it.
FORGED: Final[Mapping[str, tuple[DocumentEvidence, str]]] = {
    "no result": (story(PLAIN, a=[(0, NEW)]), "every_document_has_one_result"),
    "two results": (story(PLAIN, a=AGAIN), "every_document_has_one_result"),
    "one result, written twice": (
        story(PLAIN, a=[*ONCE, (2, {**done(), "state": "again"})]),
        "every_document_has_one_result",
    ),
    "a lock left": (story(PLAIN, a=[*ONCE, (2, done(lock=free(2)["lock"]))]), "every_document_has_one_result"),
    "a result of what is left alone": (
        story(PLAIN, a=[(0, {**NEW, **ALONE}), (1, {**held(2), **ALONE}), (2, done(**ALONE))]),
        "every_document_has_one_result",
    ),
    "written by another": (story(PLAIN, a=[*ONCE[:3], (1.9, done("two"))]), "results_are_of_the_holder"),
    "written under an older claim": (
        story(PLAIN, a=[*ONCE[:2], (1.5, held(2.6, token="one:later")), (1.9, done())]),
        "results_are_of_the_holder",
    ),
    "written under no lock": (story(PLAIN, a=[(0, NEW), (1, done())]), "results_are_of_the_holder"),
    "written and not unlocked": (
        story(PLAIN, a=[*ONCE[:3], (1.9, done(lock=held(2)["lock"]))]),
        "results_are_of_the_holder",
    ),
    "a wrong attempt": (story(KILLED, a=[*RESCUED[:4], (5, done("two", 1))]), "results_are_of_the_holder"),
    "another field touched": (
        story(PLAIN, a=[*ONCE[:3], (1.9, done(address="2 High Street"))]),
        "nothing_else_is_touched",
    ),
    "a field gone": (
        story(PLAIN, a=[*ONCE[:2], (1.5, {"state": "new", "results": 0, "lock": held(2)["lock"]})]),
        "nothing_else_is_touched",
    ),
    "deleted": (story(PLAIN, a=[*ONCE, (2, None)]), "nothing_else_is_touched"),
    "a lock on what is left alone": (
        story(PLAIN, a=[(0, {**NEW, **ALONE}), (1, {**held(2), **ALONE})]),
        "nothing_else_is_touched",
    ),
    "taken from another": (
        story(PLAIN, a=[(0, NEW), (0.5, plainly(3, "two")), (1, held(2.2)), (1.9, done())]),
        "takes_are_of_free_documents",
    ),
    "taken from a plain program when its lock was over": (
        story(LEFT, a=[*FOREIGN[:2], (4, held(5.2, "two")), FOREIGN[-1]]),
        "takes_are_of_free_documents",
    ),
    "taken by a plain program too early": (
        story(LEFT, a=[(0, NEW), (1, held(2.2)), (2, plainly(3)), (3, done("plain"))]),
        "takes_are_of_free_documents",
    ),
    "taken within its back-off": (
        story(KILLED, a=[*RESCUED[:2], (2.5, free(4.5)), *RESCUED[3:]]),
        "takes_are_of_free_documents",
    ),
    "tries forgotten": (
        story(KILLED, a=[*RESCUED[:3], (4, held(5.2, "two", 0)), RESCUED[4]]),
        "takes_are_of_free_documents",
    ),
    "a token of nobody's": (
        story(PLAIN, a=[(0, NEW), (1, held(2.2, token="0")), (1.9, done())]),
        "takes_are_of_free_documents",
    ),
    "an error left in the lock": (
        story(PLAIN, a=[(0, NEW), (1, held(2.2, error="no such street")), (1.9, done())]),
        "takes_are_of_free_documents",
    ),
    "a lock for too long": (
        story(PLAIN, a=[(0, NEW), (1, held(2.3)), (1.9, done())]),
        "takes_are_of_free_documents",
    ),
    "a renewal back in time": (story(PLAIN, a=[*ONCE[:2], (1.4, held(2.1)), ONCE[3]]), "renewals_grow"),
    "a renewal of something else": (
        story(PLAIN, a=[*ONCE[:2], (1.4, held(2.6, every=900)), ONCE[3]]),
        "renewals_grow",
    ),
    "a renewal that does not grow": (
        story(PLAIN, a=[*ONCE[:2], (1.4, {**held(2.2), "lock": {**held(2.2)["lock"], "x": 1}}), ONCE[3]]),
        "renewals_grow",
    ),
    "taken from the living": (
        story(KILLED, a=[*RESCUED[:2], (2, held(3)), *RESCUED[2:]]),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "taken from one that is cancelled later": (
        story(
            replace(MISSED, records=[replace(one, at=2.3) if one.at == 1.8 else one for one in MISSED.records]),
            a=[*RESCUED[:2], (1.9, free(2.6)), *RESCUED[3:]],
        ),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "taken from a plain program within the skew": (
        story(LEFT, a=[*FOREIGN[:2], (2.9, free(3)), *FOREIGN[3:]]),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "a plain program's lock given back": (
        story(LEFT, a=[*FOREIGN[:2], (3.1, free(3.2, 0)), (4, held(5.2, "two")), (4.9, done("two"))]),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "counted twice": (
        story(KILLED, a=[*RESCUED[:2], (2.5, free(2.6, 2)), (4, held(5.2, "two", 2)), (5, done("two", 3))]),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "rescued without a back-off": (
        story(KILLED, a=[*RESCUED[:2], (2.5, free(1)), *RESCUED[3:]]),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "failed without a back-off": (
        story(
            records(without(PLAIN, "finishes", "finished"), Record("one", "a", 1, "failed", 1.95)),
            a=[*ONCE[:3], (2, free(1.5))],
        ),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "given back under its run": (
        story(without(PLAIN, "end"), a=[*ONCE[:2], (1.5, free(1.5, 0))]),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "unlocked under its run": (
        story(without(PLAIN, "end"), a=[*ONCE[:2], (1.5, NEW)]),
        "ends_are_of_the_holder_or_the_silent",
    ),
    "rescued too late": (replace(KILLED, rescued_within=1.4), "the_dead_are_rescued_in_time"),
    "never rescued": (story(KILLED, a=RESCUED[:2]), "the_dead_are_rescued_in_time"),
    "run twice under one claim": (records(PLAIN, *run(3, 4, number=2)), "runs_are_under_holds"),
    "run without a claim": (records(PLAIN, *run(3, 4, "two")), "runs_are_under_holds"),
    "run before its claim": (replace(PLAIN, records=run(0.5, 2)), "runs_are_under_holds"),
    "run after its claim": (
        replace(KILLED, records=[*run(3, 3.5)[:1], of_test("killed", 3.3, "one"), *run(4, 5, "two", "two:1")]),
        "runs_are_under_holds",
    ),
    "reported as finished": (
        records(KILLED, Record("one", "a", 1, "finished", 1.2)),
        "runs_are_under_holds",
    ),
    "finished by nobody": (without(PLAIN, "finishes"), "runs_are_under_holds"),
    "run beside one that did not die": (without(KILLED, "killed"), "runs_do_not_overlap"),
    "run beside one that was frozen for less than its lease": (
        records(without(FROZEN, "thawed"), of_test("thawed", 2, "one")),
        "runs_do_not_overlap",
    ),
    "begun first after the thaw, beside another, under a new claim": (
        story(
            replace(CAUGHT, records=[CAUGHT.records[0], *run(4, 7, "two", "two:1"), CAUGHT.records[6], *run(6.1, 7)]),
            a=[*RESCUED[:3], (6.02, held(7.2)), (7, done())],
        ),
        "runs_do_not_overlap",
    ),
    "a checkpoint passed after the thaw": (records(FROZEN, Record("one", "a", 1, "passed", 6.1)), "thawed_runs_stop"),
    "a checkpoint passed after the thaw, of a run that the freeze caught at its first line": (
        records(CAUGHT, Record("one", "a", 1, "passed", 6.15)),
        "thawed_runs_stop",
    ),
    "a result written after the thaw, of a run that the freeze caught at its first line": (
        story(CAUGHT, a=[(0, NEW), (1, held(2.2)), (7, done())]),
        "thawed_runs_stop",
    ),
    "begun under an old claim, and not the first after the thaw": (
        records(CAUGHT, Record("one", "b", 2, "start", 6.05, "one:b")),
        "runs_are_under_holds",
    ),
    "a result handed over after the thaw": (
        records(FROZEN, Record("one", "a", 1, "finishes", 6.1)),
        "thawed_runs_stop",
    ),
    "a result written after the thaw": (
        story(FROZEN, a=[(0, NEW), (1, held(2.2)), (7, done())]),
        "thawed_runs_stop",
    ),
}


@pytest.mark.parametrize("what", FORGED)
def test_forgery_is_refused(what: str) -> None:
    evidence, rule = FORGED[what]
    assert list(getattr(document_promises, rule)(evidence))


def test_every_rule_refuses_some_forgery() -> None:
    assert {rule for _, rule in FORGED.values()} == {rule.__name__ for rule in RULES}


def test_history_equals_the_stored_documents_for_every_kind_of_update(db: Database) -> None:
    one: dict[str, Any] = {"_id": ObjectId(), "a": {"b": [1, {"c": 2}, [3, 4]], "d": 5}, "e": [], "s": 1}
    documents = db["documents"]
    documents.insert_one(one)
    updates: Sequence[Any] = (
        {"$set": {"a.b.1.c": 3, "f": {"g": 1}}, "$push": {"e": 1}},
        {"$set": {"a.b.2.1": 7}, "$push": {"e": {"$each": [2, 3]}}, "$unset": {"a.d": ""}},
        {"$pop": {"a.b": 1}, "$set": {"e.0": 9}, "$inc": {"s": 1}},
        {"$pull": {"e": {"$lt": 4}}, "$rename": {"f": "h"}},
        [{"$set": {"lock": {"$mergeObjects": [{"$literal": {"by": "me"}}, {"tries": 0}]}}}],
        {"$max": {"lock.tries": 1}, "$unset": {"s": ""}},
    )
    seen = [one]
    for update in updates:
        documents.update_one({"_id": one["_id"]}, update)
        seen += documents.find()
    found = read_history(db.client, db.name, "documents")
    assert [change.after for change in found] == seen
    assert [change.before for change in found] == [None, *seen[:-1]]
