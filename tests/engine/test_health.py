"""Progress of every loop: one that waits on purpose is healthy, one that is late is named, and why it is."""

from __future__ import annotations

import ast
import inspect
import re
import threading
import time
from collections.abc import Awaitable, Callable, Set
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.engine_log import hearing
from tests.support.internals import answered_at
from tests.support.shelf import NotNowError, Shelf, ShelfEngine, engine_of, running, sleeping
from tests.support.thoroughly import one_in
from trio_monque.engine import nursery, pauses
from trio_monque.engine.demand import Due
from trio_monque.engine.progress import Progress, Spread
from trio_monque.engine.run import Run
from trio_monque.engine.shutdown import HARD_END_AFTER
from trio_monque.engine.vitals import Examined, LoopExamined
from trio_monque.observations import Sighting

STUCK_AFTER = 20.0
LOOPS = {"claimer", "waker", "settler", "heartbeat", "orphan releaser", "reaper"}


@pytest.fixture(autouse=True)
def _outages_take_virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after faults freeze virtual time for some real seconds, which these tests do not want to wait."""
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)


class ForEver(list[Exception]):
    """Faults that are never used up, until they are cleared."""

    def __init__(self) -> None:
        super().__init__([NotNowError("no primary")])

    def pop(self, _index: Any = -1) -> Exception:
        return self[0]


def watched(shelf: Shelf, **limits: Any) -> ShelfEngine:
    return engine_of(shelf, **{"stuck_after": STUCK_AFTER, **limits})


def loop_of(found: Examined, name: str) -> LoopExamined:
    (loop,) = (loop for loop in found.loops if loop.name == name)
    return loop


# --- One loop's own words ---


async def test_loop_is_late_since_its_plan_or_its_first_attempt_that_has_not_succeeded(
    autojump_clock: MockClock,
) -> None:
    progress = Progress("one")

    async def lag_after(seconds: float) -> float:
        await trio.sleep(seconds)
        return progress.lag(trio.current_time())

    assert await lag_after(1000) == 0  # It has planned nothing.
    progress.plan(trio.current_time() + 10)
    assert await lag_after(10) == 0
    assert await lag_after(5) == 5
    progress.ask()
    assert await lag_after(1) == 6
    progress.fail(NotNowError())
    progress.plan(trio.current_time() + 10)  # For another attempt: what it was late with is still to be done.
    assert await lag_after(1) == 7
    progress.ask()
    progress.answered()
    assert await lag_after(1000) == 0
    progress.ask()  # Nothing was planned: late from here on.
    assert await lag_after(3) == 3
    progress.fail(NotNowError())
    progress.wait_for_others()
    assert await lag_after(1000) == 0


async def test_complaint_names_loop_and_cause_and_only_beyond_the_limit(autojump_clock: MockClock) -> None:
    progress = Progress("reaper")
    progress.plan(trio.current_time())
    await trio.sleep(5)
    assert progress.complaint(trio.current_time(), 5.0, "the engine") is None
    assert progress.complaint(trio.current_time(), 4.9, "the engine") == "the reaper is 5.0 s late"
    progress.ask()
    assert progress.complaint(trio.current_time(), 4.9, "the engine") == "the reaper has waited 5.0 s for an answer"
    progress.fail(NotNowError("no primary"))
    reported = "the reaper has failed for 5.0 s and keeps trying: NotNowError: no primary"
    assert progress.complaint(trio.current_time(), 4.9, "the engine") == reported
    progress.answered()
    assert progress.complaint(trio.current_time(), 0.0, "the engine") is None
    assert progress.fault is not None, "the last error is kept, although it is over"
    progress.crash(KeyError("x"))
    progress.end()
    assert (
        progress.complaint(trio.current_time(), 5.0, "the engine")
        == "the reaper crashed, which stops the engine: KeyError: 'x'"
    )


def test_spread_counts_sums_and_keeps_the_largest() -> None:
    spread = Spread()
    assert (spread.count, spread.total, spread.largest, spread.average) == (0, 0, 0, 0)
    for amount in (2, 6, 1):
        spread.add(amount)
    assert (spread.count, spread.total, spread.largest, spread.average) == (3, 9, 6, 3)


# --- Before, during and after ---


async def test_engine_is_healthy_from_its_start_to_its_end_only(autojump_clock: MockClock) -> None:
    engine = watched(Shelf())
    before = engine.vitals.examine()
    assert (before.reasons, before.loops) == (("the engine has not started",), ())
    async with running(engine):
        started = engine.vitals.examine()
        assert started.reasons == ()
        assert {loop.name for loop in started.loops} == LOOPS
        await trio.sleep(1)
        engine.stop.drain()
        draining = engine.vitals.examine()
        assert (draining.reasons, draining.is_draining) == ((), True)
    assert engine.vitals.examine().reasons == ("the engine has ended",)


@pytest.mark.parametrize("rests", one_in(2, [False, True]))
async def test_idle_and_busy_loops_that_wait_on_purpose_are_healthy_at_every_moment(
    autojump_clock: MockClock, rests: bool
) -> None:
    shelf = Shelf(items=[1, 2, 3], handler=sleeping(500), others={9: Sighting(9, 9, "mark", lease=1000.0)})
    engine = watched(shelf, rests=rests)
    async with running(engine):
        for _ in range(2000):  # First all slots are taken, then nothing is left to do.
            await trio.sleep(0.499)
            found = engine.vitals.examine()
            assert found.reasons == ()
            assert [loop.lag for loop in found.loops] == [0.0] * len(LOOPS)
    assert set(shelf.settled) == {1, 2, 3}


async def test_disabled_reaper_is_not_among_the_loops(autojump_clock: MockClock) -> None:
    engine = watched(Shelf(), rescues=False)
    async with running(engine):
        assert {loop.name for loop in engine.vitals.examine().loops} == LOOPS - {"reaper"}


class BeginsAnother(Progress):
    """Whenever it is examined, another loop begins: what a start may do while another thread examines the engine."""

    def __init__(self, engine: ShelfEngine) -> None:
        self.engine = engine
        self.others = 0
        super().__init__("first")

    @property
    def crashed(self) -> str | None:
        self.others += 1
        self.engine.vitals.watch(Progress(f"other {self.others}"))
        return None

    @crashed.setter
    def crashed(self, reason: str | None) -> None:
        pass


async def test_engine_can_be_examined_while_loops_begin(autojump_clock: MockClock) -> None:
    engine = watched(Shelf())
    async with running(engine):
        first = BeginsAnother(engine)
        engine.vitals.watch(first)
        assert engine.vitals.examine().reasons == ()
        assert first.others > 1  # Every look of the examination at the loops met a new one.
        assert "other 1" in {loop.name for loop in engine.vitals.examine().loops}


# --- A source that fails, or does not answer ---

FAULTS: dict[str, Callable[[Shelf, ForEver], object]] = {
    "claimer": lambda shelf, faults: setattr(shelf, "claim_faults", faults),
    "waker": lambda shelf, faults: setattr(shelf, "ask_faults", faults),
    "settler": lambda shelf, faults: setattr(shelf, "settling_faults", faults),
    "heartbeat": lambda shelf, faults: setattr(shelf, "renewal_faults", faults),
    "reaper": lambda shelf, faults: setattr(shelf, "look_faults", faults),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_loop_that_fails_is_named_with_its_cause_within_its_limit_and_healthy_again_after(
    autojump_clock: MockClock, name: str
) -> None:
    # Something runs, so that there is a beat; something ends every second, so that there is a settlement.
    shelf, faults = Shelf(), ForEver()

    async def first_is_long(run: Run[int]) -> None:
        await trio.sleep(1000 if run.claim == 0 else 1)

    shelf.handler = first_is_long
    shelf.items = list(range(5000))
    engine = watched(shelf, concurrency=2, heartbeat_interval=10.0)
    # The waker asks when there is nothing left to claim.
    shelf.items = shelf.items[:2] if name == "waker" else shelf.items
    async with running(engine):
        await trio.sleep(0.5)
        began = trio.current_time()
        FAULTS[name](shelf, faults)
        engine.waker.look()
        while not (found := engine.vitals.examine()).reasons:
            await trio.sleep(0.25)
        # The heartbeat: its next beat, and its own limit. Another: its next act at most a beat away, and its limit.
        assert trio.current_time() - began <= (10 + 10 if name == "heartbeat" else 10 + STUCK_AFTER) + 1
        complaint = loop_of(found, name).complaint
        assert complaint is not None
        assert complaint.startswith(f"the {name} has failed for ")
        assert complaint.endswith("NotNowError: no primary")
        assert complaint in found.reasons
        assert loop_of(found, name).fault is not None
        faults.clear()
        await trio.sleep(3)
        found = engine.vitals.examine()
        assert found.reasons == ()
        assert loop_of(found, name).fault is not None, "the last error is still reported"
        shelf.items.clear()
        engine.stop.cut()


async def test_no_loop_is_named_for_a_fault_that_is_shorter_than_its_limit(autojump_clock: MockClock) -> None:
    shelf, faults = Shelf(items=[1]), ForEver()
    engine = watched(shelf)
    shelf.claim_faults = shelf.look_faults = faults
    async with running(engine):
        for _ in range(18):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()
        faults.clear()
        for _ in range(100):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()
    assert shelf.settled


async def test_health_names_a_source_that_does_not_answer(autojump_clock: MockClock) -> None:
    shelf = Shelf(claim_takes=100.0)
    engine = watched(shelf)
    async with running(engine):
        await trio.sleep(STUCK_AFTER)
        assert engine.vitals.examine().reasons == ()
        await trio.sleep(1)
        assert engine.vitals.examine().reasons == ("the claimer has waited 21.0 s for an answer",)
        await trio.sleep(80)
        assert engine.vitals.examine().reasons == ()


async def test_waker_whose_question_failed_waits_on_purpose_while_all_slots_are_taken(
    autojump_clock: MockClock,
) -> None:
    class SlowToFail(Shelf):
        async def next_due(self, groups: Set[str]) -> Due | None:
            self.asked_at.append(trio.current_time())
            if len(self.asked_at) > 1:
                return None
            await trio.sleep(5)
            raise NotNowError

    shelf = SlowToFail(handler=sleeping(1000))
    engine = watched(shelf, concurrency=1)
    async with running(engine):
        await trio.sleep(1)
        shelf.items = [1]
        engine.wake.set()
        await trio.sleep(4.5)
        engine.waker.look()  # The claimer does not look: no slot is free until the end.
        for _ in range(900):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()
        assert len(shelf.asked_at) == 1
        engine.stop.cut()


async def test_waker_gets_on_with_every_poll(autojump_clock: MockClock) -> None:
    engine = watched(Shelf(), poll_interval=1.0)
    async with running(engine):
        for _ in range(50):
            await trio.sleep(0.7)
            assert loop_of(engine.vitals.examine(), "waker").progressed_at >= trio.current_time() - 1


async def test_loops_that_do_not_what_they_had_planned_are_named(autojump_clock: MockClock) -> None:
    engine = watched(Shelf(others={9: Sighting(9, 9, "mark", lease=1000.0)}))
    async with running(engine):
        await trio.sleep(1)
        autojump_clock.jump(100)  # None of them had a chance: as if they were stuck.
        reasons = engine.vitals.examine().reasons
        # Planned for the next poll, beat, or look: 5, 10, 10 and 5 s after the start.
        assert sorted(reasons) == [
            "the heartbeat is 91.0 s late",
            "the orphan releaser is 91.0 s late",
            "the reaper is 96.0 s late",
            "the waker is 96.0 s late",
        ]
        await trio.sleep(0.1)
        assert engine.vitals.examine().reasons == ()


async def test_heartbeat_that_failed_is_healthy_when_nothing_is_left_to_renew(autojump_clock: MockClock) -> None:
    shelf, faults = Shelf(items=[1], handler=sleeping(15)), ForEver()
    shelf.renewal_faults = faults
    engine = watched(shelf, heartbeat_interval=10.0)
    async with running(engine):
        for _ in range(100):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()
    assert set(shelf.settled) == {1}
    assert len(shelf.renewed) > 1


async def test_claimer_whose_claim_failed_waits_on_purpose_when_nothing_may_start(autojump_clock: MockClock) -> None:
    shelf, faults = Shelf(), ForEver()
    engine = watched(shelf)
    shelf.claim_faults = faults
    async with running(engine):
        await trio.sleep(1)
        engine.slots.set_limit("all", 0)  # A worker is replaced by one that may run less, say.
        engine.waker.look()
        for _ in range(100):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()


class Orphans(Shelf):
    """With something to do for itself, which fails until it is done elsewhere."""

    is_left = True

    def has_orphaned_claims(self) -> bool:
        return self.is_left

    async def release_orphaned_claims(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_left:
            self.is_left = not self.is_last
            raise NotNowError("no primary")

    is_last = False


async def test_release_that_failed_and_is_no_longer_needed_is_forgotten(autojump_clock: MockClock) -> None:
    shelf = Orphans()
    shelf.is_last = True
    engine = watched(shelf, rests=True)
    async with running(engine):
        for _ in range(100):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()
        assert loop_of(engine.vitals.examine(), "orphan releaser").fault is not None


@pytest.mark.parametrize("rests", [False, True])
async def test_releases_that_fail_are_named_until_there_are_none(autojump_clock: MockClock, rests: bool) -> None:
    shelf = Orphans()
    engine = watched(shelf, rests=rests, heartbeat_interval=10.0)
    async with running(engine):
        await trio.sleep(10 + STUCK_AFTER)
        assert engine.vitals.examine().reasons == ()
        await trio.sleep(1)
        reported = "the orphan releaser has failed for 21.0 s and keeps trying: NotNowError: no primary"
        assert engine.vitals.examine().reasons == (reported,)
        shelf.is_left = False
        await trio.sleep(10)
        for _ in range(100):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()


def test_every_loop_that_the_nursery_starts_is_watched() -> None:
    """A new one that is forgotten here could die in silence."""
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(nursery))) if isinstance(node, ast.Call)]
    starts = [call for call in calls if call.args and ast.unparse(call.args[0]) == "guard"]
    assert len(starts) == len(LOOPS) + 3, "the loops of every engine; the watcher, and those that are given, twice"
    assert [ast.unparse(call) for call in starts if len(call.args) not in (4, 5)] == []


async def test_health_reports_the_last_answer_and_an_empty_heartbeat_does_not_count(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], handler=sleeping(25))
    engine = watched(shelf, rests=True)
    async with running(engine):
        await trio.sleep(21)
        assert engine.vitals.examine().answered_at == 20.0  # The second beat.
        await trio.sleep(1000)
        last = engine.vitals.examine().answered_at
        assert 25 <= last < 40
        shelf.claim_faults = [NotNowError()]
        engine.waker.look()
        await trio.lowlevel.checkpoint()
        await trio.lowlevel.checkpoint()
        assert engine.vitals.examine().answered_at == last


# --- Leases ---


async def test_heartbeat_is_unhealthy_as_soon_as_a_run_fenced_itself_until_renewals_succeed(
    autojump_clock: MockClock,
) -> None:
    shelf, faults = Shelf(items=[1], handler=sleeping(1000)), ForEver()
    shelf.renewal_faults = faults
    engine = watched(shelf, heartbeat_interval=10.0, cleanup_timeout=5.0)

    async def cleans_up(run: Run[int]) -> None:
        try:
            await trio.sleep(1000)
        finally:
            with run.cleaning_up(3):
                await trio.sleep(3)

    shelf.handler = cleans_up
    shelf.settling_faults = faults  # What fenced itself cannot be given back either.
    async with running(engine):
        lease_deadline = 30 - 5 - 10 / 6
        await trio.sleep(lease_deadline - 0.01)
        (late,) = engine.vitals.examine().reasons
        assert late.startswith("the heartbeat has failed for 13.3 s")
        await trio.sleep(0.02)
        assert engine.vitals.examine().reasons == (
            "the heartbeat could not renew 1 claim in time; the runs were stopped: NotNowError: no primary",
        )
        faults.clear()
        await trio.sleep(1.1)
        assert shelf.settled == {}, "its clean-up goes on, and it is held"
        assert engine.vitals.examine().reasons == ()
        await trio.sleep(2)
        assert set(shelf.settled) == {1}
        assert engine.vitals.examine().reasons == ()


async def test_health_reports_a_fenced_run_before_the_heartbeat_itself_is_late(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], claim_takes=24.0)  # So late that its lease is as good as over.
    shelf.settling_takes = 5.0
    engine = watched(shelf, heartbeat_interval=10.0, cleanup_timeout=5.0, stuck_after=1000.0)
    async with running(engine):
        await trio.sleep(24.1)
        (reported,) = engine.vitals.examine().reasons
        assert reported.startswith("the heartbeat could not renew 1 claim in time")
        await trio.sleep(20)
        assert engine.vitals.examine().reasons == ()


async def test_claim_taken_by_another_instance_leaves_the_heartbeat_healthy(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1], lost={1}, handler=sleeping(1000))
    engine = watched(shelf)
    async with running(engine):
        for _ in range(60):
            await trio.sleep(1)
            assert engine.vitals.examine().reasons == ()


# --- Crashes, and an end that does not come ---


@pytest.mark.parametrize("name", FAULTS)
async def test_loop_that_crashed_is_named_while_the_engine_ends_and_after(autojump_clock: MockClock, name: str) -> None:
    shelf = Shelf(items=[1, 2], handler=sleeping(30))
    engine = watched(shelf)
    crash = ForEver()
    crash[0] = ZeroDivisionError("a bug")
    async with running(engine):
        await trio.sleep(0.5)
        FAULTS[name](shelf, crash)
        engine.waker.look()
        engine.slots.set_limit("more", 1)
        with trio.move_on_after(100):
            await engine.stop.cutting.wait()
        crashed = f"the {name} crashed, which stops the engine: ZeroDivisionError: a bug"
        assert engine.vitals.examine().reasons == (crashed,)
    assert engine.vitals.examine().reasons == (crashed, "the engine has ended")


async def test_health_names_a_crash_outside_the_loops(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1])

    async def interrupted(run: Run[int]) -> None:
        raise KeyboardInterrupt

    shelf.handler = interrupted
    engine = watched(shelf)
    async with running(engine):
        await engine.stop.cutting.wait()
        assert engine.vitals.examine().reasons == ("the engine crashed: KeyboardInterrupt",)


async def test_leaving_that_waits_for_a_handler_beyond_all_its_time_is_unhealthy(autojump_clock: MockClock) -> None:
    async def swallows(run: Run[int]) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(60)

    engine = watched(Shelf(items=[1], handler=swallows), shutdown_timeout=10.0, cleanup_timeout=5.0)
    async with running(engine):
        await trio.sleep(1)
        engine.stop.drain()
        await trio.sleep(10 + 5 + HARD_END_AFTER)
        assert engine.vitals.examine().reasons == ()
        await trio.sleep(0.1)
        (reason,) = engine.vitals.examine().reasons
        assert reason == "shutdown is overdue: it is waiting for 1 handler"


# --- The event loop ---


@pytest.mark.full
async def test_event_loop_that_is_blocked_is_seen_from_another_thread_and_over_when_it_goes_on() -> None:
    seen: list[Examined] = []

    def look_from_a_thread(until: Callable[[], bool]) -> None:
        def look() -> None:
            while not until():
                seen.append(engine.vitals.examine())
                time.sleep(0.01)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()  # This is what blocks the event loop.

    engine = engine_of(Shelf())
    with hearing("the event loop is blocked") as blocked, hearing("the event loop was blocked") as going_on:
        async with running(engine):
            while engine.watchdog.lag is None or answered_at(engine.watchdog) == 0.0:
                await trio.sleep(0.01)
            look_from_a_thread(lambda: bool(seen and seen[-1].reasons and blocked.logged.is_set()))
            while not going_on.logged.is_set() or engine.vitals.examine().reasons:
                await trio.sleep(0.01)
    assert seen[0].reasons == ()
    assert seen[-1].event_loop_lag is not None
    assert seen[-1].event_loop_lag >= 1
    (reason,) = seen[-1].reasons
    assert re.match(r"the event loop did not answer for [1-9]", reason)  # How late it was seen is the machine's affair.


async def test_virtual_time_has_no_lag_of_the_event_loop(autojump_clock: MockClock) -> None:
    engine = watched(Shelf(), rests=True)
    async with running(engine):
        await trio.sleep(1000)
        assert engine.vitals.examine().event_loop_lag is None


async def test_health_of_a_run_in_virtual_time_is_the_same_each_time(autojump_clock: MockClock) -> None:
    async def one_life() -> list[Examined]:
        shelf = Shelf(items=list(range(20)), handler=sleeping(7), claim_faults=[NotNowError() for _ in range(3)])
        engine = watched(shelf, rests=True)
        seen = []
        async with running(engine):
            for _ in range(50):
                await trio.sleep(1.3)
                seen.append(engine.vitals.examine())
        return seen

    lives = []
    for _ in range(2):
        began = trio.current_time()
        lives.append([_shifted(found, began) for found in await one_life()])
    assert lives[0] == lives[1]


def _shifted(found: Examined, by: float) -> object:
    loops = [(loop.name, loop.complaint, round(loop.progressed_at - by, 6), round(loop.lag, 6)) for loop in found.loops]
    return round(found.now - by, 6), round(found.answered_at - by, 6), found.reasons, sorted(loops)


HANDLERS: dict[str, Callable[[Run[int]], Awaitable[object]]] = {"quick": sleeping(0), "slow": sleeping(3)}


@pytest.mark.parametrize("handler", HANDLERS)
async def test_acts_are_counted_with_what_they_were_of(autojump_clock: MockClock, handler: str) -> None:
    shelf = Shelf(items=list(range(50)), handler=HANDLERS[handler], settling_takes=1.0)
    engine = watched(shelf, concurrency=7, heartbeat_interval=2.0)
    async with running(engine):
        await trio.sleep(60)
    progress_of = engine.vitals.progress_of
    assert progress_of("claimer").batches.total == progress_of("settler").batches.total == 50
    assert progress_of("settler").batches.count == len(shelf.batches)
    assert progress_of("settler").batches.largest == max(map(len, shelf.batches))
    assert progress_of("heartbeat").batches.total == sum(len(claims) for _, claims in shelf.renewed)
    assert progress_of("claimer").batches.largest == 7


async def test_lost_claims_do_not_count_as_renewals(autojump_clock: MockClock) -> None:
    shelf = Shelf(items=[1, 2, 3], lost={2}, handler=sleeping(15))
    engine = watched(shelf, heartbeat_interval=10.0)
    async with running(engine):
        await trio.sleep(30)
    assert shelf.renewed == [(10.0, [1, 2, 3])]
    assert engine.vitals.progress_of("heartbeat").batches.total == 2
