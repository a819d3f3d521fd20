"""What one claim does to its document: under `async with`, and by hand."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish, first_claim, listened, lock_of, states, take_away
from trio_monque import MonqueError, open_claims, run_claims
from trio_monque.errors import ClaimLostError, InvalidOptionError
from trio_monque.events import DocumentClaimLost, DocumentFailed
from trio_monque.store.driver.types import Collection
from trio_monque.testing import now


async def test_documents_are_given_out_and_finished(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 12)
    seen = []
    async with open_claims(things, OPEN, wait=False, concurrency=3) as claims:
        async for claim in claims:
            async with claim:
                seen.append(claim.id)
                assert claim.document["_id"] == claim.id
                assert claim.document["lock"]["by"] == claims.id
                assert claim.attempt == 1
                await claim.finish({"$set": {"state": "done", "result": claim.id}})
    assert sorted(seen) == list(range(12))
    assert list(things.find({}, sort=[("_id", 1)])) == [
        {"_id": number, "state": "done", "n": {"x": [number]}, "result": number} for number in range(12)
    ]
    assert claims.report is not None
    assert claims.report.finished == 12


async def test_nothing_is_touched_but_the_lock_and_what_finish_was_given(
    things: Collection, autojump_clock: MockClock
) -> None:
    document = {"z": 1, "_id": 0, "lock": None, "state": "new", "a": {"d": 1.5, "c": [None, {"b": "x"}]}, "y": None}
    things.insert_one(dict(document))
    things.insert_one({"_id": 1, "state": "old", "lock": {"by": None, "until": now()}})
    others = things.find_one({"_id": 1})
    during: list[Any] = []

    async def handler(claim: Any) -> None:
        await trio.sleep(50)  # Two renewals.
        during.append(things.find_one({"_id": 0}))
        if claim.attempt == 1:
            raise ValueError
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert (report.finished, report.failed) == (1, 1)
    for one in during:
        assert list(one) == ["_id", "z", "lock", "state", "a", "y"]
        assert {**one, "lock": None} == document
    left = things.find_one({"_id": 0})
    assert left is not None
    assert list(left.items()) == [("_id", 0), ("z", 1), ("state", "done"), ("a", document["a"]), ("y", None)]
    assert things.find_one({"_id": 1}) == others


async def test_block_that_ends_normally_without_finish_unlocks(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    async with open_claims(things, OPEN) as claims:
        async for claim in claims:
            async with claim:
                things.update_one({"_id": claim.id}, DONE)
            assert "lock" not in (things.find_one() or {})
            break
    assert things.find_one() == {"_id": 0, "state": "done", "n": {"x": [0]}}
    assert claims.report is not None
    assert claims.report.finished == 1


async def test_handler_that_returns_without_finish_unlocks(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        things.update_one({"_id": claim.id}, DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert report.finished == 1
    assert things.find_one() == {"_id": 0, "state": "done", "n": {"x": [0]}}


async def test_error_of_the_block_is_raised_there_and_counted(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    reported: list[Any] = []
    attempts = []
    async with open_claims(things, OPEN, wait=False, listeners=listened(reported), retry_jitter=0.0) as claims:
        async for claim in claims:
            attempts.append((claim.attempt, trio.current_time()))
            with pytest.raises(ZeroDivisionError) if claim.attempt < 3 else trio.CancelScope():
                async with claim:
                    if claim.attempt < 3:
                        raise ZeroDivisionError("no")
                    await claim.finish(DONE)
    assert attempts == [(1, 0.0), (2, 2.0), (3, 6.0)]
    assert [(type(one), one.document_id, one.attempt, one.will_retry, str(one.error)) for one in reported] == [
        (DocumentFailed, 0, 1, True, "no"),
        (DocumentFailed, 0, 2, True, "no"),
    ]
    assert claims.report is not None
    assert (claims.report.finished, claims.report.failed) == (1, 2)


async def test_failed_one_says_in_its_lock_from_when_on_it_is_free(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    async with open_claims(things, OPEN, retry_jitter=0.0, base_retry_interval=10.0) as claims:
        async for claim in claims:
            with pytest.raises(ZeroDivisionError):
                async with claim:
                    raise ZeroDivisionError
            await trio.sleep(1)
            break
    lock = lock_of(things)
    assert lock.keys() == {"by", "until", "tries"}
    assert (lock["by"], lock["tries"]) == (None, 1)
    assert (lock["until"] - now()).total_seconds() == 19.0


async def test_cancelled_block_gives_its_document_back_uncounted(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    attempts = []
    async with open_claims(things, OPEN, wait=False) as claims:
        async for claim in claims:
            attempts.append((claim.attempt, trio.current_time()))
            with trio.move_on_after(5) as limit:
                async with claim:
                    if len(attempts) == 2:
                        await claim.finish(DONE)
                    await trio.sleep(10 if len(attempts) == 1 else 0)
            assert limit.cancelled_caught is (len(attempts) == 1)
    assert attempts == [(1, 0.0), (1, 5.0)]
    assert claims.report is not None
    assert (claims.report.released, claims.report.finished, claims.report.failed) == (1, 1, 0)


async def test_error_beside_a_cancellation_is_counted_and_is_what_it_failed_with(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    reported: list[Any] = []
    async with first_claim(things, reported) as claim:
        with pytest.raises(BaseExceptionGroup):
            async with claim, trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise ZeroDivisionError("real")
    assert [(type(one), type(one.error)) for one in reported] == [(DocumentFailed, ExceptionGroup)]
    assert lock_of(things)["tries"] == 1


async def test_lost_lock_cancels_the_block_and_nothing_behind_it_is_executed(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    reported: list[Any] = []
    steps: list[Any] = []
    async with open_claims(things, OPEN, listeners=listened(reported)) as claims:
        async for claim in claims:
            with pytest.raises(ClaimLostError):
                async with claim:
                    await trio.sleep(5)
                    take_away(things)
                    try:
                        await trio.sleep_forever()
                    finally:
                        steps.append((trio.current_time(), claim.cancel_reason))
            with pytest.raises(ClaimLostError):
                await claim.finish(DONE)
            with pytest.raises(ClaimLostError):
                await claim.release()
            break
        await trio.sleep(0.1)
    assert steps == [(20.0, "lost")]
    assert [(type(one), one.document_id, one.attempt) for one in reported] == [(DocumentClaimLost, 0, 1)]
    assert lock_of(things)["by"] == "another"
    assert states(things) == ["new"]
    assert claims.report is not None
    assert (claims.report.lost, claims.report.finished, claims.report.released) == (1, 0, 0)


async def test_finish_under_a_lock_that_was_taken_writes_nothing_and_raises(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    reported: list[Any] = []
    async with first_claim(things, reported) as claim:
        with pytest.raises(ClaimLostError):
            async with claim:
                take_away(things)
                await claim.finish(DONE)
    assert states(things) == ["new"]
    assert lock_of(things)["by"] == "another"
    assert [type(one) for one in reported] == [DocumentClaimLost]


async def test_lock_that_another_took_and_left_again_is_no_longer_ours(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        things.update_one({"_id": 0}, {"$unset": {"lock": ""}, "$set": {"state": "changed"}})
        with pytest.raises(ClaimLostError):
            await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert states(things) == ["changed"]
    assert (report.lost, report.finished) == (1, 0)


async def test_finish_twice_after_release_and_after_the_end(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 2)
    kept: list[Any] = []
    async with open_claims(things, OPEN, sort=[("_id", 1)], concurrency=1) as claims:
        async for claim in claims:
            kept.append(claim)
            async with claim:
                if claim.id == 0:
                    await claim.finish(DONE)
                else:
                    await claim.release(delay=1000)
                for call in (claim.finish, claim.release):
                    with pytest.raises(MonqueError, match="ended") as caught:
                        await call()
                    assert not isinstance(caught.value, ClaimLostError)
            if claim.id == 1:
                break
    for claim in kept:
        with pytest.raises(MonqueError, match="ended"):
            await claim.finish({"$set": {"state": "again"}})
        with pytest.raises(MonqueError):
            async with claim:
                pass
    assert states(things) == ["done", "new"]
    assert claims.report is not None
    assert (claims.report.finished, claims.report.released) == (1, 1)


async def test_release_does_not_count_as_an_attempt_and_lasts_for_its_delay(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    attempts = []

    async def handler(claim: Any) -> None:
        attempts.append((claim.attempt, trio.current_time()))
        if len(attempts) < 3:
            await claim.release(delay=7.25)
        else:
            await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert attempts == [(1, 0.0), (1, 7.25), (1, 14.5)]
    assert (report.released, report.finished) == (2, 1)
    for delay in (-1, float("inf"), float("nan"), "1"):
        fill(things.database["others"], 1)
        async with open_claims(things.database["others"], OPEN) as claims:
            async for claim in claims:
                async with claim:
                    with pytest.raises(InvalidOptionError, match="delay"):
                        await claim.release(delay)  # type: ignore[arg-type]
                    await claim.finish(DONE)
                break
        things.database["others"].drop()


@pytest.mark.parametrize("seconds", [1e9, 3.2e9])
async def test_release_with_a_delay_beyond_the_last_date_releases_the_claim(
    things: Collection, autojump_clock: MockClock, seconds: float
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        await claim.release(delay=seconds)

    async with open_claims(things, OPEN) as claims:
        async for claim in claims:
            async with claim:
                await claim.release(delay=seconds)
            break
    assert lock_of(things)["by"] is None
    assert claims.report is not None
    assert claims.report.released == 1


async def test_claim_is_finished_without_a_block(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 5)
    async with open_claims(things, OPEN, wait=False, concurrency=2) as claims:
        async for claim in claims:
            await claim.finish(DONE)
    assert states(things) == ["done"] * 5


async def test_claim_is_entered_once(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    async with open_claims(things, OPEN) as claims:
        async for claim in claims:
            async with claim:
                with pytest.raises(MonqueError, match="twice"):
                    async with claim:
                        pass
                await claim.finish(DONE)
            break
    assert states(things) == ["done"]


async def test_timeout_cancels_the_block_and_is_a_failed_try(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    reported: list[Any] = []
    async with first_claim(things, reported, timeout=7.0) as claim:
        assert claim.deadline == 7.0
        with pytest.raises(TimeoutError):
            async with claim:
                await trio.sleep_forever()
        assert trio.current_time() == 7.0
    assert lock_of(things)["tries"] == 1
    assert [(type(one), type(one.error)) for one in reported] == [(DocumentFailed, TimeoutError)]


async def test_timeout_of_a_handler_is_a_failed_try(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    reported: list[Any] = []

    async def handler(claim: Any) -> None:
        if claim.attempt == 1:
            await trio.sleep_forever()
        await claim.finish(DONE)

    await run_claims(things, OPEN, handler, wait=False, timeout=7.0, listeners=listened(reported))
    assert [(one.attempt, type(one.error)) for one in reported] == [(1, TimeoutError)]
    assert states(things) == ["done"]


async def test_claim_without_timeout_has_an_infinite_deadline(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        assert claim.deadline == float("inf")
        await trio.sleep(5000)
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False, poll_interval=1000, heartbeat_interval=300)
    assert report.finished == 1


async def test_timeout_counts_from_when_the_work_could_begin_and_not_what_a_claim_waited_to_be_taken(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 10)
    async with open_claims(things, OPEN, wait=False, timeout=10.0, concurrency=5) as claims:
        async for claim in claims:
            async with claim:
                assert claim.deadline == trio.current_time() + 10.0
                await trio.sleep(9)
                await claim.finish(DONE)
    assert claims.report is not None
    assert (claims.report.finished, claims.report.failed) == (10, 0)


@pytest.mark.full
async def test_handler_goes_on_after_finish_and_its_document_is_everybodys(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    ends = []

    async def handler(claim: Any) -> None:
        await claim.finish(DONE)
        assert lock_of(things) is None
        take_away(things)
        await trio.sleep(200)  # Longer than a lease: the engine does not cancel it.
        ends.append(claim.id)

    reported: list[Any] = []
    report = await run_claims(things, OPEN, handler, wait=False, listeners=listened(reported))
    assert ends == [0]
    assert (reported, report.finished, report.lost) == ([], 1, 0)


async def test_error_after_finish_changes_nothing_in_the_database_and_is_logged(
    things: Collection, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        await claim.finish(DONE)
        raise ZeroDivisionError("too late")

    reported: list[Any] = []
    with caplog.at_level(logging.ERROR):
        report = await run_claims(things, OPEN, handler, wait=False, listeners=listened(reported))
    assert things.find_one() == {"_id": 0, "state": "done", "n": {"x": [0]}}
    assert (reported, report.finished, report.failed) == ([], 1, 0)
    assert [str(record.exc_info[1]) for record in caplog.records if record.exc_info] == ["too late"]


async def test_error_of_a_block_after_finish_is_raised_there_and_not_counted(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    async with open_claims(things, OPEN, wait=False) as claims:
        async for claim in claims:
            with pytest.raises(ZeroDivisionError):
                async with claim:
                    await claim.finish(DONE)
                    raise ZeroDivisionError
    assert things.find_one() == {"_id": 0, "state": "done", "n": {"x": [0]}}
    assert claims.report is not None
    assert (claims.report.finished, claims.report.failed) == (1, 0)


async def test_block_inside_a_handler(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)

    async def handler(claim: Any) -> None:
        async with claim:
            if claim.id == 0 and claim.attempt == 1:
                raise ZeroDivisionError
            if claim.id == 1:
                await claim.finish(DONE)
                return
            things.update_one({"_id": claim.id}, DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert (report.finished, report.failed) == (3, 1)
    assert states(things) == ["done"] * 3


async def test_one_finish_in_a_handler_is_enough(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)
    report = await run_claims(things, OPEN, finish, wait=False)
    assert (report.finished, report.failed, report.released, report.lost) == (3, 0, 0, 0)
    assert (report.unfinished, report.crashed) == ((), ())
