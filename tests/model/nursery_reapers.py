"""What reapers do about a program's job and its children, and what befalls the children meanwhile.

Every instance has a reaper. It gives up a claim that it has seen unchanged for a lease, and it sweeps: it looks for
live children first, then for their parents.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .nursery_invariants import Harm, Invariant
from .nursery_program import one_pass
from .nursery_program_state import ALIVE, OUT, ProgramChild, ProgramSetting, Reaper, World
from .nursery_rules import Rule
from .nursery_search import Kind, Step
from .nursery_state import ABSENT, CANCELLED, COMPLETED, DELETED, FAILED, PENDING, PROCESSING

Steps = Iterator[Step[World]]

NO_PARENT = (ABSENT, FAILED, DELETED)


def reapers(world: World, setting: ProgramSetting) -> Steps:
    """All that any of them may do next."""
    for at, reaper in enumerate(world.reapers):
        if not reaper.doing:
            yield from _looks(world, at, setting)
            continue
        if paid := world.paid("reaper_deaths"):
            yield Step(f"reaper {at} dies, and another starts", paid.with_reaper(at, Reaper()), Kind.FAULT)
        if reaper.doing == "gives up":
            yield _gives_up(world, at, setting)
        elif reaper.doing == "has seen children":
            is_orphaned = world.job.status in NO_PARENT
            text = "finds no parent of theirs" if is_orphaned else "finds their parent"
            yield _to(world, at, text, doing="sweeps" if is_orphaned else "")
        elif reaper.doing == "has seen no parent":
            yield _to(world, at, "looks for children", doing="sweeps" if world.lives else "")
        else:
            yield from _sweeps(world, at)


def _to(world: World, at: int, text: str, **changes: Any) -> Step[World]:
    return Step(f"reaper {at} {text}", world.with_reaper(at, world.reapers[at]._replace(**changes)))


def _looks(world: World, at: int, setting: ProgramSetting) -> Steps:
    job, reaper = world.job, world.reapers[at]
    if job.status == PROCESSING:
        if reaper.beat != job.beat:
            yield _to(world, at, f"sees beat {job.beat}", beat=job.beat)
        # A program that renews in time cannot be seen unchanged for a lease.
        if reaper.beat >= 0 and world.program.health != ALIVE:
            yield _to(world, at, "has seen nothing new for a lease", doing="gives up")
    if not setting.has(Rule.SWEEPER):
        return
    if not setting.has(Rule.CHILDREN_READ_FIRST):
        if job.status in NO_PARENT:
            yield _to(world, at, "finds no parent", doing="has seen no parent")
    elif world.lives:
        yield _to(world, at, "sees live children", doing="has seen children")


def _gives_up(world: World, at: int, setting: ProgramSetting) -> Step[World]:
    job, reaper = world.job, world.reapers[at]
    is_as_observed = reaper.beat == job.beat
    if job.status != PROCESSING or (not is_as_observed and setting.has(Rule.GIVEN_UP_AS_OBSERVED)):
        return _to(world, at, "finds the claim changed", doing="", beat=-1)
    if world.is_well and not is_as_observed:
        raise Harm(Invariant.RENEWING_IS_NOT_GIVEN_UP)
    status = FAILED if setting.has(Rule.NEVER_RESCUED) else PENDING
    return _to(world._replace(job=job._replace(status=status)), at, "gives it up", doing="")


def _sweeps(world: World, at: int) -> Steps:
    for text, after, kind in one_pass(world, "a reaper"):
        if world.is_well:
            raise Harm(Invariant.LIVING_IS_NOT_SWEPT)
        yield Step(f"{text} (reaper {at})", after, kind)
    yield _to(world, at, "has passed", doing="")


# --- What befalls the children and the job ---


def children(world: World) -> Steps:
    """The runs of the children."""
    for number, child in enumerate(world.children):
        if child.status == PENDING:
            taken = child._replace(status=PROCESSING)
            yield Step(f"child {number} is claimed", world.with_child(number, taken._replace(is_asked=False)))
            if paid := world.paid("node"):
                by_node = paid.with_child(number, taken._replace(by_node=True))
                yield Step(f"Node claims child {number}", by_node, Kind.FAULT)
        elif child.status == PROCESSING:
            yield from _ends(world, number, child)


def _ends(world: World, number: int, child: ProgramChild) -> Steps:
    if child.completions:
        raise Harm(Invariant.COMPLETED_ONCE)
    over = child._replace(by_node=False, is_asked=False)
    done = over._replace(status=COMPLETED, completions=1)
    yield Step(f"child {number} completes", world.with_child(number, done), Kind.OURS if child.by_node else Kind.CHILD)
    obeys = child.is_asked and not child.by_node
    if obeys:
        yield Step(f"child {number} obeys", world.with_child(number, over._replace(status=CANCELLED)))
    if paid := world.paid("failures"):
        failed = over._replace(status=CANCELLED if obeys else FAILED)
        yield Step(f"child {number} fails for good", paid.with_child(number, failed), Kind.FAULT)
    if paid := world.paid("crashes"):
        back = child._replace(status=CANCELLED if obeys else PENDING, by_node=False)
        yield Step(f"child {number} is released, rescued or retried", paid.with_child(number, back), Kind.FAULT)


def hands(world: World, setting: ProgramSetting) -> Steps:
    """What operators do."""
    if paid := world.paid("child_hands"):
        for number, child in enumerate(world.children):
            if child.status == PENDING:
                cancelled = child._replace(status=CANCELLED, cancelled_by="an operator")
                yield Step(f"an operator cancels child {number}", paid.with_child(number, cancelled), Kind.FAULT)
    job = world.job
    if job.status not in (PROCESSING, PENDING, FAILED) or (paid := world.paid("job_hands")) is None:
        return
    deleted = paid._replace(job=job._replace(status=DELETED))
    yield Step("an operator deletes the program's job", deleted, Kind.FAULT)
    if job.status == PROCESSING and not job.is_asked:
        asked = paid._replace(job=job._replace(is_asked=True))
        yield Step("an operator asks the program to end", asked, Kind.FAULT)
    if job.status == FAILED and not setting.has(Rule.NEVER_RETRIED):
        retried = paid._replace(job=job._replace(status=PENDING))
        yield Step("an operator retries the program's job", retried, Kind.FAULT)


def late_inserts(world: World) -> Steps:
    """Those without an answer are lost, or applied at any time."""
    for number in world.sent:
        rest = world._replace(sent=world.sent - {number})
        yield Step(f"the late insert of child {number} is lost", rest, Kind.FAULT)
        if world.children[number].status != ABSENT:
            continue
        if world.program.health == OUT and not world.program.is_cut:
            raise Harm(Invariant.NOTHING_OUTLIVES_BLOCK)
        applied = rest.with_child(number, ProgramChild(PENDING))
        yield Step(f"the late insert of child {number} is applied", applied, Kind.FAULT)
