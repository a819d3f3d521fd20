"""The model of a nursery whose parent is a program: every step of every actor, and the ends within reach.

The program's nursery is a job: it holds one of its own, which is inserted as running, renewed, given up by any reaper
with its first death, and deleted under its fence at the end. Which games are played is at the end of this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from . import nursery_reapers as reapers
from .nursery_invariants import Invariant
from .nursery_program import program
from .nursery_program_state import (
    ALIVE,
    CANCELLING,
    DEAD,
    OUT,
    Program,
    ProgramBudget,
    ProgramJob,
    ProgramSetting,
    Reaper,
    World,
)
from .nursery_rules import OF_PROGRAMS, Rule
from .nursery_search import Goal, Step


@dataclass(frozen=True, slots=True)
class ProgramModel:
    """The parent is a program with a job of its own."""

    setting: ProgramSetting

    def start(self) -> World:
        return World(ProgramJob(), Program(), (Reaper(),) * self.setting.reapers, self.setting.budget)

    def steps(self, world: World) -> Iterator[Step[World]]:
        yield from program(world, self.setting)
        yield from reapers.reapers(world, self.setting)
        yield from reapers.children(world)
        yield from reapers.hands(world, self.setting)
        yield from reapers.late_inserts(world)

    def goals(self) -> Iterator[Goal[World]]:
        yield Goal(Invariant.EVERYTHING_ENDS, lambda _: True, _all_ended, by_itself=True)
        yield Goal(Invariant.ORPHANS_END, _is_over, lambda world: not world.lives)
        yield Goal(Invariant.CANCELLED_BLOCKS_END, lambda _: True, lambda world: not _is_cancelling(world))


def _is_over(world: World) -> bool:
    return world.program.health in (DEAD, OUT)


def _all_ended(world: World) -> bool:
    return _is_over(world) and not world.lives and world.job.status in reapers.NO_PARENT


def _is_cancelling(world: World) -> bool:
    return world.program.health == ALIVE and world.program.phase == CANCELLING


def program_setting(rules: frozenset[Rule] = OF_PROGRAMS, *, reapers: int = 1, **faults: Any) -> ProgramSetting:
    """A setting, from what differs from the plainest one."""
    return ProgramSetting(budget=ProgramBudget(**faults), rules=rules, reapers=reapers)


SMALL: Final[Mapping[str, ProgramSetting]] = {
    "deaths": program_setting(kills=1, freezes=1, errors=1),
    "a child fails": program_setting(failures=1, kills=1),
    "reapers die": program_setting(reapers=2, kills=1, reaper_deaths=1),
    "thawed": program_setting(reapers=2, freezes=1, crashes=1),
    "late inserts": program_setting(late=1, kills=1, freezes=1),
    "late inserts and operators": program_setting(late=1, errors=1, child_hands=1),
    "Node": program_setting(node=1, errors=1, kills=1, crashes=1),
    "clean-up takes too long": program_setting(cuts=1, errors=1, failures=1, crashes=1),
    "operators and the program's job": program_setting(job_hands=1, kills=1, freezes=1),
}

SHOWN_IN: Final[Mapping[Rule, Mapping[str, int]]] = {
    Rule.JOB_BEFORE_CHILDREN: {"kills": 1},
    Rule.CHILDREN_READ_FIRST: {},
    Rule.GIVEN_UP_AS_OBSERVED: {"freezes": 1},
    Rule.NEVER_RESCUED: {"kills": 1},
    Rule.NEVER_RETRIED: {"kills": 1, "job_hands": 1},
    Rule.FENCED_END: {"freezes": 1},
    Rule.SWEEPER: {"kills": 1},
    Rule.REPEATED_PASS: {"errors": 1},
    Rule.TOMBSTONE: {"late": 1},
}
"""Where the harm of each rule shows first."""
