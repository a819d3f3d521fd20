"""How claims end: by the body, by drain, by a cancellation, by Ctrl-C, by a bug. In order, and bounded."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, Gauge, fill, finish, listened, lock_of, states
from trio_monque import MonqueError, open_claims, run_claims
from trio_monque.claims import RunningClaims
from trio_monque.claims.renewals import DocumentRenewals
from trio_monque.claims.runs import DocumentRuns
from trio_monque.engine.shutdown import HARD_END_AFTER
from trio_monque.errors import ClaimLostError
from trio_monque.store.driver.types import Collection


def is_free(things: Collection, *, tries: int = 0) -> bool:
    """Whether every document that is not done is free, with `tries` tries."""
    locks = [one.get("lock") for one in things.find({"state": "new"})]
    return all(lock is None or (lock["by"], lock["tries"]) == (None, tries) for lock in locks)


async def test_body_that_breaks_off_with_claims_in_hand_ends_at_once(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 20)
    async with open_claims(things, OPEN) as claims:
        async for claim in claims:
            if claim.id >= 0:
                break
    assert trio.current_time() == 0
    assert is_free(things)
    assert claims.report is not None
    assert (claims.report.released, claims.report.unfinished) == (5, ())


async def test_body_that_never_asks_for_a_claim_ends_at_once(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 20)
    async with open_claims(things, OPEN):
        await trio.sleep(100)
    assert trio.current_time() == 100
    assert is_free(things)


class BodyError(Exception):
    pass


@pytest.mark.full
@pytest.mark.parametrize("error", [BodyError(), KeyboardInterrupt(), SystemExit(), ExceptionGroup("", [BodyError()])])
@pytest.mark.parametrize("is_entered", [True, False])
async def test_what_the_body_raises_is_raised_as_it_is(
    things: Collection, autojump_clock: MockClock, error: BaseException, *, is_entered: bool
) -> None:
    fill(things, 20)
    with pytest.raises(type(error)) as caught:
        async with open_claims(things, OPEN) as claims:
            async for claim in claims:
                if not is_entered:
                    raise error
                async with claim:
                    raise error
    if isinstance(error, ExceptionGroup):  # Trio makes another one of the same.
        assert isinstance(caught.value, ExceptionGroup)
        assert caught.value.exceptions == error.exceptions
    else:
        assert caught.value is error
    assert trio.current_time() == 0
    is_counted = is_entered and isinstance(error, Exception)
    tries = sorted((one.get("lock") or {"tries": 0})["tries"] for one in things.find())
    assert tries == [0] * 19 + [1 if is_counted else 0]
    assert things.count_documents({"lock.by": {"$ne": None}}) == 0
    assert claims.report is not None
    assert claims.report.crashed == ()


async def test_cancelled_body_gives_everything_back_uncounted(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 20)
    with trio.move_on_after(3) as limit:
        async with open_claims(things, OPEN) as claims:
            async for claim in claims:
                async with claim:
                    await trio.sleep_forever()
    assert limit.cancelled_caught
    assert trio.current_time() == 3
    assert is_free(things)
    assert claims.report is not None
    assert claims.report.released == 5


@pytest.mark.full
async def test_several_tasks_share_the_documents(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 40)
    gauge, seen = Gauge(), []

    async def work(claims: Any) -> None:
        async for claim in claims:
            async with claim:
                with gauge:
                    await trio.sleep(1)
                seen.append(claim.id)
                await claim.finish(DONE)

    async with (
        open_claims(things, OPEN, wait=False, concurrency=4) as claims,
        trio.open_nursery() as nursery,
    ):
        for _ in range(10):
            nursery.start_soon(work, claims)
    assert sorted(seen) == list(range(40))
    assert gauge.most == 4
    assert states(things) == ["done"] * 40


async def test_drain_ends_all_iterators_and_releases_claims_not_yet_delivered(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 40)
    ended = []

    async def work(claims: Any, number: int) -> None:
        async for claim in claims:
            async with claim:
                await trio.sleep(7)
                await claim.finish(DONE)
        ended.append(number)

    async with open_claims(things, OPEN, concurrency=12) as claims, trio.open_nursery() as nursery:
        for number in range(4):
            nursery.start_soon(work, claims, number)
        await trio.sleep(10)
        claims.drain()
        claims.drain()
        await claims.wait_drained()
        assert trio.current_time() == 14  # What was begun at 7.
    assert sorted(ended) == [0, 1, 2, 3]
    assert states(things).count("done") == 8
    assert is_free(things)


async def test_drain_from_another_thread(things: Collection, autojump_clock: MockClock) -> None:
    async with trio.open_nursery() as nursery:
        claims = await nursery.start(run_claims, things, OPEN, finish)
        await trio.to_thread.run_sync(claims.drain)
        await claims.wait_drained()
        assert claims.report.finished == 0


@pytest.mark.full
async def test_iterators_that_are_asked_while_it_is_drained_are_never_given_what_was_given_back(
    things: Collection, autojump_clock: MockClock
) -> None:
    for _ in range(20):
        things.delete_many({})
        fill(things, 6)
        async with open_claims(things, OPEN, concurrency=6) as claims, trio.open_nursery() as nursery:

            async def work() -> None:
                async for claim in claims:
                    async with claim:
                        await claim.finish(DONE)

            await trio.sleep(1)
            claims.drain()
            for _ in range(6):
                nursery.start_soon(work)


async def test_drained_handlers_have_the_shutdown_timeout_and_are_cut_then(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 3)
    ends: list[Any] = []

    async def handler(claim: Any) -> None:
        try:
            await trio.sleep([5, 25, 1000][claim.id])
            await claim.finish(DONE)
        finally:
            ends.append((claim.id, trio.current_time(), claim.cancel_reason))

    async with trio.open_nursery() as nursery:
        claims = await nursery.start(lambda task_status: run_claims(things, OPEN, handler, task_status=task_status))
        await trio.sleep(1)
        claims.drain()
    assert ends == [(0, 5.0, None), (1, 25.0, None), (2, 31.0, "shutdown")]
    assert claims.report == type(claims.report)(finished=2, released=1)
    assert is_free(things)


async def test_entered_block_that_is_cut_raises_and_is_given_back(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    steps = []
    async with open_claims(things, OPEN, shutdown_timeout=4.0) as claims:
        async for claim in claims:
            with pytest.raises(ClaimLostError, match="is released"):
                async with claim:
                    claims.drain()
                    try:
                        await trio.sleep_forever()
                    finally:
                        steps.append((trio.current_time(), claim.cancel_reason))
    assert steps == [(4.0, "shutdown")]
    assert is_free(things)


async def test_cut_block_elsewhere_cleans_up_under_its_lock_and_is_given_back_when_it_is_left(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    steps: list[Any] = []

    async def work(claims: Any) -> None:
        async for claim in claims:
            with pytest.raises(ClaimLostError):
                async with claim:
                    try:
                        await trio.sleep_forever()
                    finally:
                        with trio.CancelScope(shield=True):
                            await trio.sleep(4)
                            steps.append(lock_of(things)["by"])

    async with trio.open_nursery() as nursery:
        async with open_claims(things, OPEN, shutdown_timeout=0, instance_id="us") as claims:
            nursery.start_soon(work, claims)
            await trio.sleep(1)
        steps.append(trio.current_time())
    assert steps == ["us", 5.0]
    assert is_free(things)


@pytest.mark.parametrize("timeout", [None, 10.0])
async def test_block_that_cleans_up_for_longer_is_left_with_its_lock(
    things: Collection, autojump_clock: MockClock, timeout: float | None
) -> None:
    fill(things, 1)
    steps: list[Any] = []

    async def work(claims: Any) -> None:
        async for claim in claims:
            with pytest.raises((ClaimLostError, TimeoutError)):
                async with claim:
                    try:
                        await trio.sleep_forever()
                    finally:
                        with trio.CancelScope(shield=True):
                            await trio.sleep(25)
                            steps.append(lock_of(things)["by"])
                            with pytest.raises(MonqueError):
                                await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        async with open_claims(
            things, OPEN, shutdown_timeout=0, cleanup_timeout=3.0, instance_id="us", timeout=timeout
        ) as claims:
            nursery.start_soon(work, claims)
            await trio.sleep(11)
        steps.append(trio.current_time())
    assert steps[0] <= 11 + 3 + HARD_END_AFTER  # Bounded, and not before it must.
    assert steps[1:] == ["us"]
    assert claims.report is not None
    assert claims.report.unfinished == (0,)
    assert claims.report.released == 0


@pytest.mark.full
async def test_block_that_cleans_up_after_its_timeout_keeps_its_lock_until_it_is_left(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    steps: list[Any] = []
    async with open_claims(things, OPEN, timeout=10.0, instance_id="us") as claims:
        async for claim in claims:
            with pytest.raises(TimeoutError):
                async with claim:
                    try:
                        await trio.sleep_forever()
                    finally:
                        with trio.CancelScope(shield=True):
                            await trio.sleep(100)  # Renewed all the time.
                            steps.append((lock_of(things)["by"], trio.current_time()))
            break
    assert steps == [("us", 110.0)]
    assert lock_of(things)["tries"] == 1


async def test_cancelled_run_cuts_and_gives_back(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 8)

    async def handler(claim: Any) -> None:
        if claim.id == 0:
            await claim.finish(DONE)
        await trio.sleep_forever()

    with trio.move_on_after(3):
        await run_claims(things, OPEN, handler)
    assert trio.current_time() == 3
    assert is_free(things)
    assert states(things).count("done") == 1


async def test_interrupt_in_a_handler_ends_everything_in_order(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 5)
    cleaned_up = []

    async def handler(claim: Any) -> None:
        try:
            await trio.sleep(claim.id + 1)
            raise KeyboardInterrupt
        finally:
            cleaned_up.append(claim.id)

    with pytest.raises(KeyboardInterrupt):
        await run_claims(things, OPEN, handler)
    assert sorted(cleaned_up) == [0, 1, 2, 3, 4]
    assert things.count_documents({"lock.by": {"$ne": None}}) == 0
    assert [lock_of(things, number)["tries"] for number in range(1, 5)] == [0] * 4


async def test_bug_of_the_source_ends_everything_in_order_and_is_raised(
    things: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 5)

    concludes = DocumentRuns.conclude

    def broken(self: DocumentRuns, claim: Any, end: Any) -> Any:
        monkeypatch.setattr(DocumentRuns, "conclude", concludes)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(DocumentRuns, "conclude", broken)

    async def handler(claim: Any) -> None:
        await trio.sleep(claim.id + 1)

    with pytest.raises(ZeroDivisionError):
        await run_claims(things, OPEN, handler)
    assert trio.current_time() == 1
    # The claim that crashed it is left to its lease, whose end counts as an attempt. The others are released uncounted.
    assert [lock_of(things, number)["by"] is None for number in range(5)] == [False, True, True, True, True]
    assert [lock_of(things, number)["tries"] for number in range(5)] == [0] * 5


@pytest.fixture
def broken_renewal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each renewal raises what no database raises."""

    async def broken(self: object, *_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(DocumentRenewals, "renew", broken)


@pytest.mark.usefixtures("broken_renewal")
async def test_bug_of_the_claimer_cancels_the_body_and_is_raised(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)
    with pytest.raises(ZeroDivisionError):
        async with open_claims(things, OPEN) as claims:
            async for claim in claims:
                assert claim.id in (0, 1, 2)
    assert trio.current_time() == 20
    assert is_free(things)

    with pytest.raises(ZeroDivisionError):
        async with open_claims(things, OPEN):
            await trio.sleep_forever()


@pytest.mark.usefixtures("broken_renewal")
async def test_bug_while_a_block_is_entered_is_raised_alone(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 3)
    with pytest.raises(ZeroDivisionError):
        async with open_claims(things, OPEN) as claims:
            async for claim in claims:
                async with claim:
                    await trio.sleep_forever()
    assert is_free(things)


async def test_groups_of_a_handler_are_judged_by_their_leaves(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    reported: list[Any] = []

    async def handler(claim: Any) -> None:
        if claim.attempt == 2:
            await claim.finish(DONE)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            raise ZeroDivisionError("in a nursery")

    report = await run_claims(things, OPEN, handler, wait=False, listeners=listened(reported))
    assert (report.finished, report.failed) == (1, 1)
    assert isinstance(reported[0].error, ExceptionGroup)


async def test_concurrency_is_not_exceeded_by_handlers_that_go_on(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 30)
    gauge = Gauge()

    async def handler(claim: Any) -> None:
        with gauge:
            await trio.sleep(claim.id % 3)
            await claim.finish(DONE)
            await trio.sleep(claim.id % 5)

    report = await run_claims(things, OPEN, handler, wait=False, concurrency=4)
    assert report.finished == 30
    assert gauge.most == 4


async def test_no_more_are_held_than_may_be_at_work(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 30)
    most = 0
    async with open_claims(things, OPEN, wait=False, concurrency=3) as claims:
        async for claim in claims:
            async with claim:
                most = max(most, things.count_documents({"lock.by": {"$ne": None}}))
                await trio.sleep(0.3)
                await claim.finish(DONE)
    assert most == 3
    assert states(things) == ["done"] * 30


async def test_entering_open_claims_raises_for_a_filter_the_server_refuses(
    things: Collection, autojump_clock: MockClock
) -> None:
    with pytest.raises(MonqueError, match="nonsense"):
        async with open_claims(things, {"$nonsense": 1}):
            raise AssertionError("never entered")


async def test_drain_may_be_said_from_any_thread_and_when_all_has_ended(
    things: Collection, autojump_clock: MockClock
) -> None:
    async with open_claims(things, OPEN) as claims:
        await trio.to_thread.run_sync(claims.drain)
        assert [claim async for claim in claims] == []
        claims.drain()
    claims.drain()
    await trio.to_thread.run_sync(claims.drain)


def test_drain_after_the_run_does_nothing(things: Collection) -> None:
    async def main() -> RunningClaims:
        async with open_claims(things, OPEN) as claims:
            return claims

    trio.run(main).drain()
