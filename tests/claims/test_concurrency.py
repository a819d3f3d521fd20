"""How many work at once: never more than they may, although the next are claimed while results are written."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, Gauge, fill, states, take_away
from trio_monque import Claim, open_claims, run_claims
from trio_monque.store.driver.types import Collection


@pytest.mark.full
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_handlers_are_never_more_than_they_may_be(
    things: Collection, autojump_clock: MockClock, concurrency: int
) -> None:
    fill(things, 40)
    work = Gauge()

    async def handler(claim: Claim[Any]) -> None:
        with work:
            await trio.sleep(0.01 * (claim.id % 3))
            await claim.finish(DONE)
            await trio.sleep(0.5 * (claim.id % 2))  # Some go on, without the lock.

    report = await run_claims(things, OPEN, handler, wait=False, concurrency=concurrency)
    assert report.finished == 40
    assert (work.most, work.now) == (concurrency, 0)


async def test_what_waits_for_one_that_goes_on_has_all_of_its_time(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 2)
    left: list[float] = []

    async def handler(claim: Claim[Any]) -> None:
        left.append(claim.deadline - trio.current_time())
        await claim.finish(DONE)
        await trio.sleep(50)

    report = await run_claims(things, OPEN, handler, wait=False, concurrency=1, timeout=60)
    assert (report.finished, report.failed, left) == (2, 0, [60, 60])


async def test_what_waits_for_one_that_goes_on_is_given_back_when_the_end_is_asked_for(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 2)
    begun: list[Any] = []

    async def handler(claim: Claim[Any]) -> None:
        begun.append(claim.id)
        await claim.finish(DONE)
        await trio.sleep(20)

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(
            lambda task_status: run_claims(things, OPEN, handler, concurrency=1, task_status=task_status)
        )
        await trio.sleep(10)
        assert things.count_documents({"lock.by": claims.id}) == 1
        claims.drain()
    assert claims.report is not None
    assert (len(begun), claims.report.finished, claims.report.released) == (1, 1, 1)
    assert things.count_documents({"state": "new", "lock.by": None, "lock.tries": 0}) == 1


@pytest.mark.full
@pytest.mark.parametrize("concurrency", [1, 3])
async def test_loop_is_given_no_more_than_it_may_have_out(
    things: Collection, autojump_clock: MockClock, concurrency: int
) -> None:
    fill(things, 30)
    work = Gauge()

    async def work_on(claim: Claim[Any]) -> None:
        with work:
            async with claim:
                await trio.sleep(0.01 * (claim.id % 3))
                await claim.finish(DONE)

    async with (
        open_claims(things, OPEN, wait=False, concurrency=concurrency) as claims,
        trio.open_nursery() as nursery,
    ):
        async for claim in claims:
            nursery.start_soon(work_on, claim)
    assert claims.report is not None
    assert (claims.report.finished, work.most) == (30, concurrency)


async def test_claim_whose_lock_is_lost_before_a_task_takes_it_is_not_handed_out(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 3)
    taken: list[Any] = []
    async with open_claims(things, OPEN, wait=False, concurrency=2, sort=[("_id", 1)]) as claims:
        async for claim in claims:
            taken.append(claim.id)
            async with claim:
                if claim.id == 0:
                    take_away(things, 1)  # The engine holds it already, for a second task.
                    await trio.sleep(60)
                await claim.finish(DONE)
    assert taken == [0, 2]
    assert states(things)[:3] == ["done", "new", "done"]
    assert claims.report is not None
    assert (claims.report.lost, claims.report.finished) == (1, 2)


async def test_lost_claim_that_waits_for_a_task_leaves_room_for_the_next(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    async with open_claims(things, OPEN, concurrency=1) as claims:
        await trio.sleep(1)  # It is claimed, and no task asks for it.
        take_away(things)
        await trio.sleep(60)
        things.insert_one({"_id": 1, "state": "new"})
        with trio.fail_after(60):
            claim = await anext(claims)
        assert claim.id == 1
        await claim.finish(DONE)
    assert claims.report is not None
    assert (claims.report.lost, claims.report.finished) == (1, 1)
