"""A nursery whose parent is a program keeps its promises in every order of steps; and each rule taken out breaks one.

A normal run explores the smaller games; all of them are explored with MONQUE_TEST_THOROUGH=1 in the environment.
"""

from __future__ import annotations

import pytest

from .nursery_invariants import Invariant
from .nursery_program_model import SHOWN_IN, SMALL, ProgramModel, program_setting
from .nursery_proofs import games, show_that_nothing_breaks, show_the_harm
from .nursery_rules import OF_PROGRAMS, Rule

MOST_STATES = 1_000_000
MOST_STATES_TO_HARM = 30_000

ALWAYS = ("a child fails", "late inserts and operators")
LONG = (Rule.NEVER_RETRIED,)

BROKEN_WITHOUT = {
    Rule.JOB_BEFORE_CHILDREN: Invariant.LIVING_IS_NOT_SWEPT,
    Rule.CHILDREN_READ_FIRST: Invariant.LIVING_IS_NOT_SWEPT,
    Rule.GIVEN_UP_AS_OBSERVED: Invariant.RENEWING_IS_NOT_GIVEN_UP,
    Rule.NEVER_RESCUED: Invariant.EVERYTHING_ENDS,
    Rule.NEVER_RETRIED: Invariant.EVERYTHING_ENDS,
    Rule.FENCED_END: Invariant.RETURN_MEANS_HELD,
    Rule.SWEEPER: Invariant.ORPHANS_END,
    Rule.REPEATED_PASS: Invariant.NOTHING_OUTLIVES_BLOCK,
    Rule.TOMBSTONE: Invariant.NOTHING_OUTLIVES_BLOCK,
}


@pytest.mark.parametrize("name", games(SMALL, ALWAYS))
@pytest.mark.timeout(600)
def test_no_order_of_steps_breaks_an_invariant(name: str) -> None:
    show_that_nothing_breaks(ProgramModel(SMALL[name]), MOST_STATES)


@pytest.mark.parametrize(
    "rule", [pytest.param(rule, marks=pytest.mark.full if rule in LONG else (), id=rule.name) for rule in SHOWN_IN]
)
def test_rule_taken_out_does_harm(rule: Rule) -> None:
    model = ProgramModel(program_setting(OF_PROGRAMS - {rule}, **SHOWN_IN[rule]))
    show_the_harm(model, rule, BROKEN_WITHOUT[rule], MOST_STATES_TO_HARM)


def test_each_rule_is_taken_out() -> None:
    assert set(SHOWN_IN) == OF_PROGRAMS
