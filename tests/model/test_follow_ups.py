"""Exactly one follow-up, in any order of steps, kills and late messages; and what each rule closes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import pytest

from trio_monque.jobs.follow_ups import FateOfParked, fate_of_parked

from . import follow_ups
from .follow_ups import CLEAR, RULES, Model, State

CONFIGURATIONS: Final[Mapping[str, tuple[int, int, int, int]]] = {
    "two pay": (2, 0, 1, 0),
    "one pays, one tidies up": (1, 1, 1, 0),
    "two pay, one tidies up": (2, 1, 2, 0),
    "a retry by hand": (2, 0, 2, 1),
    "all of it": (2, 1, 1, 1),
}
"""How many pay, how many tidy up, how many of these are killed, and how often the job is retried by hand."""

SELDOM: Final[Mapping[str, Any]] = {"two pay": (), "one pays, one tidies up": (), "all of it": pytest.mark.thorough}

# Where the harm of each rule shows first.
SHOWN_IN = {
    "the choice asks for the number of claims": "a retry by hand",
    "what may be chosen stays": "one pays, one tidies up",
}


def harm_in(model: Model, start: State) -> str | None:
    """The first harm in any order of steps; None if there is none. Prints how many states there are."""
    seen = {start}
    todo = [start]
    while todo:
        state = todo.pop()
        if not state.is_unharmed:
            return f"two follow-ups of one end: {state}"
        if harm := _harm_after(model, state):
            return harm
        for after in model.next_states(state):
            after = _plain(after)
            if after not in seen:
                seen.add(after)
                todo.append(after)
    print(f"{len(seen)} states")  # noqa: T201
    return None


def _harm_after(model: Model, state: State) -> str | None:
    """What is wrong if everything that lives is killed here, and one that is not killed looks after it."""
    swept = model.swept(state)
    last = next((end for end in (2, 1) if swept.runs[end]), 1) if swept.parent is None else swept.parent[1]
    if swept.runs[last] != 1:
        return f"{swept.runs[last]} follow-ups of end {last}: {state}, then {swept}"
    if any(there is not None and there[1] == "parked" for there in swept.follow):
        return f"a parked job is left: {state}, then {swept}"
    if swept.parent is not None and swept.parent[2] != CLEAR:
        return f"the job still owes: {state}, then {swept}"
    return None


def _plain(state: State) -> State:
    """The same state, with the messages that have arrived at the end left out: fewer states are equal otherwise."""
    sent = state.sent
    while sent and sent[-1] is None:
        sent = sent[:-1]
    return replace(state, sent=sent)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=SELDOM.get(name, pytest.mark.full)) for name in CONFIGURATIONS]
)
def test_one_follow_up_in_every_order(name: str) -> None:
    payers, tidiers, kills, retries = CONFIGURATIONS[name]
    model = Model(frozenset(RULES), retries)
    assert harm_in(model, model.start(payers, tidiers, kills)) is None


@pytest.mark.parametrize("rule", RULES)
def test_rule_taken_out_does_harm(rule: str) -> None:
    payers, tidiers, kills, retries = CONFIGURATIONS[SHOWN_IN.get(rule, "two pay")]
    model = Model(frozenset(RULES) - {rule}, retries)
    assert harm_in(model, model.start(payers, tidiers, kills)) is not None


@pytest.mark.full
@pytest.mark.parametrize("instead", FateOfParked)
@pytest.mark.parametrize("right", FateOfParked)
def test_any_other_fate_of_a_held_job_does_harm(
    monkeypatch: pytest.MonkeyPatch, right: FateOfParked, instead: FateOfParked
) -> None:
    def changed(*arguments: Any) -> FateOfParked:
        fate = fate_of_parked(*arguments)
        return instead if fate is right else fate

    monkeypatch.setattr(follow_ups, "fate_of_parked", changed)
    model = Model(frozenset(RULES), retries=1)
    is_harmful = right is not instead and not (right is FateOfParked.RELEASE and instead is FateOfParked.KEEP)
    # A chosen job that is kept is released by the next look at the parents, which has its id.
    payers, tidiers, kills, _ = CONFIGURATIONS["one pays, one tidies up"]
    assert (harm_in(model, model.start(payers, tidiers, kills)) is not None) == is_harmful
