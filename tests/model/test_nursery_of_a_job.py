"""A nursery whose parent is a job keeps its promises in every order of steps; and each rule taken out breaks one.

A normal run explores the smaller games. With MONQUE_TEST_THOROUGH=1 in the environment it is all of them, and larger
ones, in which more faults meet. How many states there are is printed (pytest -rP shows it).
"""

from __future__ import annotations

import pytest

from .nursery_games import (
    ALWAYS,
    LARGER,
    MOST_STATES,
    MOST_STATES_TO_HARM,
    SHOWN_IN,
    SMALL,
    setting,
)
from .nursery_invariants import Invariant
from .nursery_job_model import JobModel
from .nursery_proofs import games, show_that_nothing_breaks, show_the_harm
from .nursery_rules import ALL, OF_PROGRAMS, Rule

BROKEN_WITHOUT = {
    Rule.FENCED_SCOPE: Invariant.LIVING_IS_NOT_SWEPT,
    Rule.SCOPE_ENDS_WITH_JOB: Invariant.OWN_RESULTS,
    Rule.SCOPE_FOR_OCCURRENCE: Invariant.OWN_RESULTS,
    Rule.REPLACE_CLEARS: Invariant.OWN_RESULTS,
    Rule.AGAIN_CLEARS: Invariant.OWN_RESULTS,
    Rule.NO_TRANSACTION_INSIDE: Invariant.COMPLETED_WITHOUT_LIVE_CHILD,
    Rule.TRANSACTION_CLOSES: Invariant.COMPLETED_WITHOUT_LIVE_CHILD,
    Rule.KEEP_COMPLETED: Invariant.COMPLETED_ONCE,
    Rule.TOMBSTONE: Invariant.NOTHING_OUTLIVES_BLOCK,
    Rule.DELETED_LEAVES_TOMBSTONE: Invariant.NOTHING_STARTED_BEHIND,
    Rule.GUARDED_START: Invariant.COMPLETED_ONCE,
    Rule.REPEATED_PASS: Invariant.NOTHING_OUTLIVES_BLOCK,
    Rule.FAILURE_IS_RECORDED: Invariant.NOTHING_STARTED_BEHIND,
    Rule.KEEP_FAILED: Invariant.OPERATOR_IS_OBEYED,
    Rule.LOST_LEAVES: Invariant.MOVING_CANCELS_NOTHING,
    Rule.HEAL: Invariant.STALE_RUNS_DO_NO_HARM,
    Rule.NEWER_WINS: Invariant.ENDS_ARE_OF_CHILDREN,
    Rule.NEW_TRY: Invariant.RETRY_BEGINS_ANEW,
    Rule.NOT_TRIED_IN_VAIN: Invariant.NO_ATTEMPT_IN_VAIN,
    Rule.CHILD_RETRY_REFUSED: Invariant.NOTHING_STARTED_BEHIND,
    Rule.HANDS_UNMARK: Invariant.OPERATOR_IS_OBEYED,
    Rule.STRAGGLERS: Invariant.COMPLETED_WITHOUT_LIVE_CHILD,
    Rule.RUN_CLOSES: Invariant.COMPLETED_WITHOUT_LIVE_CHILD,
    Rule.WAIT_FREES_SLOT: Invariant.EVERYTHING_ENDS,
    Rule.WAIT_IS_SETTLED: Invariant.EVERYTHING_ENDS,
    Rule.WAIT_FORGETS_DEATHS: Invariant.WAITING_COSTS_NOTHING,
    Rule.LIMIT_HANDS_OVER: Invariant.WAITING_COSTS_NOTHING,
    Rule.NO_UNIQUE_KEY: Invariant.COMPLETED_ONCE,
    Rule.SWEEPER: Invariant.ORPHANS_END,
    Rule.SWEEPER_COMPARES_SCOPE: Invariant.SCOPES_END,
    Rule.CHILDREN_READ_FIRST: Invariant.LIVING_IS_NOT_SWEPT,
    Rule.SPARE_CHILDREN: Invariant.RESULTS_ARE_KEPT,
    Rule.SPARE_OF_ENDED: Invariant.RESULTS_ARE_KEPT,
}


@pytest.mark.parametrize("name", games(SMALL, ALWAYS))
@pytest.mark.timeout(600)
def test_no_order_of_steps_breaks_an_invariant(name: str) -> None:
    show_that_nothing_breaks(JobModel(SMALL[name]), MOST_STATES)


@pytest.mark.thorough
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGER)
def test_no_order_of_more_faults_breaks_an_invariant(name: str) -> None:
    show_that_nothing_breaks(JobModel(LARGER[name]), MOST_STATES)


@pytest.mark.full
@pytest.mark.parametrize("rule", [pytest.param(rule, id=rule.name) for rule in SHOWN_IN])
def test_rule_taken_out_does_harm(rule: Rule) -> None:
    model = JobModel(setting(ALL - {rule}, **SHOWN_IN[rule]))
    show_the_harm(model, rule, BROKEN_WITHOUT[rule], MOST_STATES_TO_HARM)


def test_each_rule_is_taken_out() -> None:
    of_programs_alone = OF_PROGRAMS - {Rule.SWEEPER, Rule.CHILDREN_READ_FIRST, Rule.REPEATED_PASS, Rule.TOMBSTONE}
    assert set(SHOWN_IN) == set(Rule) - of_programs_alone
