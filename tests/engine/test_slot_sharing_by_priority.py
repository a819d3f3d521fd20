"""Who gets a slot where there are too few: by priority, and in turn. Pure."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from trio_monque.engine.slot_sharing_by_priority import Turns, suspect_alone


def group(candidate: str) -> str:
    return candidate[0]


def test_all_that_fit_are_taken_in_their_order() -> None:
    assert Turns().share(["a1", "b1", "a2"], 3, group) == ["a1", "b1", "a2"]


def test_groups_take_turns_where_slots_are_scarce() -> None:
    backlog = [f"a{number}" for number in range(10)] + ["b0", "b1", "c0"]
    assert Turns().share(backlog, 6, group) == ["a0", "b0", "c0", "a1", "b1", "a2"]


def test_with_one_slot_each_group_has_its_turn() -> None:
    backlog = ["a0", "a1", "b0", "b1", "c0", "c1"]
    turns = Turns()
    served = [group(turns.share(backlog, 1, group)[0]) for _ in range(30)]
    assert served == ["a", "b", "c"] * 10


def test_group_that_comes_late_has_its_turn_within_a_round() -> None:
    turns, others = Turns(), ["a0", "b0", "c0"]
    for _ in range(7):
        turns.share(others, 1, group)
    served = [group(turns.share(["0late", *others], 1, group)[0]) for _ in range(4)]
    assert sorted(served) == ["0", "a", "b", "c"]


def test_group_that_waits_for_nothing_gains_nothing() -> None:
    turns = Turns()
    for _ in range(100):
        turns.share(["a0", "b0"], 1, group)
    # It had its turns while the others waited, and was gone: it does not come back with a claim on many.
    turns.share(["z0", "a0"], 1, group)
    served = Counter(group(turns.share(["a0", "b0", "z0"], 1, group)[0]) for _ in range(30))
    assert served == {"a": 10, "b": 10, "z": 10}


@pytest.mark.parametrize("ahead", [1, 5, 20])
@pytest.mark.parametrize("slots", [1, 3])
def test_lower_priority_waits_for_as_many_more_slots_as_its_priority_is_lower(ahead: int, slots: int) -> None:
    turns, backlog = Turns(), [f"{name}{number}" for name in "xyl" for number in range(10)]
    served: list[str] = []
    while len(served) < 600:
        served += [
            group(one) for one in turns.share(backlog, slots, group, {"x": ahead, "y": ahead, "l": 0}.__getitem__)
        ]
    places = [place for place, name in enumerate(served) if name == "l"]
    waits = {later - place for place, later in pairwise([-1, *places])}
    assert max(waits) <= ahead + 3
    assert min(waits) >= ahead
    assert abs(served.count("x") - served.count("y")) <= 1


def test_great_priority_starts_first_where_all_wait_alike() -> None:
    assert Turns().share(["a0", "b0", "a1", "b1"], 3, group, {"a": 0, "b": 2}.__getitem__) == ["b0", "b1", "a0"]


def test_suspect_is_chosen_alone_and_the_one_that_is_due_for_longest() -> None:
    def alone(chosen: str, candidates: str) -> str:
        return "".join(suspect_alone(list(chosen), list(candidates), str.isupper, due))

    def due(candidate: str) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) - timedelta(ord(candidate))

    assert alone("aSbT", "aSbT") == "T"
    # Of another group, too: where a suspect may run, it is the turn of the first of them all.
    assert alone("aS", "aSbT") == "T"
    # But it takes no turn of an innocent.
    assert alone("ab", "abT") == "ab"
    assert alone("", "") == ""
