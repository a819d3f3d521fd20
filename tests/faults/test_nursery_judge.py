"""Of each rule of those who judge job nurseries: a forgery that it finds, beside a history that it accepts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import pytest
from bson import Timestamp

from .nursery_witness import ORPHANS_END_WITHIN, Witnessed
from .records import Record
from .tree_judge import Document, wrong_in_trees, wrong_records
from .trees import BELOW, children_of, fails, has_effect, has_failing_block, has_seal, level_of, result_of

Event = dict[str, Any]


def insert(one: str, above: str = "", block: str = "place", *, status: str = "pending", run: int = 1) -> Event:
    """Of a job, or of a child of the job `above`."""
    child = {"scope": f"of {above}", "parent": above, "block": block, "scopeRun": run} if above else {}
    document = {"_id": one, "status": status, "attempts": 0, **child}
    return {"operationType": "insert", "documentKey": {"_id": one}, "fullDocument": document}


def becomes(one: str, status: str, **fields: Any) -> Event:
    changed = {"updatedFields": {"status": status, **fields}}
    return {"operationType": "update", "documentKey": {"_id": one}, "updateDescription": changed}


def claims(one: str, attempts: int = 1) -> Event:
    return becomes(one, "processing", attempts=attempts)


def witness_of(*story: Event, seconds: Sequence[int] = ()) -> Witnessed:
    """Who has seen these events; a list of seconds says when each was, else all were at once."""
    found = Witnessed()
    for event, at in zip(story, seconds or [0] * len(story), strict=True):
        found.take({**event, "clusterTime": Timestamp(at, 1)})
    return found


BEGUN: Final = [insert("root"), claims("root"), insert("twig", "root"), claims("twig"), insert("leaf", "twig")]
GROWN: Final = [*BEGUN, claims("leaf"), becomes("leaf", "completed"), becomes("twig", "completed")]
FAILED: Final = [
    *BEGUN,
    becomes("leaf", "cancelled"),
    becomes("twig", "failed"),
    insert("prune", "root", "undo"),
    claims("prune"),
]


def test_trees_that_are_as_they_should_be_are_accepted() -> None:
    grown = witness_of(
        *GROWN, insert("seal", "root", "ship"), becomes("seal", "completed"), becomes("root", "completed")
    )
    failed = witness_of(*FAILED, becomes("prune", "completed"), becomes("root", "completed"))
    rescued = witness_of(*BEGUN, becomes("twig", "pending"), claims("twig", 2), claims("leaf"))
    assert [one.faults for one in (grown, failed, rescued)] == [[], [], []]
    assert grown.live() == failed.live() == []
    assert grown.completions == {"leaf": 1, "twig": 1, "seal": 1, "root": 1}


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        ([*BEGUN, becomes("twig", "completed")], "completed, and its children"),
        ([*GROWN, becomes("root", "completed"), insert("late", "root")], "which is completed, was started"),
        ([insert("leaf", "nothing")], "which is None, was started"),
        ([*FAILED, claims("twig", 2)], "of a failed block became processing after its handler had gone on"),
        ([*FAILED, insert("late", "root")], "of a failed block became pending after its handler had gone on"),
        ([*BEGUN, insert("prune", "root", "undo")], "came to 'undo', and twig of the block before was processing"),
        ([*BEGUN, insert("seal", "root", "ship")], "came to 'ship', and twig of the block before was processing"),
        (
            [*BEGUN, becomes("leaf", "failed"), becomes("twig", "failed"), insert("seal", "root", "ship")],
            "came to 'ship', and twig of the block before was failed",
        ),
    ],
)
def test_what_must_not_happen_is_found(story: list[Event], fault: str) -> None:
    found = witness_of(*story)
    (line,) = found.faults
    assert fault in line


def test_second_completion_is_counted() -> None:
    assert witness_of(*GROWN, claims("twig", 2), becomes("twig", "completed")).completions["twig"] == 2


def test_job_that_lives_at_the_end_is_found() -> None:
    assert witness_of(*GROWN).live() == ["root"]


LEFT: Final = [*BEGUN, becomes("twig", "cancelled")]
"""The leaf of a cancelled twig still lives: its process died, or its clean-up took too long."""


@pytest.mark.parametrize(
    "story",
    [
        LEFT,
        [*BEGUN, becomes("twig", "failed", attempts=2)],
        # Sent by a run that was frozen, and thawed behind the end of its twig.
        [*BEGUN[:-1], becomes("twig", "cancelled"), insert("leaf", "twig")],
        # All above it ends at last, its own parent never.
        [*BEGUN, becomes("root", "cancelled")],
    ],
)
@pytest.mark.parametrize("lasts", [ORPHANS_END_WITHIN, ORPHANS_END_WITHIN + 1])
def test_orphan_has_to_end_in_time(story: list[Event], lasts: int) -> None:
    found = witness_of(*story, becomes("leaf", "cancelled"), seconds=[0] * len(story) + [lasts])
    late = [line for line in found.faults if "although what is above it was over" in line]
    assert len(late) == (lasts > ORPHANS_END_WITHIN)
    assert found.faults == late
    assert (found.longest_orphan, found.counts["orphans"]) == (lasts, 1)


def test_orphan_of_the_run_that_ended_its_parent_is_a_fault() -> None:
    """Only a run that was frozen may start a child behind the end of its parent: an older one, or a cancelled one."""
    over = [*GROWN, becomes("root", "completed", attempts=2)]
    assert witness_of(*over, insert("late", "root", run=1)).faults == []
    (line,) = witness_of(*over, insert("late", "root", run=2)).faults
    assert "was started" in line


def test_jobs_that_begin_far_below_a_failed_block_are_counted() -> None:
    failed = [*BEGUN, becomes("twig", "cancelled"), insert("prune", "root", "undo")]
    found = witness_of(*failed, claims("leaf"))
    assert found.faults == []
    assert found.counts["begun far below a failed block"] == 1


# --- What is stored of a tree, when it is over ---


def tree(number: int) -> list[dict[str, Any]]:
    """All of its jobs as they may be in the end: in a block that fails, all but what fails was completed before."""
    found: list[dict[str, Any]] = []

    def grow(place: Sequence[int], **more: Any) -> None:
        one = {"_id": "-".join(map(str, place)), "name": level_of(place), "data": place, **more}
        one |= {"status": "failed"} if fails(place) else {"status": "completed", "result": result_of(place)}
        found.append(one)
        if one["name"] not in BELOW:
            return
        for child in children_of(place):
            grow(child, parent=one["_id"], block="place")
        later = ("undo", "prune") if has_failing_block(place) else ("ship", "seal") if has_seal(place) else None
        if later and not fails(place):
            block, name = later
            place_of_it = {"_id": f"{one['_id']}-{name}", "name": name, "data": place, "parent": one["_id"]}
            found.append({**place_of_it, "block": block, "status": "completed"})

    grow([number])
    return found


def fruits_of(documents: Sequence[Document]) -> list[Any]:
    limbs = [one for one in documents if one["name"] in BELOW and one["status"] == "completed"]
    return [one["_id"] for one in limbs if has_effect(one["data"])]


@pytest.mark.parametrize("number", range(4))
def test_tree_as_it_should_be_is_accepted(number: int) -> None:
    documents = tree(number)
    assert len(documents) > 1000
    assert {one["status"] for one in documents} == {"completed", "failed"}
    assert len(fruits_of(documents)) > 20
    assert wrong_in_trees(documents, fruits_of(documents)) == []


@pytest.mark.parametrize(
    ("forged", "change", "fault"),
    [
        ("0", {"status": "failed"}, "root [0] is failed"),
        ("0", {"status": "cancelled"}, "root [0] is cancelled"),
        ("0", {"result": 1}, "root [0] has the result 1 instead of"),
        ("0-0", {"status": "failed"}, "branch [0, 0] is failed instead of completed"),
        ("0-0", {"result": 1}, "branch [0, 0] has the result 1 instead of 0"),
        ("0-0-0", {"status": "completed", "result": 0}, "twig [0, 0, 0] is completed instead of failed"),
        ("0-0-0-0", {"status": "completed", "result": 1}, "leaf [0, 0, 0, 0] is completed instead of failed"),
        ("0-0-prune", {"status": "cancelled"}, "branch [0, 0] has in its later blocks"),
        ("0-0-prune", {"status": "failed"}, "prune [0, 0] is failed"),
        ("0-0-prune", {"block": "ship"}, "branch [0, 0] has in its later blocks"),
        ("0-seal", {"parent": "0-0"}, "root [0] has in its later blocks {} instead of"),
    ],
)
def test_forged_job_is_found(forged: str, change: dict[str, Any], fault: str) -> None:
    documents = tree(0)
    next(one for one in documents if one["_id"] == forged).update(change)
    assert any(fault in line for line in wrong_in_trees(documents, fruits_of(documents)))


@pytest.mark.parametrize("is_missing", [False, True])
def test_cancelled_or_missing_child_of_a_completed_parent_is_found(is_missing: bool) -> None:
    documents = tree(0)
    leaf = next(one for one in documents if one["_id"] == "0-1-0-0")
    if is_missing:
        documents.remove(leaf)
    else:
        leaf["status"] = "cancelled"
    (line,) = wrong_in_trees(documents, fruits_of(documents))
    assert line.startswith("twig [0, 1, 0] has not 10 completed children")


def test_block_that_failed_without_a_failed_child_is_found() -> None:
    documents = tree(0)
    for one in documents:
        if one.get("parent") == "0-0":
            one["status"] = "cancelled"
    assert any("has no failed child" in line for line in wrong_in_trees(documents, fruits_of(documents)))


def test_effect_that_is_missing_or_twice_or_of_a_cancelled_job_is_found() -> None:
    documents = tree(0)
    fruits = fruits_of(documents)
    (missing,) = wrong_in_trees(documents, fruits[1:])
    (twice,) = wrong_in_trees(documents, [*fruits, fruits[0]])
    (other,) = wrong_in_trees(documents, [*fruits, "0-0-0"])
    assert missing.endswith("had 0 effects instead of 1")
    assert twice.endswith("had 2 effects instead of 1")
    assert other.endswith("had 1 effects instead of 0")


def test_later_run_with_another_way_or_another_result_of_a_step_is_found() -> None:
    def run(attempt: int, plan: str, way: str) -> list[Record]:
        return [
            Record("one", "a", attempt, what, 0.0, detail) for what, detail in (("planned", plan), ("went on", way))
        ]

    assert wrong_records([*run(1, "17", "failed"), *run(2, "17", "failed")]) == []
    (other_plan,) = wrong_records([*run(1, "17", "failed"), *run(2, "4", "failed")])
    (other_way,) = wrong_records([*run(1, "17", "failed"), *run(2, "17", "normally")])
    assert "planned" in other_plan
    assert "went on" in other_way
