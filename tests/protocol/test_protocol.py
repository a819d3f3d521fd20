"""The protocol keeps its guarantees in every history within the bounds, and each of its rules is needed for that.

`pytest -rP` shows how much was searched, and the shortest history that breaks each rule's guarantee. The normal run
searches small bounds; with MONQUE_TEST_THOROUGH=1 in the environment they are as large as a few minutes allow.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import cache
from typing import Final

import pytest

from tests.support.thoroughly import THOROUGH, one_in

from .checks import harm_in
from .moves import successors
from .mutations import FOUND, REDUNDANT, Mutation
from .rules import Bounds, Rules, Setting
from .search import Found, search
from .state import State, start

# Far more than any of them has: a change that makes them explode fails the test, instead of filling the memory.
MOST_STATES: Final = 4_000_000 if THOROUGH else 400_000

QUICK: Final = {
    "a bit of everything": Bounds(claims=2, faults=1, hands=1, beats=1),
    "a schedule": Bounds(recurring=True, claims=2, faults=0, hands=1, beats=1, max_attempts=2),
    "two faults": Bounds(claims=2, faults=2, hands=0, beats=1),
    "a Node peer": Bounds(claims=1, faults=1, hands=0, beats=1, node=2),
    "three claims in mixed batches": Bounds(claims=3, faults=1, hands=0, beats=0, mixed_batches=True, max_attempts=2),
}

LARGE: Final = {
    "a schedule and two hands": Bounds(recurring=True, claims=2, faults=1, hands=2, beats=0),
    "two faults, with hands": Bounds(claims=2, faults=2, hands=1, beats=1),
    "three claims, two faults": Bounds(claims=3, faults=2, hands=0, beats=1, mixed_batches=True, max_attempts=2),
    "a Node peer, with hands": Bounds(claims=2, faults=1, hands=1, beats=0, node=2),
    "a Node peer and a schedule": Bounds(recurring=True, claims=1, faults=1, hands=1, beats=0, node=2, max_attempts=2),
    "three deaths": Bounds(claims=3, faults=3, hands=0, beats=0),
}

PLAYED: Final = QUICK | LARGE if THOROUGH else QUICK

ONLY_IN_FULL: Final = ("a bit of everything", "a schedule", "two faults", "three claims in mixed batches")
"""The largest of the quick ones: seconds each."""


def played(rules: Rules, bounds: Bounds, sought: str = "") -> Found[State]:
    setting = Setting(rules, bounds)
    found = search([start(bounds)], lambda state: successors(state, setting), harm_in(setting, sought), MOST_STATES)
    sys.stdout.write(f"{found}\n")
    return found


@cache
def played_by_the_rules(bounds: Bounds) -> Found[State]:
    return played(Rules(), bounds)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param(bounds, id=name, marks=pytest.mark.full if name in ONLY_IN_FULL else ())
        for name, bounds in PLAYED.items()
    ],
)
def test_no_history_within_the_bounds_breaks_a_guarantee(bounds: Bounds) -> None:
    assert played_by_the_rules(bounds).harm is None


@pytest.mark.full
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", one_in(6, FOUND), ids=str)
def test_each_rule_taken_out_alone_does_the_harm_it_was_there_to_prevent(mutation: Mutation) -> None:
    found = played(mutation.rules, mutation.bounds, mutation.harm)
    assert found.harm is not None
    # It is the missing rule that did it: under all the rules the same history cannot be, or does no harm, ...
    assert not _does_harm(found.trace, Setting(Rules(), mutation.bounds))
    # ... and no other within the same bounds.
    assert not THOROUGH or played_by_the_rules(mutation.bounds).harm is None


def _does_harm(history: list[tuple[str, State]], setting: Setting) -> bool:
    state, harm_of = start(setting.bounds), harm_in(setting)
    for label, _ in history:
        following = dict(successors(state, setting))
        if label not in following:
            return False
        state = following[label]
    return harm_of(state) is not None


@pytest.mark.thorough
@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutation", REDUNDANT, ids=str)
def test_some_rules_are_redundant_on_their_own(mutation: Mutation) -> None:
    larger = replace(mutation.bounds, claims=2, faults=1) if THOROUGH else mutation.bounds
    assert played(mutation.rules, larger).harm is None, f"needed after all; it was kept because {mutation.harm}"
