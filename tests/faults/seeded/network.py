"""What lies between `DatabaseThreads` and the server: calls fail, their answers are lost, or they take their time.

It takes the place of the function by which `store/driver/database_threads.py` sends a call into a thread. A call that
takes its time does so in virtual time, on its way there or on its way back, and holds its place in the limiter
meanwhile. The caller may stop waiting, and then the call goes on by itself. A call that fails does so inside of its
thread, in one of the commands that it is made of, with the driver's own errors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Final, TypeVar

import outcome
import pytest
import trio
from pymongo import errors as driver
from pymongo.read_concern import ReadConcern

from trio_monque.client import rescuer
from trio_monque.client.local_wakeups import wake_all_schedulers
from trio_monque.engine import pauses
from trio_monque.loops import post_to_runs
from trio_monque.store.driver import commands, database_threads
from trio_monque.store.job_collection import JobCollection
from trio_monque.threads_and_frozen_time import FreezingLimiter, Limiter, call_in_thread, clock_freeze

from .plan import Outage, Plan

T = TypeVar("T")

ERRANDS: Final = frozenset({"create the indexes", "reach the database"})

whose: ContextVar[str] = ContextVar("whose", default="client")
"""Which instance the current task, or the thread that works for it, belongs to."""


@dataclass
class Trouble:
    """What befalls one call.

    Attributes:
        kind: What befalls a command of it; empty for nothing.
        skipped: How many of its commands pass before.
        out, back: Seconds on its way there, and back.
        late: Seconds until a command is applied that has timed out.
        share: Which part of it is applied, where only a part is.
        error: What the driver raises.
        is_slow: It takes its time, and raises no error.
    """

    kind: str = ""
    skipped: int = 0
    out: float = 0.0
    back: float = 0.0
    late: float = 0.0
    share: float = 0.0
    error: int = 0
    is_slow: bool = False


_trouble: ContextVar[Trouble | None] = ContextVar("trouble", default=None)

_NOT_SENT: Final[tuple[Callable[[], driver.PyMongoError], ...]] = (
    lambda: driver.ServerSelectionTimeoutError("no server"),
    lambda: driver.AutoReconnect("connection refused"),
    lambda: driver.NotPrimaryError("not primary", {"code": 10107}),
    lambda: driver.OperationFailure("stepping down", 11602),
)
_NO_ANSWER: Final[tuple[Callable[[], driver.PyMongoError], ...]] = (
    lambda: driver.AutoReconnect("connection closed"),
    lambda: driver.NetworkTimeout("timed out"),
    lambda: driver.WTimeoutError("waiting for replication timed out", 64),
)

MORE_OF_IT: Final = 0.4
"""How likely the next call of the same instance is befallen, too."""

KINDS: Final = {"refused": 5, "lost": 5, "late": 4, "partial": 3, "burst": 1, "permanent": 0.15, "slow": 8}


class Network:
    """Draws what befalls each call, by the plan's seed, until the plan stops it.

    Attributes:
        log: What befell calls: when on the run's clock, whose they were, what it was, and what the command was for.
    """

    def __init__(self, plan: Plan) -> None:
        self.log: list[tuple[float, str, str, str]] = []
        self.interference = [self]
        self._chance = Random(f"network {plan.seed}")
        self._rate = plan.trouble
        self._outages: tuple[Outage, ...] = plan.outages
        self._burst = 0
        self._purpose = ""
        self._troubled: set[str] = set()
        self._under_way = 0
        self._works = True
        self._clock = trio.lowlevel.current_clock()
        self._limiter = FreezingLimiter(float("inf"))

    @property
    def befell(self) -> Counter[str]:
        """How often what befell a call."""
        return Counter(kind for _, _, kind, _ in self.log)

    def _note(self, kind: str, purpose: str = "") -> None:
        self.log.append((self._clock.current_time(), whose.get(), kind, purpose))

    # --- In the place of the functions that `DatabaseThreads` calls ---

    async def call(self, function: Callable[[], T], *, limiter: Limiter, abandon_on_cancel: bool = False) -> T:
        """As `call_in_thread`, which it replaces in `DatabaseThreads`."""
        await trio.lowlevel.checkpoint_if_cancelled()
        borrower = object()
        await limiter.acquire_on_behalf_of(borrower)
        results: list[outcome.Outcome[T]] = []
        done = trio.Event()
        trouble = self._drawn()
        self._in_background(partial(self._deliver, function, limiter, borrower, trouble, results, done))
        with trio.CancelScope(shield=not abandon_on_cancel):
            await done.wait()
        return results[0].unwrap()

    def unawaited(self, function: Callable[[], object]) -> None:
        """As `work_unawaited`, which it replaces in `DatabaseThreads`."""
        self._in_background(partial(self._work, function, self._drawn()))

    def _in_background(self, work: Callable[[], Any]) -> None:
        self._under_way += 1
        trio.lowlevel.spawn_system_task(work, context=copy_context())

    async def _deliver(
        self,
        function: Callable[[], T],
        limiter: Limiter,
        borrower: object,
        trouble: Trouble,
        results: list[outcome.Outcome[T]],
        done: trio.Event,
    ) -> None:
        _trouble.set(trouble)
        try:
            await self._take_time(trouble.out)
            results.append(await outcome.acapture(partial(call_in_thread, function, limiter=limiter)))
            await self._take_time(trouble.back)
            if trouble.is_slow:
                self._note("arrived")
            done.set()
        finally:
            limiter.release_on_behalf_of(borrower)
            self._under_way -= 1

    async def _work(self, function: Callable[[], object], trouble: Trouble) -> None:
        _trouble.set(trouble)
        await trio.sleep(trouble.out)
        await outcome.acapture(partial(call_in_thread, function, limiter=self._limiter))
        self._under_way -= 1

    async def _take_time(self, seconds: float) -> None:
        """Virtual time passes, which a call holds otherwise."""
        if seconds:
            clock_freeze().thaw()
            try:
                await trio.sleep(seconds)
            finally:
                clock_freeze().freeze()

    def _drawn(self) -> Trouble:
        chance = self._chance
        # Trouble comes seldom alone.
        rate = MORE_OF_IT if whose.get() in self._troubled else self._rate
        self._troubled.discard(whose.get())
        if not self._works or chance.random() >= rate:
            return Trouble()
        self._troubled.add(whose.get())
        (kind,) = chance.choices(tuple(KINDS), tuple(KINDS.values()))
        trouble = Trouble(
            kind="" if kind == "slow" else kind,
            skipped=chance.choice((0, 1)),
            share=chance.random(),
            error=chance.getrandbits(8),
            late=chance.choice((0.1, 3.0, chance.uniform(0, 40))),
        )
        seconds = chance.choice((0.05, 0.7, 2.0, chance.uniform(0, 20)))
        if kind == "late":
            trouble.back = chance.choice((0.0, 2.0, 5.0))
        elif kind == "slow" and chance.random() < 0.5:
            trouble.back = seconds
            self._note("slow back")
        elif kind == "slow" or chance.random() < 0.3:
            trouble.out = seconds
            self._note("slow there")
        trouble.is_slow = trouble.out > 0 or kind == "slow"
        return trouble

    # --- In the threads: see Interference ---

    def takes(self, purpose: str) -> bool:
        self._purpose = purpose  # Threads take turns: what it befalls comes next.
        if purpose in ERRANDS or not self._works:
            return False
        if self._burst or self._is_out():
            return True
        trouble = _trouble.get()
        if trouble is None:
            return False
        if trouble.out and not trouble.kind:
            return True  # Sent before whatever has become of its sender meanwhile.
        if trouble.kind and trouble.skipped:
            trouble.skipped -= 1
            return False
        return bool(trouble.kind)

    def inject(self, call: Callable[[], T]) -> T:
        trouble = _trouble.get() or Trouble()
        kind, trouble.kind = trouble.kind, ""
        if self._is_out():
            self._note("outage", self._purpose)
            raise _NOT_SENT[0]()
        if self._burst:
            self._burst -= 1
            self._note("burst", self._purpose)
            raise _NOT_SENT[2]()
        if not kind:
            return call()
        self._note(kind, self._purpose)
        match kind:
            case "lost":
                call()
            case "late":
                post_to_runs(partial(self._in_background, partial(self._apply_late, call, trouble.late)))
                raise driver.NetworkTimeout("timed out")
            case "partial":
                self._apply_partly(call, trouble.share)
            case "burst":
                self._burst = trouble.error % 5
                raise _NOT_SENT[2]()
            case "permanent":
                raise driver.OperationFailure("not authorized", 13)
            case "refused":
                raise _NOT_SENT[trouble.error % len(_NOT_SENT)]()
        raise _NO_ANSWER[trouble.error % len(_NO_ANSWER)]()

    def _is_out(self) -> bool:
        now, me = self._clock.current_time(), whose.get()
        return any(
            one.start <= now < one.end and (one.whose is None or me.partition(".")[0] == f"i{one.whose}")
            for one in self._outages
        )

    def _apply_partly(self, call: Any, share: float) -> None:
        """Of what is sent for several jobs, the first ones are. For one job, it is all or nothing."""
        handle, *arguments = call.args
        if arguments and isinstance(arguments[0], list | tuple) and len(arguments[0]) > 1:
            items, *others = arguments
            if part := items[: round(len(items) * share)]:
                call.func(handle, part, *others, **call.keywords)
        elif share < 0.5:
            call()

    async def _apply_late(self, call: Callable[[], object], seconds: float) -> None:
        """The server applies it only now; the caller got a timeout before."""
        await trio.sleep(seconds)
        await outcome.acapture(partial(call_in_thread, call, limiter=self._limiter))
        self._note("applied late")
        wake_all_schedulers()  # As a poll would: no client announces what was applied late.
        self._under_way -= 1

    # --- The end of it ---

    async def stop(self) -> None:
        """No more trouble; returns when all that was under way has arrived."""
        self._works, self._outages, self._burst = False, (), 0
        while self._under_way:
            await trio.sleep(1)


@contextmanager
def in_the_way(network: Network) -> Iterator[None]:
    """While inside: between `DatabaseThreads` and the server, for all clients that are made inside."""
    made = JobCollection.of.__func__  # type: ignore[attr-defined]

    def of(cls: type[JobCollection], *args: Any, **options: Any) -> JobCollection:
        jobs: JobCollection = made(cls, *args, **options)
        jobs.interference.append(network)
        return jobs

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database_threads, "call_in_thread", network.call)
        patch.setattr(database_threads, "work_unawaited", network.unawaited)
        patch.setattr(JobCollection, "of", classmethod(of))
        # Faults are of virtual time here, so the pauses after them are, too.
        patch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)
        patch.setattr(rescuer, "SEND_AGAIN_AFTER", 0.0)
        # A majority's read waits for the journal, a tenth of a second each. On one member it finds the same.
        patch.setattr(commands, "MAJORITY", ReadConcern("local"))
        yield
