"""What the claimer knows from its looks, and decides by that: announcements, overlapping looks, lost races."""

from __future__ import annotations

import pytest

from trio_monque.engine.demand import Demand
from trio_monque.engine.look_ledger import (
    JUST_NOW,
    MOST_FRUITLESS,
    MOST_FRUITLESS_WITHOUT_POLLS,
    UNSETTLED_AT_LEAST,
    UNSETTLED_PER_SLOT,
    WORTH_HALVING,
    Look,
    LookLedger,
    is_settler_behind,
    share_of,
    took_all,
)

DEMAND = Demand(total=3, groups={"a": 2, "b": 2})


def answer(ledger: LookLedger, look: Look, got: int = 0, *, more: bool = False, now: float = 0.0) -> None:
    ledger.looked(look, DEMAND, got, more=more, took_all=not more and got < DEMAND.total, now=now)


def look_alone(ledger: LookLedger, got: int = 0, *, more: bool = False) -> None:
    look, number = ledger.begin(), ledger.send()
    answer(ledger, look, got, more=more)
    ledger.answered(number)


def test_look_covers_the_announcements_before_it() -> None:
    ledger = LookLedger()
    ledger.announce()
    ledger.announce()
    assert ledger.must_look
    look_alone(ledger)
    assert not ledger.must_look


def test_look_beside_another_claim_covers_none() -> None:
    ledger = LookLedger()
    first = ledger.send()
    ledger.announce()
    ledger.begin()
    second = ledger.send()
    ledger.answered(first)
    ledger.answered(second)
    assert ledger.must_look


def test_announcement_during_a_look_needs_another_one() -> None:
    ledger = LookLedger()
    look, number = ledger.begin(), ledger.send()
    ledger.announce()
    answer(ledger, look)
    ledger.answered(number)
    assert (ledger.must_look, ledger.is_all_taken) == (True, False)


def test_all_is_taken_after_a_look_that_left_nothing_until_something_is_announced() -> None:
    ledger = LookLedger()
    look_alone(ledger, 2)
    assert ledger.is_all_taken
    ledger.announce()
    assert not ledger.is_all_taken


@pytest.mark.parametrize(("got", "more"), [(3, False), (1, True)])
def test_look_that_left_something_shows_that_not_all_is_taken(got: int, more: bool) -> None:
    ledger = LookLedger()
    look_alone(ledger)
    look_alone(ledger, got, more=more)
    assert (ledger.is_all_taken, ledger.was_full) == (False, got == 3)


def test_older_look_does_not_take_back_that_another_left_something_behind() -> None:
    ledger = LookLedger()
    older, newer = ledger.begin(), ledger.begin()
    answer(ledger, newer, 1, more=True)
    answer(ledger, older)
    assert not ledger.is_all_taken
    answer(ledger, ledger.begin())
    assert ledger.is_all_taken


def test_older_look_that_left_something_behind_counts_although_a_newer_one_took_all() -> None:
    ledger = LookLedger()
    older = ledger.begin()
    ledger.announce()
    answer(ledger, ledger.begin())
    assert ledger.is_all_taken
    answer(ledger, older, 1, more=True)
    assert not ledger.is_all_taken


def test_is_behind_for_a_moment_after_a_look_that_left_something() -> None:
    ledger = LookLedger()
    assert not ledger.is_behind(0.0)
    answer(ledger, ledger.begin(), 3, now=10.0)
    assert ledger.is_behind(10.0)
    assert not ledger.is_behind(10.0 + JUST_NOW)
    answer(ledger, ledger.begin(), 2, now=10.1)
    assert not ledger.is_behind(10.1)


def test_is_not_behind_while_a_group_without_items_has_free_slots() -> None:
    ledger = LookLedger()
    ledger.looked(ledger.begin(), DEMAND, 3, more=False, took_all=False, now=10.0, exhausted={"b"})
    assert not ledger.is_behind(10.0)


def test_full_look_left_some_only_for_groups_that_may_have_more() -> None:
    ledger = LookLedger()

    def look(got: int, exhausted: set[str]) -> None:
        ledger.looked(ledger.begin(), DEMAND, got, more=False, took_all=False, now=0.0, exhausted=exhausted)

    look(3, {"b"})
    assert [ledger.left_some_for(Demand(1, dict.fromkeys(groups, 1))) for groups in ("a", "b", "ab", "")] == [
        True,
        False,
        True,
        False,
    ]
    look(2, set())
    assert not ledger.left_some_for(DEMAND)


@pytest.mark.parametrize(("has_polls", "most"), [(True, MOST_FRUITLESS), (False, MOST_FRUITLESS_WITHOUT_POLLS)])
def test_gives_up_after_too_many_lost_races_in_a_row_and_then_counts_anew(has_polls: bool, most: int) -> None:
    ledger = LookLedger(has_polls=has_polls)
    for _ in range(2):
        for _ in range(most - 1):
            look_alone(ledger, more=True)
            assert not ledger.gives_up()
        look_alone(ledger, more=True)
        assert ledger.gives_up()


@pytest.mark.parametrize(("got", "more"), [(0, False), (1, True)])
def test_look_that_lost_no_race_ends_the_row(got: int, more: bool) -> None:
    ledger = LookLedger()
    for _ in range(MOST_FRUITLESS - 1):
        look_alone(ledger, more=True)
    look_alone(ledger, got, more=more)
    look_alone(ledger, more=True)
    assert not ledger.gives_up()


def test_claims_in_flight_are_known_by_their_numbers() -> None:
    ledger = LookLedger()
    first, second = ledger.send(), ledger.send()
    assert (first, second, ledger.claims_sent) == (1, 2, 2)
    ledger.answered(first)
    assert (ledger.is_claiming, ledger.is_any_in_flight(first), ledger.is_any_in_flight(second)) == (True, False, True)
    ledger.answered(second)
    assert (ledger.is_claiming, ledger.is_any_in_flight(second)) == (False, False)


@pytest.mark.parametrize(
    ("taken", "expected"),
    [("", True), ("ab", True), ("aa", False), ("abb", False)],
    ids=["nothing was due", "fewer than could start", "as many of a group as could start", "as many as could start"],
)
def test_took_all_if_each_group_had_less_than_could_start(taken: str, expected: bool) -> None:
    assert took_all(DEMAND, {"a", "b"}, taken, more=False) is expected


def test_look_that_filled_all_slots_did_not_take_all_although_each_group_had_less_than_could_start() -> None:
    assert not took_all(Demand(total=2, groups={"a": 2, "b": 2}), {"a", "b"}, "ab", more=False)


def test_look_that_may_have_missed_something_did_not_take_all() -> None:
    assert not took_all(DEMAND, {"a", "b"}, "a", more=True)
    assert not took_all(DEMAND, {"a", "b", "c"}, "a", more=False)
    assert not took_all(Demand(total=3, groups={"a": 2}, suspects=0), {"a"}, "a", more=False)


def test_two_claims_share_many_slots_and_few_are_not_halved() -> None:
    assert [share_of(1), share_of(WORTH_HALVING - 1)] == [1, WORTH_HALVING - 1]
    assert [share_of(WORTH_HALVING), share_of(WORTH_HALVING + 1)] == [WORTH_HALVING // 2, WORTH_HALVING // 2 + 1]


def test_settler_is_behind_when_too_many_ended_runs_wait_for_it() -> None:
    most = 10 * UNSETTLED_PER_SLOT + UNSETTLED_AT_LEAST
    assert not is_settler_behind(held=most + 7, running=7, capacity=10)
    assert is_settler_behind(held=most + 8, running=7, capacity=10)
