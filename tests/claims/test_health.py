"""What claims report about themselves: whether they are healthy, and what they have done."""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar

import pytest
import trio
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish, kill, take_away
from tests.support.engine_log import block_the_loop_until, hearing
from tests.support.full_documents import put_full
from tests.support.internals import interferences_of_claims, parts_of
from trio_monque import Claim, Health, open_claims, run_claims
from trio_monque.claims import ClaimsStatistics, RunningClaims
from trio_monque.engine import pauses
from trio_monque.errors import FilterStillMatchesError
from trio_monque.scheduler import LoopHealth
from trio_monque.store.driver.types import Collection
from trio_monque.testing import advance, now, quiesce, start_virtual_time

START: Final = datetime(2030, 1, 1, tzinfo=UTC)
LOOPS: Final = {"claimer", "waker", "settler", "heartbeat", "orphan releaser", "reaper", "filter watcher"}

T = TypeVar("T")


def loop_of(health: Health, name: str) -> LoopHealth:
    (loop,) = (loop for loop in health.loops if loop.name == name)
    return loop


def all_ends(one: ClaimsStatistics) -> int:
    return one.finished + one.failed + one.released + one.lost


class Failing:
    """Every call of that purpose fails."""

    def __init__(self, purpose: str) -> None:
        self._purpose = purpose

    def takes(self, purpose: str) -> bool:
        return purpose == self._purpose

    def inject(self, call: Callable[[], T]) -> T:
        raise AutoReconnect("no primary")


@contextmanager
def failing(claims: RunningClaims, purpose: str) -> Iterator[None]:
    fault = Failing(purpose)
    lists = interferences_of_claims(parts_of(claims).sources)
    for one in lists:
        one.append(fault)
    yield
    for one in lists:
        if fault in one:
            one.remove(fault)


# --- Health ---


async def test_claims_are_healthy_from_their_start_to_their_end(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)

    async def handler(claim: Claim[Any]) -> None:
        await trio.sleep(10)
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        claims: RunningClaims = await nursery.start(partial(run_claims, things, OPEN, handler))
        assert claims.is_healthy()
        await trio.sleep(5)
        health = claims.health()
        assert (health.healthy, health.reasons, health.warnings, health.draining) == (True, (), (), False)
        assert {loop.name for loop in health.loops} == LOOPS
        assert all(loop.healthy for loop in health.loops)
        claims.drain()
        assert claims.is_healthy(), "it does what it is asked to"
        assert claims.health().draining
    assert not claims.is_healthy()
    assert claims.health().reasons == ("the claims instance has ended",)
    assert claims.statistics().uptime == 10
    assert {loop["name"] for loop in dataclasses.asdict(claims.health())["loops"]} == LOOPS
    assert dataclasses.asdict(claims.statistics())["finished"] == 1


@pytest.mark.parametrize(
    ("purpose", "name"), [("look for documents to claim", "claimer"), ("renew claims", "heartbeat")]
)
async def test_database_that_fails_makes_claims_unhealthy_with_loop_and_cause_until_it_answers(
    things: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, purpose: str, name: str
) -> None:
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)  # The outage takes virtual time.
    start_virtual_time(START)
    fill(things, 1)
    async with open_claims(things, OPEN, heartbeat_interval=30.0, operation_timeout=10.0) as claims:
        claim = await anext(claims)
        async with claim:
            with failing(claims, purpose):
                began = trio.current_time()
                while claims.is_healthy():
                    assert trio.current_time() - began < 30 + 30 + 1, "the next attempt, and max(2 * 10, 30)"
                    await trio.sleep(0.5)
                assert trio.current_time() - began > 30, "an election is no reason for alarm"
                health = claims.health()
            loop = loop_of(health, name)
            assert health.reasons == (loop.reason,)
            assert loop.reason is not None
            assert re.fullmatch(rf"the {name} has failed for 30\.\d s and keeps trying: .*no primary", loop.reason)
            assert loop.lag > 30
            assert loop.last_error_at is not None
            assert START < loop.last_error_at <= now() < START + timedelta(minutes=2)
            assert [other.name for other in health.loops if not other.healthy] == [name]
            await advance(5)
            assert claims.is_healthy()
            assert loop_of(claims.health(), name).last_error == loop.last_error
            await claim.finish(DONE)


async def test_finished_document_that_still_matches_is_the_reason_after_the_end(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)

    async def handler(claim: Claim[Any]) -> None:
        await claim.finish()

    with pytest.raises(ExceptionGroup) as caught:
        async with trio.open_nursery() as nursery:
            claims: RunningClaims = await nursery.start(partial(run_claims, things, OPEN, handler))
    assert caught.group_contains(FilterStillMatchesError)
    crashed, ended = claims.health().reasons
    assert crashed.startswith("the claims instance crashed: FilterStillMatchesError: ")
    assert ended == "the claims instance has ended"


