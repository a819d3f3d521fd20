"""What is read ahead: how far, for how long, and that nothing is asked for twice. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from trio_monque.engine.prefetch import KEPT_FOR, LEAST_SHARE, READ_AHEAD, READ_AT_LEAST, Prefetch

Item = tuple[str, int]


def window_of(*found: Item, asked: Sequence[str] = (), exhausted: Sequence[str] = ()) -> Prefetch[Item]:
    window: Prefetch[Item] = Prefetch(lambda item: item, lambda item: item[0])
    window.look()
    window.fill(found, {*asked, *(group for group, _ in found)}, exhausted, 0.0)
    return window


def items(group: str, count: int) -> list[Item]:
    return [(group, number) for number in range(count)]


def test_it_serves_while_it_is_fresh_and_fills_what_is_free() -> None:
    window = window_of(*items("a", 30))
    assert window.serves({"a": 10}, 10, 0.09, None)
    assert not window.serves({"a": 10}, 10, KEPT_FOR, None)
    assert not window.serves({"a": 31}, 31, 0.0, None)
    assert not window.serves({"a": 10, "b": 10}, 10, 0.0, None)  # No look has covered b.


def test_prefetched_items_suffice_if_the_queue_is_exhausted() -> None:
    window = window_of(*items("a", 3), exhausted=["a"])
    assert window.serves({"a": 10}, 10, 0.0, None)
    window.ask_for(items("a", 3))
    assert not window.serves({"a": 10}, 10, 0.0, None)  # An empty queue does not answer it: a look must.


def test_no_group_starves_while_others_have_enough() -> None:
    window = window_of(*items("a", 30), *items("b", 1))
    assert window.serves({"a": 10, "b": 10}, 10, 0.0, None)
    window.ask_for([("b", 0)])
    assert not window.serves({"a": 10, "b": 10}, 10, 0.0, None)


def test_group_that_a_look_has_not_reached_waits_for_the_next_look_and_may_have_more() -> None:
    window: Prefetch[Item] = Prefetch(lambda item: item, lambda item: item[0])
    window.look()
    window.fill(items("a", 30), {"a", "b"}, (), 0.0, unread={"b"})
    assert window.serves({"a": 10, "b": 10}, 10, 0.0, None)
    assert window.has_more({"b"})
    assert not window.serves({"b": 10}, 10, 0.0, None)
    window.ask_for(items("a", 25))
    assert not window.serves({"a": 10, "b": 10}, 10, 0.0, None)


def test_what_is_not_accepted_is_skipped_and_does_not_count() -> None:
    window = window_of(*items("a", 30))

    def even(item: Item) -> bool:
        return item[1] % 2 == 0

    assert window.candidates({"a": 3}, even) == [("a", 0), ("a", 2), ("a", 4)]
    assert window.serves({"a": 15}, 15, 0.0, even)
    assert not window.serves({"a": 16}, 16, 0.0, even)


def test_candidates_come_in_their_order_and_what_is_asked_for_is_nobodys() -> None:
    window = window_of(*items("a", 5), *items("b", 5))
    wanted = {"b": 2, "a": 2}
    assert window.candidates(wanted, None) == [("b", 0), ("b", 1), ("a", 0), ("a", 1)]
    window.ask_for([("a", 1), ("b", 0)])
    assert window.candidates(wanted, None) == [("b", 1), ("b", 2), ("a", 0), ("a", 2)]


def test_answer_of_a_look_is_without_what_was_asked_for_before_it_or_meanwhile() -> None:
    window = window_of(*items("a", 3))
    window.ask_for([("a", 0)])
    window.look()
    window.ask_for([("a", 1)])
    window.answered(
        [("a", 0), ("a", 1)], {("a", 0), ("a", 1)}, took=0.01
    )  # The look may have been before they were taken.
    window.fill(items("a", 4), ["a"], (), 0.0)
    assert window.candidates({"a": 9}, None) == [("a", 2), ("a", 3)]
    window.look()
    window.fill(items("a", 4), ["a"], (), 0.0)
    assert window.candidates({"a": 9}, None) == items("a", 4)  # Given back, say.


def test_as_many_more_are_read_as_are_asked_for_already() -> None:
    window = window_of(*items("a", 3), *items("b", 3))
    keys = window.ask_for([("a", 0), ("a", 1), ("b", 0)])
    assert window.beside_those_in_flight({"a": 5, "b": 5, "c": 5}) == {"a": 7, "b": 6, "c": 5}
    window.answered([("a", 0), ("a", 1), ("b", 0)], keys, took=0.01)
    assert window.beside_those_in_flight({"a": 5, "b": 5}) == {"a": 5, "b": 5}


def test_what_was_not_looked_for_is_not_taken_for_not_there_and_does_not_wait_for_ever() -> None:
    window: Prefetch[Item] = Prefetch(lambda item: item, lambda item: item[0])
    window.look()
    window.fill(items("a", 9), ["a"], (), 0.0)
    window.look()
    window.fill(items("a", 9), ["a"], ["a"], KEPT_FOR / 2, is_whole=False)
    assert window.serves({"a": 9}, 9, 0.06, None)
    assert not window.serves({"a": 10}, 10, 0.06, None)
    assert not window.serves({"a": 9}, 9, KEPT_FOR, None)
    assert window.serves({"a": 10}, 10, KEPT_FOR, lambda _: True)  # Who wants nothing of that needs no other look.
    window.look()
    window.fill(items("a", 9), ["a"], ["a"], KEPT_FOR)
    assert window.serves({"a": 10}, 10, KEPT_FOR, None)


@pytest.mark.parametrize("capacity", [1, 10, 1000])
def test_it_reads_as_far_as_claims_get_while_it_is_fresh_and_no_further(capacity: int) -> None:
    most = max(READ_AT_LEAST, READ_AHEAD * capacity)

    def reach(used: int, age: float) -> int:
        window = window_of(*items("a", used))
        window.ask_for(items("a", used))
        return window.reach({"a": 1}, 1, capacity, age)["a"]

    assert reach(used=5, age=KEPT_FOR / 2) == 10
    assert reach(used=20, age=10 * KEPT_FOR) == 2
    assert reach(used=0, age=1.0) == 1
    assert reach(used=20, age=1e-9) == most
    assert reach(used=20, age=0.0) == most  # In virtual time, say.


def test_it_reads_as_many_as_whole_claims_take() -> None:
    def reach(used: int, total: int) -> int:
        window = window_of(*items("a", 300))
        window.ask_for(items("a", used))
        return window.reach({"a": 1}, total, 100, KEPT_FOR)["a"]

    assert [reach(used, 100) for used in (250, 199, 100, 99)] == [200, 100, 100, 99]


def test_it_reads_further_only_where_more_was_there_and_shares_that() -> None:
    window = window_of(*items("a", 2), *items("b", 2), *items("c", 1), exhausted=["c"])
    window.ask_for([("a", 0)])
    assert window.reach({"a": 2, "b": 2, "c": 2}, 6, 10, 0.0) == {"a": 198, "b": 198, "c": 2}
    assert window.reach({"c": 2}, 2, 10, 0.0) == {"c": 2}
    assert (window.has_more(["a"]), window.has_more(["c"])) == (True, False)
    window.forget()
    assert window.reach({"a": 2}, 2, 10, 0.0) == {"a": 2}
    assert not window.serves({"a": 1}, 1, 0.0, None)


@pytest.mark.parametrize("seed", range(50))
def test_whatever_overlaps_nothing_is_asked_for_twice_and_nothing_is_forgotten(seed: int) -> None:
    """Two claims and a look at a time; what is refused is due again, and all is taken in the end."""
    chance = random.Random(seed)
    groups = ["a", "b", "c"]
    due = {item for group in groups for item in items(group, chance.randint(0, 40))}
    taken: set[Item] = set()
    window = window_of(asked=groups)
    in_flight: list[list[Item]] = []
    seen: list[Item] | None = None
    for _ in range(2000):
        match chance.choice(["look", "seen", "ask", "answer"]):
            case "look" if seen is None:
                window.look()
                seen = sorted(due - taken)[: chance.randint(1, 60)]
            case "seen" if seen is not None:
                window.fill(seen, groups, (), 0.0)
                seen = None
            case "ask" if len(in_flight) < 2:
                chosen = window.candidates(dict.fromkeys(groups, chance.randint(1, 7)), None)
                chosen = chance.sample(chosen, chance.randint(0, len(chosen)))
                assert not taken.intersection(chosen)
                assert not any(set(chosen).intersection(others) for others in in_flight)
                window.ask_for(chosen)
                in_flight.append(chosen)
            case "answer" if in_flight:
                answered = in_flight.pop(chance.randrange(len(in_flight)))
                taken.update(item for item in answered if chance.random() < 0.9)
                window.answered(answered, set(answered), took=0.01)
    assert taken == due


# --- What a look reads of each group, if there are more groups than slots ---


def of_one_priority(_group: str) -> int:
    return 0


def test_groups_that_want_little_together_are_read_as_they_want() -> None:
    wanted = {"a": 10, "b": 10, "c": 10, "d": 10}
    assert window_of().shares(wanted, 10, of_one_priority) == wanted


def test_many_groups_share_what_is_read_and_get_a_few_at_least() -> None:
    many = dict.fromkeys(map(str, range(64)), 100)
    assert window_of().shares(many, 100, of_one_priority) == dict.fromkeys(many, LEAST_SHARE)
    some = dict.fromkeys("abcdefgh", 100)
    assert window_of().shares(some, 100, of_one_priority) == dict.fromkeys(some, 25)
    assert window_of().shares({**some, "z": 7}, 100, of_one_priority)["z"] == 7  # Its own limit is lower.


def test_groups_that_had_more_share_all_and_those_that_had_nothing_get_one() -> None:
    window = window_of(*items("full", 4), *items("rest", 2), asked="abcdefg", exhausted=[*"abcdefg", "rest"])
    wanted = dict.fromkeys([*"abcdefg", "full", "rest", "new"], 100)
    shares = window.shares(wanted, 100, of_one_priority)
    assert shares == {**dict.fromkeys("abcdefg", 1), "full": 100, "rest": 20, "new": 20}


def test_only_groups_of_one_priority_share() -> None:
    wanted = dict.fromkeys([*"abcdefgh", "first"], 100)
    shares = window_of().shares(wanted, 100, lambda group: 5 if group == "first" else 0)
    assert shares == {**dict.fromkeys("abcdefgh", 25), "first": 100}


def test_group_whose_items_run_here_did_not_have_nothing() -> None:
    window = window_of()
    window.look()
    window.fill(items("runs", 1), ["runs", "none"], ["runs", "none"], 0.0, is_running_here=lambda _: True)
    assert window.shares(dict.fromkeys(["runs", "none", *"abcdefgh"], 100), 100, of_one_priority)["runs"] == 20
