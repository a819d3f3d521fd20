"""The parent's document: how it is claimed, opened, given up and settled, and when its scope is cleared.

Every function is one conditional write by the holder of a claim, by an instance that rescues, or by a Node peer. What
becomes of the scope at each end of a run is decided here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Iterator

from .nursery_invariants import Harm, Invariant
from .nursery_rules import Rule
from .nursery_search import Kind, Step
from .nursery_setting import Setting, has_room
from .nursery_state import (
    ASKED,
    BLOCK_FAILED,
    CANCELLED,
    CHILDREN,
    COMPLETED,
    FAILED,
    HAS_RESULTS,
    MOST_CLAIMS,
    OUTLASTED,
    PENDING,
    PROCESSING,
    RETURNS,
    SHUT_DOWN,
    Parent,
    Run,
    State,
)

Steps = Iterator[Step[State]]


def scope_of(parent: Parent, setting: Setting) -> int:
    """The scope that counts now; 0 if there is none."""
    is_for_one = setting.recurring and setting.has(Rule.SCOPE_FOR_OCCURRENCE)
    return 0 if is_for_one and parent.scope_for != parent.occurrence else parent.scope


def cleared(parent: Parent, setting: Setting, *rules: Rule) -> Parent:
    """Without its scope, if these rules ask for it."""
    if all(setting.has(rule) for rule in (Rule.SCOPE_ENDS_WITH_JOB, *rules)):
        return parent._replace(scope=0, scope_for=0, scope_try=0, has_failed=False)
    return parent


def _begins(parent: Parent) -> Parent:
    """What is counted within one occurrence, and one data, begins anew."""
    return parent._replace(tries=0, deaths=0, hard_deaths=0, went_on="", in_vain=False)


# --- Claims and deaths ---


def claimed(state: State, setting: Setting) -> Steps:
    """The fleet runs it, or a Node peer does, and those that died with it are found."""
    parent = state.parent
    if parent.status == PENDING and not setting.is_program:
        if parent.attempts < MOST_CLAIMS and has_room(state, setting):
            scope = scope_of(parent, setting)
            run = Run(parent.attempts + 1, scope=scope)
            if scope:
                run = run._replace(scope_try=parent.scope_try, knows_failed=parent.has_failed)
            taken = parent._replace(status=PROCESSING, attempts=run.epoch, is_asked=False)
            yield Step(f"run {run.epoch} is claimed", state._replace(parent=taken, runs=(*state.runs, run)))
        is_left = parent.occurrence < setting.max_occurrences
        if setting.recurring and is_left and (paid := state.paid("node_parent")):
            following = parent._replace(occurrence=parent.occurrence + 1, tries=0, went_on="")
            yield Step("Node runs an occurrence of the parent", paid._replace(parent=following), Kind.FAULT)
    if parent.status == PROCESSING and not any(run.epoch == parent.attempts for run in state.runs):
        yield Step("the parent's claim is found dead", state._replace(parent=rescued(parent, setting)))


def rescued(parent: Parent, setting: Setting) -> Parent:
    """After the death of a run, or of its claim."""
    if parent.is_asked:
        return parent._replace(status=CANCELLED, is_asked=False, again=False)
    if setting.is_program:
        return parent._replace(status=FAILED)
    if parent.deaths < setting.max_deaths:
        deaths, hard_deaths = parent.deaths + 1, parent.hard_deaths + 1
        return parent._replace(status=PENDING, deaths=deaths, hard_deaths=hard_deaths)
    if parent.hard_deaths < setting.max_deaths:
        raise Harm(Invariant.WAITING_COSTS_NOTHING)
    return _once_more(parent, setting) if parent.again else parent._replace(status=FAILED)


def released(parent: Parent) -> Parent:
    """By a shutdown, or as its renewals end."""
    return parent._replace(status=CANCELLED if parent.is_asked else PENDING, is_asked=False)


# --- What a run writes ---


def opened(state: State, run: Run, setting: Setting) -> tuple[State, Run] | None:
    """The parent's scope and try; None if the run does not hold the parent any more."""
    holds = state.holds(run)
    if run.scope and run.scope_try:
        return state, run
    if run.scope:
        if not holds:
            return None
        begun = state._replace(parent=state.parent._replace(scope_try=run.epoch))
        return begun, run._replace(scope_try=run.epoch)
    if not holds and setting.has(Rule.FENCED_SCOPE):
        return None
    scope = len(state.children) // CHILDREN + 1
    parent = state.parent._replace(scope=scope, scope_for=state.parent.occurrence, scope_try=run.epoch)
    return state._replace(parent=parent._replace(has_failed=False)), run._replace(
        scope=scope, scope_try=run.epoch, has_opened=True
    )


