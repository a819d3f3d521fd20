"""What is in the world of a nursery whose parent is a program: its job, its children, the program, the reapers.

The program's job has no handler: it stands for the program's claim to live. A reaper is the part of an instance that
gives up dead claims and sweeps the children of ended parents; what it remembers is what it has seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from .nursery_rules import OF_PROGRAMS, Rule
from .nursery_state import ABSENT, CHILDREN, LIVE, PROCESSING

ALIVE, FROZEN, DEAD, OUT = "alive", "frozen", "dead", "has left its block"
OPENING, OPENING_LATE, STARTING, WAITING, CANCELLING = (
    *("opens", "opens after its first child", "starts", "waits", "cancels"),
)
MOST_BEATS: Final = 2


class ProgramChild(NamedTuple):
    """A child's document."""

    status: str = ABSENT
    by_node: bool = False
    is_asked: bool = False
    cancelled_by: str = ""  # Ghost.
    completions: int = 0  # Ghost.


class ProgramJob(NamedTuple):
    """The program's job: inserted as processing, renewed, given up by its first death, deleted at the end."""

    status: str = ABSENT
    beat: int = 0
    is_asked: bool = False


class Program(NamedTuple):
    """The process, and where it is in its block."""

    health: str = ALIVE
    phase: str = OPENING
    started: int = 0
    unanswered: int = 0
    why: str = ""
    has_lost: bool = False
    is_cut: bool = False


class Reaper(NamedTuple):
    """What one instance has seen: a beat (-1: none), and what it is about to do by what it has seen."""

    beat: int = -1
    doing: str = ""


class ProgramBudget(NamedTuple):
    """How often each fault may happen."""

    kills: int = 0
    freezes: int = 0
    failures: int = 0
    errors: int = 0
    child_hands: int = 0
    job_hands: int = 0
    node: int = 0
    late: int = 0
    cuts: int = 0
    crashes: int = 0
    reaper_deaths: int = 0


class World(NamedTuple):
    """All of it."""

    job: ProgramJob
    program: Program
    reapers: tuple[Reaper, ...]
    budget: ProgramBudget
    children: tuple[ProgramChild, ...] = (ProgramChild(),) * CHILDREN
    sent: frozenset[int] = frozenset()

    @property
    def lives(self) -> bool:
        """Whether a child does."""
        return any(child.status in LIVE for child in self.children)

    @property
    def is_well(self) -> bool:
        """Whether the program is in its block, holds its job, and wants its children."""
        holds = self.job.status == PROCESSING and not self.job.is_asked and not self.program.has_lost
        return holds and self.program.health == ALIVE and self.program.phase in (STARTING, WAITING)

    def with_child(self, number: int, child: ProgramChild) -> World:
        return self._replace(children=(*self.children[:number], child, *self.children[number + 1 :]))

    def with_reaper(self, at: int, reaper: Reaper) -> World:
        return self._replace(reapers=(*self.reapers[:at], reaper, *self.reapers[at + 1 :]))

    def paid(self, fault: str) -> World | None:
        """With one of these faults less; None if there is none left."""
        left: int = getattr(self.budget, fault)
        return self._replace(budget=self.budget._replace(**{fault: left - 1})) if left else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSetting:
    """What a game is played with."""

    budget: ProgramBudget
    rules: frozenset[Rule] = OF_PROGRAMS
    reapers: int = 1

    def has(self, rule: Rule) -> bool:
        assert rule in OF_PROGRAMS
        return rule in self.rules