@pytest.mark.full
async def test_block_that_holds_up_the_loop_is_a_reason_for_a_thread_that_asks(things: Collection) -> None:
    fill(things, 2)
    seen: list[Health] = []
    counted: list[ClaimsStatistics] = []

    async with open_claims(things, OPEN) as claims:

        def look() -> None:
            while not seen or claims.is_healthy():
                seen.append(claims.health())
                time.sleep(0.01)
            seen.append(claims.health())
            counted.append(claims.statistics())

        async with await anext(claims) as claim:
            thread = threading.Thread(target=look)
            thread.start()
            thread.join()  # The loop is blocked for as long as the claims look healthy.
            await claim.finish(DONE)
        while not claims.is_healthy():
            await trio.sleep(0.01)
    assert seen[0].healthy
    (reason,) = seen[-1].reasons
    assert re.match(r"the event loop did not answer for [1-9]", reason)
    assert (counted[0].claimed, counted[0].running, counted[0].waiting) == (2, 1, 1)
    assert claims.report is not None
    assert claims.report.loop_blocked >= 1  # A busy machine may add some of its own.


@pytest.mark.full
async def test_block_that_holds_up_the_loop_is_named_in_the_log(things: Collection) -> None:
    fill(things, 1)
    with hearing("the event loop is blocked") as blocked, hearing("the event loop was blocked") as going_on:

        async def child() -> None:
            block_the_loop_until(blocked)

        async def beside() -> None:
            while not going_on.logged.is_set():
                await trio.sleep(0.01)
            going_on.logged.clear()
            blocked.logged.clear()
            block_the_loop_until(blocked)

        async with open_claims(things, OPEN) as claims, trio.open_nursery() as around:
            async with await anext(claims) as claim:
                async with trio.open_nursery() as inside:
                    inside.start_soon(child)
                around.start_soon(beside)
                while len(blocked.messages) < 2 or not going_on.logged.is_set():
                    await trio.sleep(0.01)
                await claim.finish(DONE)
    assert "by the block of 0 (attempt 1):" in blocked.messages[0]
    assert "block_the_loop_until(blocked)" in blocked.messages[0]
    assert "by something outside of the handlers:" in blocked.messages[-1], "of a nursery around the block"


async def test_documents_that_are_skipped_are_counted_and_the_claims_are_healthy(
    things: Collection, autojump_clock: MockClock
) -> None:
    put_full(things, 0, state="new")
    things.insert_one({"_id": "unreadable", "state": "new", "lock": "no lock"})
    fill(things, 3)
    async with open_claims(things, OPEN) as claims:
        for _ in range(3):
            async with await anext(claims) as claim:
                await claim.finish(DONE)
        await advance(5)
        assert claims.statistics().broken == claims.health().broken == 2
        assert claims.is_healthy()


# --- Statistics ---


async def hang(_: Claim[Any]) -> None:
    await trio.sleep_forever()


async def test_each_claim_is_counted_once_by_how_it_ended(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 12)

    async def handler(claim: Claim[Any]) -> None:
        await trio.sleep(1 + claim.id % 3)
        if claim.attempt > 1 or claim.id % 2:
            await claim.finish(DONE)
            await trio.sleep(1)  # It goes on without a lock, and keeps its place.
        elif claim.id == 4 and not released:
            released.append(claim.id)
            await claim.release(delay=2)
        elif claim.id == 6:
            take_away(things, 6)
            await trio.sleep(1000)
        else:
            raise ValueError("once")

    released: list[int] = []
    moments: list[ClaimsStatistics] = []
    async with trio.open_nursery() as nursery:
        claims: RunningClaims = await nursery.start(
            partial(run_claims, things, OPEN, handler, concurrency=3, max_attempts=2, retry_jitter=0)
        )
        for _ in range(300):
            await trio.sleep(0.25)
            moments.append(one := claims.statistics())
            assert one.claimed == all_ends(one) + one.held
            assert one.held <= one.running + one.waiting + one.unsettled <= one.held + 3
        claims.drain()
    last = claims.statistics()
    report = claims.report
    assert report is not None
    for name in ("finished", "failed", "released", "lost", "rescued", "dead_lettered"):
        assert getattr(last, name) == getattr(report, name), name
    assert (last.finished, last.failed, last.released, last.lost) == (11, 5, 1, 1)
    assert (last.claimed, last.held, last.running, last.waiting, last.unsettled) == (18, 0, 0, 0, 0)
    assert max(one.running for one in moments) == 3
    assert max(one.waiting for one in moments) > 0, "while handlers go on after `finish`, further documents wait"
    assert 1 <= last.largest_claim_batch <= 3
    assert last.claim_batches * last.largest_claim_batch >= 18
    assert last.settlement_batches >= 1


async def test_claims_that_the_loop_has_not_taken_wait_and_do_not_run(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 5)
    async with open_claims(things, OPEN, concurrency=3) as claims:
        await quiesce()
        before = claims.statistics()
        async with await anext(claims) as claim:
            during = claims.statistics()
            await claim.finish(DONE)
    assert (before.held, before.running, before.waiting, before.free_slots) == (3, 0, 3, 0)
    assert (during.running, during.waiting) == (1, 2)
    last = claims.statistics()
    assert (last.finished, last.running, last.waiting) == (1, 0, 0)
    assert last.released == last.claimed - 1


async def test_renewals_and_rescues_are_counted(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)
    async with trio.open_nursery() as nursery:
        dying: RunningClaims = await nursery.start(partial(run_claims, things, OPEN, hang))
        await quiesce()
        claims: RunningClaims = await nursery.start(partial(run_claims, things, OPEN, finish))
        await advance(21)
        assert (dying.statistics().renewals, claims.statistics().renewals) == (3, 0)
        await kill(dying)
        await advance(180)
        counted = claims.statistics()
        claims.drain()
    assert (counted.rescued, counted.finished, counted.failed) == (3, 3, 0)
