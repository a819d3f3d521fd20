"""`wait=False`: when nothing is left. In virtual time."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish, kill, later, lock_of, states, take_away
from trio_monque import open_claims, run_claims
from trio_monque.claims import dead_letters
from trio_monque.locks_and_dead_letters import NEVER
from trio_monque.store.driver.types import Collection


def lock(things: Collection, value: object) -> None:
    things.update_one({"_id": 0}, {"$set": {"lock": value}})


async def test_empty_collection_is_left_at_once(things: Collection, autojump_clock: MockClock) -> None:
    report = await run_claims(things, OPEN, finish, wait=False)
    assert trio.current_time() == 0
    assert report == type(report)()


async def test_all_done_is_left_at_once(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 100)
    await run_claims(things, OPEN, finish, wait=False)
    assert trio.current_time() == 0
    assert states(things) == ["done"] * 100


async def test_iterator_ends_and_its_body_goes_on(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)
    async with open_claims(things, OPEN, wait=False) as claims:
        async for claim in claims:
            await claim.finish(DONE)
        assert claims.report is None or claims.report.finished == 3
        with pytest.raises(StopAsyncIteration):
            await anext(claims)
        await trio.sleep(100)
    assert trio.current_time() == 100


async def test_waits_for_a_backoff(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    lock(things, {"by": None, "until": later(300), "tries": 2})
    report = await run_claims(things, OPEN, finish, wait=False, poll_interval=20)
    assert report.finished == 1
    assert trio.current_time() == 300


@pytest.mark.full
async def test_waits_for_what_another_live_instance_holds(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)

    async def slow(claim: Any) -> None:
        await trio.sleep(200)
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        other = await nursery.start(lambda task_status: run_claims(things, OPEN, slow, task_status=task_status))
        await trio.sleep(1)
        report = await run_claims(things, OPEN, finish, wait=False)
        assert report.finished == 0
        assert 200 <= trio.current_time() <= 202
        other.drain()


async def test_waits_for_a_dead_instance_and_does_its_work(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)
    async with open_claims(things, OPEN) as claims:
        await anext(claims)
        await trio.sleep(15)
        await kill(claims)
    died = trio.current_time()
    assert things.count_documents({"lock.by": claims.id}) == 3
    report = await run_claims(things, OPEN, finish, wait=False)
    assert (report.finished, report.rescued) == (3, 3)
    assert died + 40 < trio.current_time() <= died + 60 + 10 + 3  # A lease, a pass, and a backoff.


async def test_does_not_wait_for_a_live_foreign_lock(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 2)
    take_away(things)
    held = lock_of(things)
    report = await run_claims(things, OPEN, finish, wait=False)
    assert trio.current_time() == 0
    assert report.finished == 1
    assert lock_of(things) == held


async def test_takes_an_expired_foreign_lock_after_the_skew(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    lock(things, {"by": "them", "until": later(-2)})
    attempts = []

    async def handler(claim: Any) -> None:
        attempts.append((claim.attempt, trio.current_time()))
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False, clock_skew=30.0, retry_jitter=0.0)
    assert attempts == [(2, 28.0 + 2.0)]
    assert (report.finished, report.rescued) == (1, 1)


async def test_does_not_wait_for_what_is_set_aside(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    lock(things, {"by": None, "until": NEVER, "tries": 10, "error": "no"})
    before = things.find_one()
    report = await run_claims(things, OPEN, finish, wait=False)
    assert (trio.current_time(), report.finished) == (0, 0)
    assert things.find_one() == before


UNKNOWN: list[Any] = [
    "locked",
    5,
    True,
    [],
    [{"by": None, "until": None}],
    {},
    {"x": 1},
    {"by": 5, "until": None},
    {"by": "them"},
    {"by": "them", "until": "soon"},
    {"by": None, "until": "soon"},
    {"by": None, "until": [None]},
    {"by": [None], "until": None},
]


async def test_unreadable_lock_is_skipped_logged_once_and_left_unchanged(
    things: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    count = len(UNKNOWN)
    fill(things, count + 2)
    for number, value in enumerate(UNKNOWN):
        things.update_one({"_id": number}, {"$set": {"lock": value}})
    before = list(things.find({"_id": {"$lt": count}}, sort=[("_id", 1)]))
    async with trio.open_nursery() as nursery:
        claims = await nursery.start(lambda task_status: run_claims(things, OPEN, finish, task_status=task_status))
        await trio.sleep(200)
        claims.drain()
    assert list(things.find({"_id": {"$lt": count}}, sort=[("_id", 1)])) == before
    assert states(things) == ["new"] * count + ["done", "done"]
    assert sum("is not a lock" in record.getMessage() for record in caplog.records) == count
    began = trio.current_time()
    report = await run_claims(things, OPEN, finish, wait=False)
    assert (trio.current_time() - began, report.finished) == (0, 0)
    assert await dead_letters(things) == []


async def test_what_comes_while_something_is_held_is_done_too(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        if claim.id == 0:
            await trio.sleep(10)
            things.insert_one({"_id": 5, "state": "new"})
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert report.finished == 2


async def test_waiting_claims_see_what_comes_within_a_poll(things: Collection, autojump_clock: MockClock) -> None:
    starts = []

    async def handler(claim: Any) -> None:
        starts.append((claim.id, trio.current_time()))
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(
            lambda task_status: run_claims(things, OPEN, handler, poll_interval=3.0, task_status=task_status)
        )
        await trio.sleep(10)
        fill(things, 1)
        await trio.sleep(10)
        claims.drain()
    assert len(starts) == 1
    assert 10 <= starts[0][1] <= 13


FREE: list[Any] = [None, {"by": None}, {"by": None, "until": None}, {"by": None, "until": None, "tries": "many"}]


@pytest.mark.parametrize("value", FREE, ids=str)
async def test_document_with_a_free_lock_is_claimed(
    things: Collection, autojump_clock: MockClock, value: object
) -> None:
    fill(things, 1)
    lock(things, value)

    async def handler(claim: Any) -> None:
        assert claim.attempt == 1
        assert set(claim.document["lock"]) == {"by", "until", "every", "token", "tries"}
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert (trio.current_time(), report.finished) == (0, 1)
