"""A filter that the result does not make false ends the claims; a document that is opened again is new work."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, lock_of, states
from tests.support.thoroughly import one_in
from trio_monque import MonqueError, open_claims, run_claims
from trio_monque.errors import FilterStillMatchesError
from trio_monque.store.driver.types import Collection
from trio_monque.testing import quiesce


@pytest.mark.parametrize(
    ("result", "wait", "concurrency"),
    one_in(3, [None, {"$set": {"seen": True}}, {"$inc": {"runs": 1}}], [True, False], [1, 4, 50]),
)
async def test_filter_that_stays_true_is_an_error_at_the_second_pass(
    things: Collection, autojump_clock: MockClock, result: Any, *, wait: bool, concurrency: int
) -> None:
    fill(things, 10)
    runs: list[int] = []

    async def handler(claim: Any) -> None:
        runs.append(claim.id)
        await trio.sleep(0.01)
        await claim.finish(result)

    with pytest.raises(FilterStillMatchesError) as caught:
        await run_claims(things, OPEN, handler, wait=wait, concurrency=concurrency)
    assert isinstance(caught.value, MonqueError)
    assert "'state': 'new'" in str(caught.value)
    assert len(runs) == len(set(runs)) <= 10  # Each at most once.
    assert things.count_documents({"lock.by": {"$ne": None}}) == 0
    assert things.count_documents({"lock.tries": {"$gt": 0}}) == 0
    assert trio.current_time() < 5


async def test_body_of_such_a_loop_is_cancelled_and_the_error_is_raised_alone(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 3)
    seen = []
    with pytest.raises(FilterStillMatchesError):
        async with open_claims(things, OPEN, wait=False) as claims:
            async for claim in claims:
                async with claim:
                    seen.append(claim.id)
                    await claim.finish({"$set": {"seen": True}})
    assert len(seen) == len(set(seen)) <= 3
    assert things.count_documents({"lock.by": {"$ne": None}}) == 0


async def test_handlers_that_are_at_work_finish_theirs_when_that_is_noticed(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 3)

    async def handler(claim: Any) -> None:
        if claim.id == 0:
            await claim.finish({"$set": {"seen": True}})
        else:
            await trio.sleep(10)
            await claim.finish(DONE)

    with pytest.raises(FilterStillMatchesError) as caught:
        await run_claims(things, OPEN, handler)
    assert "0" in str(caught.value)
    assert states(things) == ["new", "done", "done"]


@pytest.mark.parametrize("times", [1, 3])
async def test_document_that_another_writer_opens_again_is_claimed_again(
    things: Collection, autojump_clock: MockClock, times: int
) -> None:
    fill(things, 3)
    runs: list[int] = []

    async def handler(claim: Any) -> None:
        runs.append(claim.id)
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(lambda task_status: run_claims(things, OPEN, handler, task_status=task_status))
        for _ in range(times):
            await trio.sleep(5)
            await quiesce()
            things.update_many({}, {"$set": OPEN})
        await trio.sleep(5)
        claims.drain()
    assert sorted(runs) == sorted([0, 1, 2] * (times + 1))


async def test_failed_and_released_documents_are_claimed_again(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    runs = []

    async def handler(claim: Any) -> None:
        runs.append(claim.attempt)
        if len(runs) == 1:
            raise ZeroDivisionError
        if len(runs) == 2:
            await claim.release()
        else:
            await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert runs == [1, 2, 2]
    assert report.finished == 1


async def test_document_that_matches_again_by_its_date_is_new_work(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    runs = []

    async def handler(claim: Any) -> None:
        runs.append(trio.current_time())
        await claim.finish({"$inc": {"runs": 1}, **(DONE if len(runs) == 2 else {"$set": {"state": "half"}})})

    async def half_time() -> None:
        await trio.sleep(3)
        things.update_one({}, {"$set": OPEN})

    async with trio.open_nursery() as nursery:
        nursery.start_soon(half_time)
        claims = await nursery.start(lambda task_status: run_claims(things, OPEN, handler, task_status=task_status))
        await trio.sleep(6)
        claims.drain()
    assert len(runs) == 2
    assert lock_of(things) is None
