"""An exhaustive model of follow-ups: a job that ends, those that pay what it owes, and kills between any two steps.

Every write is a message. It is applied once, when it arrives, or never; its sender may be dead by then. A sender that
dies stands for one whose answer was lost, too: what it does next is what another one would do. Jobs that were run are
deleted at any time, as retention or an operator does.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from bson import ObjectId

from trio_monque.jobs.follow_ups import FateOfParked, fate_of_parked
from trio_monque.jobs.job_parts import FollowUpChosen, FollowUpOwed

RULES: Final = (
    "a new job is parked",
    "the choice asks for the mark",
    "the choice asks for the number of claims",
    "an id is sent once",
    "the insert is acknowledged before the choice",
    "the release comes before the clearing",
    "the release asks for a parked job",
    "what may be chosen stays",
    "retention spares a job that owes",
)

IDS: Final = tuple(ObjectId(f"{number:024x}") for number in range(1, 9))
OWED, CLEAR = "owed", "clear"

T = TypeVar("T")

# The end that a job is the follow-up of, and its state: parked, due, or run.
Follow = tuple[int, str]
# An operation and its arguments: the place of the follow-up, and the end that it is for.
Message = tuple[str, int, int]


@dataclass(frozen=True)
class Actor:
    """One that pays, or tidies up. `step` is what it waits for; `place` and `end` are what it works on."""

    step: str = "idle"
    place: int = -1
    end: int = 0
    message: int = -1
    seen: tuple[int, str | int] | None = None


@dataclass(frozen=True)
class State:
    """The parent (None once it is deleted): its status, its number of claims, and its mark or the chosen place."""

    parent: tuple[str, int, str | int] | None
    follow: tuple[Follow | None, ...] = ()
    sent: tuple[Message | None, ...] = ()
    actors: tuple[Actor, ...] = ()
    kills: int = 0
    retries: int = 0
    runs: tuple[int, ...] = (0, 0, 0)

    @property
    def is_unharmed(self) -> bool:
        return all(count <= 1 for count in self.runs)


@dataclass(frozen=True)
class Model:
    """Which rules hold, and how much may happen."""

    rules: frozenset[str]
    retries: int = 0

    def start(self, payers: int, tidiers: int, kills: int) -> State:
        actors = (*[Actor()] * payers, *[Actor("tidy")] * tidiers)
        return State(("ended", 1, OWED), actors=actors, kills=kills, retries=self.retries)

    def has(self, rule: str) -> bool:
        assert rule in RULES
        return rule in self.rules

    # --- What the server does with a message ---

    def applied(self, state: State, message: Message) -> tuple[State, bool]:
        """The state after it, and whether it matched."""
        kind, place, end = message
        if kind in ("insert", "delete", "release"):
            return self._on_follow_up(state, kind, place, end)
        if state.parent is None:
            return state, False
        status, claims, mark = state.parent
        if kind == "choose":
            allowed = mark == OWED or not self.has("the choice asks for the mark")
            allowed &= claims == end or not self.has("the choice asks for the number of claims")
            allowed &= status == "ended"
            return (replace(state, parent=(status, claims, place)), True) if allowed else (state, False)
        assert kind == "clear"
        return (replace(state, parent=(status, claims, CLEAR)), True) if mark == place else (state, False)

    def _on_follow_up(self, state: State, kind: str, place: int, end: int) -> tuple[State, bool]:
        follow = [*state.follow, *[None] * (place + 1 - len(state.follow))]
        there = follow[place]
        if kind == "insert":
            if there is None:
                follow[place] = (end, "parked" if self.has("a new job is parked") else "due")
            matched = True
        elif kind == "delete":
            matched = there is not None and there[1] == "parked"
            if matched:
                follow[place] = None
        else:
            matched = there is not None
            if self.has("the release asks for a parked job"):
                matched = there is not None and there[1] == "parked"
            if matched:
                assert there is not None
                follow[place] = (there[0], "due")
        return replace(state, follow=tuple(follow)), matched

    # --- What may happen next ---

    def next_states(self, state: State) -> Iterator[State]:
        yield from self._by_others(state)
        waiting = {actor.message: number for number, actor in enumerate(state.actors) if actor.message >= 0}
        for number, message in enumerate(state.sent):
            if message is None:
                continue
            after, matched = self.applied(state, message)
            after = replace(after, sent=_at(after.sent, number, None))
            if number in waiting:
                after = self._answered(after, waiting[number], matched)
            yield after
        for number, actor in enumerate(state.actors):
            if actor.message < 0:
                yield from self._acts(state, number)
            if state.kills and actor.step not in ("idle", "over", "tidy"):
                killed = replace(state, actors=_at(state.actors, number, Actor("over")), kills=state.kills - 1)
                yield killed

    def _by_others(self, state: State) -> Iterator[State]:
        for place, there in enumerate(state.follow):
            if there is None:
                continue
            end, status = there
            if status == "due":
                runs = _at(state.runs, end, state.runs[end] + 1)
                yield replace(state, follow=_at(state.follow, place, (end, "run")), runs=runs)
            if status == "run":
                yield replace(state, follow=_at(state.follow, place, None))
        if state.parent is None:
            return
        status, claims, mark = state.parent
        if status == "ended" and (mark == CLEAR or not self.has("retention spares a job that owes")):
            yield replace(state, parent=None)
        if status == "ended" and state.retries:
            yield replace(state, parent=("pending", claims, mark), retries=state.retries - 1)
        if status == "pending":
            yield replace(state, parent=("running", claims + 1, OWED))
        if status == "running":
            yield replace(state, parent=("ended", claims, mark))

    def _acts(self, state: State, number: int) -> Iterator[State]:
        """What an actor does that waits for no answer."""
        actor = state.actors[number]
        if actor.step == "idle":
            yield self._paid(state, number)
        elif actor.step == "tidy":
            for place, there in enumerate(state.follow):
                if there is not None and there[1] == "parked":
                    seen = replace(actor, step="seen", place=place, end=there[0])
                    yield replace(state, actors=_at(state.actors, number, seen))
        elif actor.step == "seen":
            yield self._tidied(state, number)

    def _paid(self, state: State, number: int) -> State:
        """Reads the job, and sends the first message."""
        over = replace(state, actors=_at(state.actors, number, Actor("over")))
        if state.parent is None:
            return over
        status, claims, mark = state.parent
        if isinstance(mark, int):
            return self._ends(state, number, mark, claims)
        if status != "ended" or mark != OWED:
            return over
        place = number if self.has("an id is sent once") else 0
        inserting = self._sends(state, number, "insert", place, claims)
        if self.has("the insert is acknowledged before the choice"):
            return inserting
        # The insert is on its way, and the choice is sent beside it.
        return self._sends(inserting, number, "choose", place, claims)

    def _ends(self, state: State, number: int, place: int, end: int) -> State:
        first = "release" if self.has("the release comes before the clearing") else "clear"
        return self._sends(state, number, first, place, end)

    def _tidied(self, state: State, number: int) -> State:
        actor = state.actors[number]
        parent = None
        if state.parent is not None:
            _, claims, mark = state.parent
            own = FollowUpOwed() if mark == OWED else None
            parent = (claims, FollowUpChosen(IDS[mark]) if isinstance(mark, int) else own)
        fate = fate_of_parked(IDS[actor.place], actor.end, parent)
        if fate is FateOfParked.KEEP and not self.has("what may be chosen stays"):
            fate = FateOfParked.DELETE
        if fate is FateOfParked.RELEASE:
            return self._ends(state, number, actor.place, actor.end)
        if fate is FateOfParked.DELETE:
            return self._sends(state, number, "delete", actor.place, actor.end)
        return replace(state, actors=_at(state.actors, number, Actor("over")))

    def _sends(self, state: State, number: int, kind: str, place: int, end: int) -> State:
        actor = Actor(kind, place, end, message=len(state.sent))
        return replace(state, sent=(*state.sent, (kind, place, end)), actors=_at(state.actors, number, actor))

    def _answered(self, state: State, number: int, matched: bool) -> State:
        actor = state.actors[number]
        over = replace(state, actors=_at(state.actors, number, Actor("over")))
        is_in_order = self.has("the release comes before the clearing")
        if actor.step == "insert":
            return self._sends(state, number, "choose", actor.place, actor.end)
        if actor.step == "choose":
            if matched:
                return self._ends(state, number, actor.place, actor.end)
            return self._sends(state, number, "delete", actor.place, actor.end)
        if actor.step == ("release" if is_in_order else "clear"):
            return self._sends(state, number, "clear" if is_in_order else "release", actor.place, actor.end)
        return over

    # --- What is left after all kills, once nothing disturbs any more ---

    def swept(self, state: State) -> State:
        """All that is left is paid, run and tidied up, by one that is not killed. What was on its way is lost."""
        for number in range(5, 8):
            state = replace(state, sent=(), actors=(*tuple(Actor("over") for _ in range(number)), Actor()))
            if state.parent is not None and state.parent[0] != "ended":
                status, claims, _ = state.parent
                state = replace(state, parent=("ended", claims + (status == "pending"), OWED))
            state = self._alone(self._paid(state, number))
            for place, there in enumerate(state.follow):
                if there is not None and there[1] == "parked":
                    seen = Actor("seen", place, there[0])
                    state = self._alone(self._tidied(replace(state, actors=_at(state.actors, number, seen)), number))
            state = self._run_all(state)
        return state

    def _alone(self, state: State) -> State:
        while any(one is not None for one in state.sent):
            number = next(number for number, one in enumerate(state.sent) if one is not None)
            message = state.sent[number]
            assert message is not None
            after, matched = self.applied(state, message)
            after = replace(after, sent=_at(after.sent, number, None))
            who = [place for place, actor in enumerate(after.actors) if actor.message == number]
            state = self._answered(after, who[0], matched) if who else after
        return state

    def _run_all(self, state: State) -> State:
        while due := [after for after in self._by_others(state) if after.runs != state.runs]:
            state = due[0]
        return state


def _at(items: tuple[T, ...], place: int, item: T) -> tuple[T, ...]:
    return (*items[:place], item, *items[place + 1 :])
