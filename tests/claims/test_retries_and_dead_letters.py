"""Failed tries, backoffs kept in the lock, what handlers ask for, and documents that are set aside."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish, later, listened, lock_of, states
from trio_monque import Discard, Retry, Snooze, open_claims, run_claims
from trio_monque.claims import dead_letters, readmit
from trio_monque.events import DocumentDeadLettered, DocumentFailed
from trio_monque.locks_and_dead_letters import NEVER
from trio_monque.store.driver.types import Collection
from trio_monque.testing import now


async def fails(claim: Any) -> None:
    raise ZeroDivisionError(f"try {claim.attempt}")


async def test_tries_are_bounded_and_what_used_them_up_is_set_aside_listed_and_readmitted(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 2)
    reported: list[Any] = []
    starts: list[Any] = []

    async def handler(claim: Any) -> None:
        if claim.id == 1:
            await claim.finish(DONE)
            return
        starts.append((claim.attempt, trio.current_time()))
        raise ZeroDivisionError(f"try {claim.attempt}")

    report = await run_claims(
        things, OPEN, handler, wait=False, max_attempts=4, retry_jitter=0.0, listeners=listened(reported)
    )
    assert starts == [(1, 0.0), (2, 2.0), (3, 6.0), (4, 14.0)]
    assert (report.finished, report.failed, report.dead_lettered) == (1, 4, 1)
    failures = [(one.attempt, one.will_retry) for one in reported if isinstance(one, DocumentFailed)]
    assert failures == [(1, True), (2, True), (3, True), (4, False)]
    (last,) = (one for one in reported if isinstance(one, DocumentDeadLettered))
    assert (last.document_id, last.attempts, last.error) == (0, 4, "ZeroDivisionError: try 4")
    assert lock_of(things) == {"by": None, "until": NEVER, "tries": 4, "error": "ZeroDivisionError: try 4"}
    assert states(things) == ["new", "done"]

    (listed,) = await dead_letters(things)
    assert (listed.id, listed.attempts, listed.error) == (0, 4, "ZeroDivisionError: try 4")
    assert listed.document is not None
    assert listed.document["n"] == {"x": [0]}
    assert [one.id for one in await dead_letters(things, {"state": "done"})] == []
    assert await readmit(things, 7) == 0
    assert await readmit(things, 0) == 1
    assert await readmit(things, 0) == 0
    assert things.find_one({"_id": 0}) == {"_id": 0, "state": "new", "n": {"x": [0]}}
    assert (await run_claims(things, OPEN, finish, wait=False)).finished == 1


async def test_one_attempt_is_enough_where_that_is_said(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    report = await run_claims(things, OPEN, fails, wait=False, max_attempts=1)
    assert (report.failed, report.dead_lettered) == (1, 1)


async def test_tries_of_a_document_are_kept_from_one_instance_to_the_next(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    attempts = []
    for _ in range(3):

        async def handler(claim: Any) -> None:
            attempts.append(claim.attempt)
            claims.drain()  # noqa: B023
            raise ZeroDivisionError

        async with trio.open_nursery() as nursery:
            claims = await nursery.start(
                lambda task_status: run_claims(things, OPEN, handler, max_attempts=3, task_status=task_status)
            )
    assert attempts == [1, 2, 3]
    assert len(await dead_letters(things)) == 1


async def test_finished_document_begins_anew(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    things.update_one({"_id": 0}, {"$set": {"lock": {"by": None, "until": later(-1), "tries": 5}}})

    async def handler(claim: Any) -> None:
        assert claim.attempt == 6
        await claim.finish(DONE)

    await run_claims(things, OPEN, handler, wait=False)
    assert "lock" not in (things.find_one() or {})


async def test_backoff_is_exponential_capped_varied_or_ones_own(things: Collection, autojump_clock: MockClock) -> None:
    async def starts_with(**options: Any) -> list[float]:
        things.delete_many({})
        fill(things, 1)
        starts = []

        async def handler(claim: Any) -> None:
            starts.append(trio.current_time())
            raise ZeroDivisionError

        await run_claims(things, OPEN, handler, wait=False, max_attempts=5, poll_interval=50, **options)
        return [round(at - starts[0], 3) for at in starts[1:]]

    assert await starts_with(retry_jitter=0.0, base_retry_interval=3.0) == [6, 18, 42, 90]
    assert await starts_with(retry_jitter=0.0, max_backoff_delay=5.0) == [2, 6, 11, 16]
    assert await starts_with(backoff=7.5) == [7.5, 15, 22.5, 30]
    assert await starts_with(backoff=lambda failures, error: 10.0 * failures) == [10, 30, 60, 100]
    assert await starts_with(backoff=lambda failures, error: float("nan"), retry_jitter=0.0) == [2, 6, 14, 30]
    varied = await starts_with(retry_jitter=0.5)
    assert varied != [2, 6, 14, 30]
    assert 1 <= varied[0] <= 3
    assert 2 <= varied[1] - varied[0] <= 6


async def test_retry_snooze_and_discard_mean_what_they_mean_for_jobs(
    things: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fill(things, 4)
    reported: list[Any] = []
    starts: dict[int, list[Any]] = {number: [] for number in range(4)}
    until = now() + timedelta(seconds=50)

    async def handler(claim: Any) -> None:
        starts[claim.id].append((claim.attempt, trio.current_time()))
        if len(starts[claim.id]) == 1:
            raise [
                Retry("later", after=100.0),
                Snooze(after=30.0),
                Snooze(until=until),
                Discard("hopeless"),
            ][claim.id]
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False, listeners=listened(reported))
    assert starts == {0: [(1, 0), (2, 100)], 1: [(1, 0), (1, 30)], 2: [(1, 0), (1, 50)], 3: [(1, 0)]}
    assert (report.finished, report.failed, report.released, report.dead_lettered) == (3, 2, 2, 1)
    assert lock_of(things, 3) == {"by": None, "until": NEVER, "tries": 1, "error": "hopeless"}
    assert sorted(type(one).__name__ for one in reported) == [
        "DocumentDeadLettered",
        "DocumentFailed",
        "DocumentFailed",
    ]
    # What a handler decides is expected: no error in the log, and no traceback.
    failed = [one for one in caplog.records if "failed, and" in one.message]
    assert [(one.levelname, one.exc_info) for one in failed] == [("WARNING", None)] * 2


async def test_errors_beside_a_discard_are_logged(
    things: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        raise ExceptionGroup("several", [OSError("disk"), Discard("hopeless")])

    report = await run_claims(things, OPEN, handler, wait=False)
    assert report.dead_lettered == 1
    (beside,) = (one for one in caplog.records if one.message.startswith("beside that"))
    assert beside.message.endswith(" raised: OSError: disk")
    assert beside.exc_info


async def test_retry_and_snooze_of_a_block_are_raised_there_too(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    starts = []
    async with open_claims(things, OPEN, wait=False) as claims:
        async for claim in claims:
            starts.append((claim.attempt, trio.current_time()))
            if len(starts) == 1:
                with pytest.raises(Snooze):
                    async with claim:
                        raise Snooze(after=12.0)
            elif len(starts) == 2:
                with pytest.raises(Retry):
                    async with claim:
                        raise Retry(after=5.0)
            else:
                await claim.finish(DONE)
    assert starts == [(1, 0.0), (1, 12.0), (2, 17.0)]


@pytest.mark.parametrize("until", [datetime(8999, 12, 31, tzinfo=UTC), datetime(9500, 1, 1, tzinfo=UTC)])
async def test_what_is_snoozed_for_ages_is_not_set_aside(
    things: Collection, autojump_clock: MockClock, until: datetime
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        claims.drain()
        raise Snooze(until=until)

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(lambda task_status: run_claims(things, OPEN, handler, task_status=task_status))
    assert lock_of(things)["by"] is None
    assert await dead_letters(things) == []


class _Unusable(Retry):
    """Its `after` is that of no date, and no check has seen it."""

    after = 1e300

    def __init__(self) -> None:
        pass


async def test_end_that_cannot_be_decided_fails_its_own_document_alone(
    things: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fill(things, 3)

    async def handler(claim: Any) -> None:
        if claim.id == 1:
            raise _Unusable
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert (report.finished, report.failed, report.dead_lettered) == (2, 1, 1)
    assert states(things) == ["done", "new", "done"]
    assert lock_of(things, 1)["error"].startswith("OverflowError")
    assert "could not decide the outcome of document 1 (attempt 1); it is now a dead letter" in caplog.text


async def test_set_aside_is_limited_and_readmit_by_filter_frees_all_that_match(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 6)
    await run_claims(things, OPEN, fails, wait=False, max_attempts=1)
    assert len(await dead_letters(things, limit=4)) == 4
    assert len(await dead_letters(things)) == 6
    assert await readmit(things, filter={"_id": {"$gte": 4}}) == 2
    assert await readmit(things, 0, 1) == 2
    assert await readmit(things, filter={}) == 2
    assert things.count_documents({"lock": {"$exists": True}}) == 0


async def test_readmit_leaves_alone_what_is_held_or_waits(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 2)
    things.update_one({"_id": 0}, {"$set": {"lock": {"by": "x", "until": NEVER}}})
    things.update_one({"_id": 1}, {"$set": {"lock": {"by": None, "until": later(100), "tries": 3}}})
    before = list(things.find())
    assert await readmit(things, 0, 1) == 0
    assert await readmit(things, filter={}) == 0
    assert list(things.find()) == before


async def test_what_is_readmitted_while_claims_run_is_claimed(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    attempts = []

    async def handler(claim: Any) -> None:
        attempts.append(claim.attempt)
        if len(attempts) == 1:
            raise Discard
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(lambda task_status: run_claims(things, OPEN, handler, task_status=task_status))
        await trio.sleep(5)
        assert await readmit(things, 0) == 1
        await trio.sleep(2)
        assert attempts == [1, 1]
        claims.drain()
    assert states(things) == ["done"]


async def test_error_message_is_bounded(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        raise ValueError("\ud800" + "x" * 100_000)

    await run_claims(things, OPEN, handler, wait=False, max_attempts=1)
    assert 1000 < len(lock_of(things)["error"]) <= 2000
