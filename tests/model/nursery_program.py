"""What a program does that opens a nursery: its job first, then its children, renewals, passes, and its block's end.

It is killed, or frozen for longer than its lease and thawed. Thawed, it goes on with what it has in memory, until a
renewal or its last write finds that its job is gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .nursery_invariants import Harm, Invariant
from .nursery_program_state import (
    ALIVE,
    CANCELLING,
    DEAD,
    FROZEN,
    MOST_BEATS,
    OPENING,
    OPENING_LATE,
    OUT,
    STARTING,
    WAITING,
    ProgramChild,
    ProgramJob,
    ProgramSetting,
    World,
)
from .nursery_rules import Rule
from .nursery_search import Kind, Step
from .nursery_state import ABSENT, CANCELLED, CHILDREN, COMPLETED, DELETED, FAILED, PENDING, PROCESSING

Steps = Iterator[Step[World]]


def program(world: World, setting: ProgramSetting) -> Steps:
    """All that it may do next, and what befalls it."""
    health = world.program.health
    if health in (ALIVE, FROZEN) and (paid := world.paid("kills")):
        yield _to("is killed", paid, Kind.FAULT, health=DEAD)
    if health == FROZEN:
        yield _to("thaws", world, health=ALIVE)
    if health != ALIVE:
        return
    if paid := world.paid("freezes"):
        yield _to("is frozen", paid, Kind.FAULT, health=FROZEN)
    phase = world.program.phase
    if phase in (OPENING, OPENING_LATE):
        yield from _opens(world, setting)
    elif phase == CANCELLING:
        yield from _cancels(world, setting)
    else:
        yield from _looks_at_its_job(world)
        if paid := world.paid("errors"):
            yield _to("raises", paid, Kind.FAULT, phase=CANCELLING, why="raised")
        yield from _starts(world) if phase == STARTING else _waits(world, setting)


def _to(text: str, world: World, kind: Kind = Kind.OURS, **changes: Any) -> Step[World]:
    return Step(f"the program {text}", world._replace(program=world.program._replace(**changes)), kind)


def one_pass(world: World, by: str) -> Steps:
    """What is left of a pass to do, one step a child."""
    for number, child in enumerate(world.children):
        marked = child._replace(cancelled_by=by)
        if child.status == PENDING:
            after = world.with_child(number, marked._replace(status=CANCELLED))
            yield Step(f"{by} cancels child {number}", after)
        elif child.status == PROCESSING and not child.is_asked:
            after = world.with_child(number, marked._replace(is_asked=True))
            yield Step(f"{by} asks child {number} to end", after)


def _opens(world: World, setting: ProgramSetting) -> Steps:
    inserted = world._replace(job=ProgramJob(PROCESSING))
    yield _to("inserts its job", inserted, phase=STARTING)
    if world.program.phase == OPENING and not setting.has(Rule.JOB_BEFORE_CHILDREN):
        started = world.with_child(0, ProgramChild(PENDING))
        yield _to("starts child 0 before its job is there", started, phase=OPENING_LATE, started=1)


def _looks_at_its_job(world: World) -> Steps:
    job = world.job
    if job.status != PROCESSING:
        yield _to("finds its job lost", world, has_lost=True, phase=CANCELLING, why="lost")
        return
    if job.beat < MOST_BEATS:
        yield _to("renews its job", world._replace(job=job._replace(beat=job.beat + 1)))
    if job.is_asked:
        yield _to("is asked to end", world, phase=CANCELLING, why="asked")


def _starts(world: World) -> Steps:
    started = world.program.started
    number = started.bit_length()  # In their order.
    if number < CHILDREN:
        if world.children[number].status == ABSENT:
            inserted = world.with_child(number, ProgramChild(PENDING))
            yield _to(f"starts child {number}", inserted, started=started | 1 << number)
        if paid := world.paid("late"):
            late = paid._replace(sent=paid.sent | {number})
            text = f"starts child {number}, and gets no answer"
            yield _to(text, late, Kind.FAULT, phase=CANCELLING, why="raised", unanswered=1 << number)
    yield _to("has started its children", world, phase=WAITING)


def _waits(world: World, setting: ProgramSetting) -> Steps:
    mine = [child for number, child in enumerate(world.children) if world.program.started & 1 << number]
    if any(child.status in (FAILED, CANCELLED) for child in mine):
        yield _to("sees a failure", world, phase=CANCELLING, why="failed")
    elif all(child.status == COMPLETED for child in mine):
        holds = world.job.status == PROCESSING
        if not holds and setting.has(Rule.FENCED_END):
            return  # It finds its job lost.
        if not holds and any(child.cancelled_by == "a reaper" for child in mine):
            raise Harm(Invariant.RETURN_MEANS_HELD)
        ended = world._replace(job=world.job._replace(status=DELETED))
        yield _to("deletes its job, and returns", ended, health=OUT)


def _cancels(world: World, setting: ProgramSetting) -> Steps:
    """Passes, until nothing lives."""
    unanswered = world.program.unanswered
    if unanswered and setting.has(Rule.TOMBSTONE):
        number = unanswered.bit_length() - 1
        tombstone = ProgramChild(CANCELLED, cancelled_by="the program")
        is_there = world.children[number].status != ABSENT
        after = world if is_there else world.with_child(number, tombstone)
        yield _to(f"makes sure of a tombstone for child {number}", after, unanswered=0)
        return
    passing = list(one_pass(world, "the program"))
    yield from passing
    if not world.lives or (not passing and not setting.has(Rule.REPEATED_PASS)):
        if world.lives:
            raise Harm(Invariant.NOTHING_OUTLIVES_BLOCK)
        holds = world.job.status == PROCESSING
        ended = world._replace(job=world.job._replace(status=DELETED)) if holds else world
        yield _to("deletes its job, and raises", ended, health=OUT)
    if paid := world.paid("cuts"):
        yield _to("waits no longer", paid, Kind.FAULT, health=OUT, is_cut=True)
