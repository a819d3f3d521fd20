"""A source whose items are numbers, for tests of the engine without a database."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from trio_monque.engine.demand import ClaimState, ClaimTraits, Demand, Due, Granted, KnownItem
from trio_monque.engine.engine_limits import EngineLimits
from trio_monque.engine.nursery import Engine
from trio_monque.engine.observer import RunsLeft
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import NotBegun, RunEnd
from trio_monque.engine.source import Control, HintStream, Sources
from trio_monque.loop_time import loop_time
from trio_monque.observations import Sighting


class NotNowError(Exception):
    """A fault that passes."""


def sleeping(seconds: float) -> Callable[[Run[int]], Awaitable[object]]:
    """A handler that sleeps."""

    async def handler(run: Run[int]) -> None:
        await trio.sleep(seconds)

    return handler


@dataclass
class Shelf:
    """A source whose items are numbers on a shelf; a test sets how each part behaves."""

    items: list[int] = field(default_factory=list)
    handler: Callable[[Run[int]], Awaitable[object]] = field(default_factory=lambda: sleeping(1))
    settled: dict[int, RunEnd] = field(default_factory=dict)
    batches: list[list[int]] = field(default_factory=list)
    renewed: list[tuple[float, list[int]]] = field(default_factory=list)
    start_limits: dict[int, float] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    unwanted: set[int] = field(default_factory=set)
    reported: list[tuple[str, Any]] = field(default_factory=list)
    control: Control[int, tuple[int, RunEnd]] = field(init=False)
    limit: float = float("inf")
    hold: float = float("inf")
    claim_takes: float = 0.0
    settling_takes: float = 0.0
    claim_faults: list[Exception] = field(default_factory=list)
    races: int = 0
    settling_faults: list[Exception] = field(default_factory=list)
    renewal_faults: list[Exception] = field(default_factory=list)
    claimed_at: list[float] = field(default_factory=list)
    asked_for_one: list[object] = field(default_factory=list)
    unsure: set[object] = field(default_factory=set)
    due: list[float] = field(default_factory=list)
    known_items: dict[float, KnownItem] = field(default_factory=dict)
    asked_at: list[float] = field(default_factory=list)
    ask_faults: list[Exception] = field(default_factory=list)
    suspects: set[int] = field(default_factory=set)
    others: dict[int, Sighting[int]] = field(default_factory=dict)
    observed_at: list[float] = field(default_factory=list)
    look_takes: float = 0.0
    look_faults: list[Exception] = field(default_factory=list)
    rescue_faults: list[Exception] = field(default_factory=list)
    rescued: list[tuple[float, int]] = field(default_factory=list)
    rescue_takes: float = 0.0
    asked_for: list[list[int]] = field(default_factory=list)

    def traits_of(self, claim: int) -> ClaimTraits:
        return ClaimTraits(
            claim,
            "all",
            is_suspect=claim in self.suspects,
            time_limit=self.limit,
            renewal_limit=self.hold,
            start_limit=self.start_limits.get(claim, math.inf),
        )

    async def observe(self, held: Sequence[int]) -> Sequence[Sighting[int]]:
        self.observed_at.append(trio.current_time())
        await trio.sleep(self.look_takes)
        if self.look_faults:
            raise self.look_faults.pop(0)
        return [sighting for sighting in self.others.values() if sighting.claim not in held]

    async def rescue(self, claims: Sequence[int]) -> Sequence[int]:
        self.asked_for.append(list(claims))
        await trio.sleep(self.rescue_takes)
        if self.rescue_faults:
            raise self.rescue_faults.pop(0)
        self.rescued += [(trio.current_time(), claim) for claim in claims]
        return [claim for claim in claims if self.others.pop(claim, None) is not None]

    async def claim(self, demand: Demand) -> Granted[int]:
        self.claimed_at.append(trio.current_time())
        if self.races:
            self.races -= 1
            return Granted([], more=True)  # Others were faster with what was seen.
        granted = [self.items.pop(0) for _ in range(min(demand.total, len(self.items)))]
        await trio.sleep(self.claim_takes)
        if self.claim_faults:
            self.items[:0] = granted
            raise self.claim_faults.pop(0)
        return Granted(granted)

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[int]:
        self.asked_for_one.append(item.key)
        await trio.sleep_until(next((due for due, one in self.known_items.items() if one == item), -math.inf))
        await trio.sleep(self.claim_takes)
        if self.claim_faults:
            raise self.claim_faults.pop(0)
        if item.key in self.unsure:
            return Granted([], more=True)
        if item.key not in self.items:
            return Granted([])
        assert isinstance(item.key, int)
        self.items.remove(item.key)
        self.due = [due for due in self.due if self.known_items.get(due) != item]
        return Granted([item.key])

    async def next_due(self, groups: Set[str]) -> Due | None:
        self.asked_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.ask_faults:
            raise self.ask_faults.pop(0)
        later = sorted(due for due in self.due if due > self.claimed_at[-1])
        if not later:
            return None
        return Due(later[0], self.known_items.get(later[0]) if later[1:2] != later[:1] else None)

    async def execute(self, run: Run[int]) -> object:
        if not run.may_begin():
            raise NotBegun
        return await self.handler(run)

    def conclude(self, claim: int, end: RunEnd) -> tuple[int, RunEnd]:
        return claim, end

    async def prepare(self, settlements: Sequence[tuple[int, RunEnd]]) -> list[tuple[int, RunEnd]]:
        return list(settlements)

    async def settle(self, batch: list[tuple[int, RunEnd]]) -> Sequence[bool]:
        self.batches.append([claim for claim, _ in batch])
        await trio.sleep(self.settling_takes)
        if self.settling_faults:
            raise self.settling_faults.pop(0)
        self.settled.update({claim: end for claim, end in batch if claim not in self.lost})
        return [claim not in self.lost for claim, _ in batch]

    async def renew(self, claims: Sequence[int]) -> Sequence[ClaimState]:
        self.renewed.append((trio.current_time(), sorted(claims)))
        await trio.lowlevel.checkpoint()
        if self.renewal_faults:
            raise self.renewal_faults.pop(0)
        return [self.state_of(claim) for claim in claims]

    def state_of(self, claim: int) -> ClaimState:
        if claim in self.lost:
            return ClaimState.LOST
        return ClaimState.CANCEL_REQUESTED if claim in self.unwanted else ClaimState.HELD

    def rescue_abandoned(self) -> None:
        self.reported.append(("rescue_abandoned", None))

    def has_orphaned_claims(self) -> bool:
        return False

    async def release_orphaned_claims(self) -> None:
        await trio.lowlevel.checkpoint()

    def is_transient(self, error: Exception) -> bool:
        return isinstance(error, NotNowError)

    def connect(
        self, control: Control[int, tuple[int, RunEnd]]
    ) -> Sources[int, tuple[int, RunEnd], list[tuple[int, RunEnd]], int, int]:
        self.control = control
        return Sources(
            claims=self,
            runs=self,
            settlements=self,
            renewals=self,
            rescues=self,
            orphans=self,
            is_transient=self.is_transient,
        )

    # --- The observer ---

    def run_started(self, claim: int) -> None:
        self.reported.append(("run_started", claim))

    def run_settled(self, settlement: tuple[int, RunEnd]) -> None:
        self.reported.append(("run_settled", settlement))

    def failed_after_settlement(self, claim: int, error: Exception) -> None:
        self.reported.append(("failed_after_settlement", error))

    def claim_lost(self, claim: int) -> None:
        self.reported.append(("claim_lost", claim))

    def draining(self, cause: str, left: RunsLeft) -> None:
        self.reported.append(("draining", cause))

    def runs_cut_short(self, claims: Sequence[int]) -> None:
        self.reported.append(("runs_cut_short", claims))

    def claiming_failed(self, error: Exception) -> None:
        self.reported.append(("claiming_failed", error))

    def renewal_failed(self, error: Exception) -> None:
        self.reported.append(("renewal_failed", error))

    def settlement_delayed(self, error: Exception) -> None:
        self.reported.append(("settlement_delayed", error))

    def rescue_delayed(self, error: Exception) -> None:
        self.reported.append(("rescue_delayed", error))

    def claims_rescued(self, rescued: Sequence[int]) -> None:
        self.reported.append(("claims_rescued", rescued))

    def stream_connected(self) -> None:
        self.reported.append(("stream_connected", None))

    def stream_failed(self, error: Exception) -> None:
        self.reported.append(("stream_failed", error))

    def stream_closed(self) -> None:
        self.reported.append(("stream_closed", None))

    def stream_fallback(self, error: Exception) -> None:
        self.reported.append(("stream_fallback", error))

    def heard(self, name: str) -> list[Any]:
        """What was reported under that name."""
        return [what for one, what in self.reported if one == name]


ShelfEngine = Engine[int, tuple[int, RunEnd], list[tuple[int, RunEnd]], int, int]


def engine_of(
    shelf: Shelf,
    *,
    stream: HintStream[int] | None = None,
    concurrency: int = 3,
    rests: bool = False,
    **limits: Any,
) -> ShelfEngine:
    """An engine over the shelf; unless it `rests`, it polls and beats under a virtual clock, too."""
    loop_time().is_event_driven = rests
    engine: ShelfEngine = Engine(
        shelf.connect,
        shelf,
        EngineLimits(
            **{
                "poll_interval": 5.0,
                "heartbeat_interval": 10.0,
                "shutdown_timeout": 30.0,
                "cleanup_timeout": 5.0,
                "concurrency": concurrency,
                **limits,
            }
        ),
        stream,
    )
    engine.slots.set_limit("all", 100)
    return engine


@asynccontextmanager
async def running(engine: Engine[Any, Any, Any, Any, Any]) -> Any:
    async with trio.open_nursery() as nursery:
        started = trio.Event()

        async def run() -> None:
            await engine.run(started=started.set)

        nursery.start_soon(run)
        await started.wait()
        yield nursery
        engine.stop.drain()


def engine_with_slots(shelf: Shelf, slots: int, **limits: Any) -> Any:
    engine = engine_of(shelf, concurrency=slots, rests=True, **limits)
    engine.slots.set_limit("all", slots)
    return engine