def failure_recorded(state: State, run: Run) -> State | None:
    """Before anything is made of it; None if the run does not hold the parent any more."""
    return state._replace(parent=state.parent._replace(has_failed=True)) if state.holds(run) else None


def come_to_wait(state: State, run: Run, setting: Setting) -> State:
    """It begins to count its deaths anew."""
    if not state.holds(run):
        return state
    deaths = 0 if setting.has(Rule.WAIT_FORGETS_DEATHS) else state.parent.deaths
    return state._replace(parent=state.parent._replace(deaths=deaths, hard_deaths=0))


def committed(state: State, run: Run, setting: Setting) -> State:
    """By a transaction that the handler makes; the run is over."""
    if setting.is_strict and state.lives(run.scope):
        raise Harm(Invariant.COMPLETED_WITHOUT_LIVE_CHILD)
    return state._replace(parent=cleared(state.parent._replace(status=COMPLETED), setting))


def settled(state: State, run: Run, setting: Setting) -> Step[State]:
    """The end of a run that holds the parent, as the handler or its block had it."""
    parent, why = state.parent, run.why
    if setting.is_strict and not run.is_cut and state.lives(run.scope):
        completes = why in (HAS_RESULTS, RETURNS)
        raise Harm(Invariant.COMPLETED_WITHOUT_LIVE_CHILD if completes else Invariant.NOTHING_OUTLIVES_BLOCK)
    text, after = _meant(parent, why, setting)
    return Step(f"run {run.epoch} ends: {text}", state._replace(parent=after))


def _meant(parent: Parent, why: str, setting: Setting) -> tuple[str, Parent]:
    goes_on = setting.recurring and parent.occurrence < setting.max_occurrences
    is_final = not parent.again and not goes_on
    if why in (HAS_RESULTS, RETURNS) and (is_final or not parent.is_asked):
        if parent.again:
            return "completed, and runs with other data", _once_more(parent, setting)
        done = cleared(_begins(parent)._replace(is_asked=False), setting)
        if goes_on:
            return "occurrence completed", done._replace(status=PENDING, occurrence=parent.occurrence + 1)
        return "completed", done._replace(status=COMPLETED)
    if parent.is_asked or why == ASKED:
        return "cancelled", parent._replace(status=CANCELLED, is_asked=False, again=False)
    if why == SHUT_DOWN:
        return "released", parent._replace(status=PENDING)
    return _meant_by_a_failure(parent, why, setting, goes_on=goes_on)


def _meant_by_a_failure(parent: Parent, why: str, setting: Setting, *, goes_on: bool) -> tuple[str, Parent]:
    if why == OUTLASTED:
        raise Harm(Invariant.WAITING_COSTS_NOTHING)
    is_in_vain = why == BLOCK_FAILED
    is_tried = not setting.is_program and not (is_in_vain and setting.has(Rule.NOT_TRIED_IN_VAIN))
    if is_tried and parent.tries < setting.max_tries:
        again = parent._replace(tries=parent.tries + 1, deaths=0, hard_deaths=0, in_vain=is_in_vain)
        return "will be tried again", again._replace(status=PENDING)
    if parent.again:
        return "failed, and runs with other data", _once_more(parent, setting)
    if goes_on:
        following = cleared(_begins(parent), setting)._replace(status=PENDING, occurrence=parent.occurrence + 1)
        return "occurrence given up", following
    return "failed", parent._replace(status=FAILED)


def _once_more(parent: Parent, setting: Setting) -> Parent:
    """It takes the data that were left in it while it ran."""
    anew = _begins(parent)._replace(status=PENDING, again=False, is_asked=False, occurrence=parent.occurrence + 1)
    return cleared(anew, setting, Rule.AGAIN_CLEARS)
