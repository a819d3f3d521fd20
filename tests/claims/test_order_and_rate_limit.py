"""In which order documents are claimed, how fast, and which collections are too large to be searched."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish
from tests.support.thoroughly import one_in
from trio_monque import open_claims, run_claims
from trio_monque.claims import create_claim_index
from trio_monque.errors import MissingIndexError
from trio_monque.store import documents
from trio_monque.store.driver.types import Collection

SORTS: list[tuple[Any, Any]] = [
    ([("rank", 1)], lambda one: one["rank"]),
    ([("rank", -1)], lambda one: -one["rank"]),
    ((("group", -1), ("rank", 1)), lambda one: (-one["group"], one["rank"])),
    ([["deep.rank", 1]], lambda one: one["rank"]),
]


WAYS = [(has_index, concurrency) for concurrency in (1, 7) for has_index in (True, False)]


@pytest.mark.full
@pytest.mark.parametrize(("sort_and_key", "way"), one_in(6, SORTS, WAYS))
async def test_documents_are_claimed_in_the_order_of_sort(
    things: Collection, autojump_clock: MockClock, sort_and_key: tuple[Any, Any], way: tuple[bool, int]
) -> None:
    (sort, key), (has_index, concurrency) = sort_and_key, way
    ranks = list(range(60))
    random.Random(1).shuffle(ranks)
    things.insert_many(
        [{"state": "new", "rank": rank, "group": rank % 3, "deep": {"rank": rank}, "pad": "x"} for rank in ranks]
    )
    if has_index:
        await create_claim_index(things, OPEN, sort=sort)
    in_order = [one["_id"] for one in sorted(things.find(), key=key)]
    seen = []
    async with open_claims(things, OPEN, wait=False, sort=sort, concurrency=concurrency) as claims:
        first = [await anext(claims) for _ in range(concurrency)]
        assert [claim.id for claim in first] == in_order[:concurrency]
        for claim in first:
            seen.append(claim.id)
            await claim.finish(DONE)
        async for claim in claims:
            seen.append(claim.id)
            await claim.finish(DONE)
    assert sorted(seen) == sorted(in_order)
    if concurrency == 1:  # Of several, two claims may be in flight at once, and either be answered first.
        assert seen == in_order


@pytest.mark.parametrize("rate", one_in(5, [0.1, 1, 7.5, 3, 30], first=2))
async def test_starts_are_evenly_spaced(things: Collection, autojump_clock: MockClock, rate: float) -> None:
    fill(things, 30)
    starts = []

    async def handler(claim: Any) -> None:
        starts.append(trio.current_time())
        await trio.sleep(random.Random(claim.id).random() * 3 / rate)
        await claim.finish(DONE)

    await run_claims(things, OPEN, handler, wait=False, rate_limit=rate, concurrency=10)
    assert [round(later - earlier, 6) for earlier, later in pairwise(starts)] == [round(1 / rate, 6)] * 29


async def test_tries_count_for_the_pace(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 10)
    starts = []

    async def handler(claim: Any) -> None:
        starts.append(trio.current_time())
        if claim.attempt == 1:
            raise ZeroDivisionError
        await claim.finish(DONE)

    await run_claims(things, OPEN, handler, wait=False, rate_limit=2, concurrency=10, base_retry_interval=0.1)
    assert len(starts) == 20
    assert all(later - earlier >= 0.4999 for earlier, later in pairwise(starts))
    assert starts[-1] < 11


@pytest.mark.full
async def test_fast_pace_is_kept_on_the_whole(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 250)
    starts = []

    async def handler(claim: Any) -> None:
        starts.append(trio.current_time())
        await claim.finish(DONE)

    await run_claims(things, OPEN, handler, wait=False, rate_limit=200, concurrency=50)
    assert 250 / 200 - 0.05 <= starts[-1] <= 250 / 200 + 0.1
    for number, start in enumerate(starts):
        assert number + 1 <= 200 * (start + 0.03) + 1.01


async def test_what_was_not_started_is_not_made_up_for(things: Collection, autojump_clock: MockClock) -> None:
    starts = []

    async def handler(claim: Any) -> None:
        starts.append(trio.current_time())
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(
            lambda task_status: run_claims(things, OPEN, handler, rate_limit=1, concurrency=10, task_status=task_status)
        )
        await trio.sleep(100)
        fill(things, 5)
        await trio.sleep(20)
        claims.drain()
    assert len(starts) == 5
    assert all(round(later - earlier, 6) >= 1 for earlier, later in pairwise(starts))


async def test_pace_holds_nothing_that_it_does_not_start(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 10)
    held = []

    async def handler(claim: Any) -> None:
        held.append(things.count_documents({"lock.by": {"$ne": None}}))
        await claim.finish(DONE)

    await run_claims(things, OPEN, handler, wait=False, rate_limit=1, concurrency=5)
    assert held == [1] * 10


@pytest.fixture
def large(things: Collection, monkeypatch: pytest.MonkeyPatch) -> Collection:
    monkeypatch.setattr(documents.indexes, "LARGE", 50)
    fill(things, 51)
    return things


FILTERS: list[dict[str, Any]] = [
    {"state": "new"},
    {"done_at": {"$exists": False}},
    {"state": {"$ne": "done"}},
    {"state": {"$nin": ["done", "failed"]}},
    {"state": {"$in": ["new", "again"]}},
    {"$or": [{"state": "new"}, {"state": "again"}]},
    {"state": {"$in": ["new"]}, "n.x": {"$gte": 0}},
]


@pytest.mark.parametrize("wanted", one_in(4, FILTERS), ids=str)
async def test_large_collection_is_not_searched_without_an_index_unless_that_is_asked_for(
    large: Collection, autojump_clock: MockClock, wanted: dict[str, Any]
) -> None:
    for _ in range(2):
        with pytest.raises(MissingIndexError, match="create_claim_index") as caught:
            async with open_claims(large, wanted):
                raise AssertionError("never entered")
        assert "allow_scan=True" in str(caught.value)
        with pytest.raises(MissingIndexError):
            await run_claims(large, wanted, finish, wait=False)
    assert large.count_documents({"lock": {"$exists": True}}) == 0
    update = {"$set": {"state": "done", "done_at": 1}}

    async def handler(claim: Any) -> None:
        await claim.finish(update)

    report = await run_claims(large, {**wanted, "_id": {"$lt": 5}}, handler, wait=False, allow_scan=True)
    assert report.finished == 5
    name = await create_claim_index(large, wanted)
    assert name in large.index_information()
    assert await create_claim_index(large, wanted) == name
    report = await run_claims(large, wanted, handler, wait=False)
    assert report.finished == 46


async def test_index_that_was_there_is_good_enough(large: Collection, autojump_clock: MockClock) -> None:
    large.create_index("state")
    assert (await run_claims(large, OPEN, finish, wait=False)).finished == 51


async def test_small_collection_is_searched_without_an_index(
    things: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents.indexes, "LARGE", 51)
    fill(things, 51)
    assert (await run_claims(things, OPEN, finish, wait=False)).finished == 51


def test_large_collection_means_ten_thousand_documents() -> None:
    assert documents.indexes.LARGE == 10_000
