"""Claims on documents of any collection: the same on trio, asyncio and uvloop."""

from __future__ import annotations

import asyncio
import time
from contextlib import nullcontext
from functools import partial
from typing import Any, Final

import anyio
import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import LONG, QUICK, until
from tests.support.documents import DONE, OPEN, fill, lock_of, states, take_away
from trio_monque import Claim, MonqueError, open_claims, run_claims
from trio_monque.claims import RunningClaims
from trio_monque.claims.source import DocumentSource
from trio_monque.errors import (
    ClaimLostError,
    FilterStillMatchesError,
    InvalidOptionError,
    InvalidUpdateError,
)
from trio_monque.events import DocumentDeadLettered
from trio_monque.store.types import Collection, Database

BEATS: Final[Any] = {**QUICK, "heartbeat_interval": 0.3, "cleanup_timeout": 0.5}


@pytest.fixture
def things(db: Database) -> Collection:
    return db["things"]


def held(things: Collection) -> int:
    return things.count_documents({"lock.by": {"$ne": None}, "lock.until": {"$exists": True}})


def tries(things: Collection) -> list[int]:
    return sorted((one.get("lock") or {"tries": 0})["tries"] for one in things.find())


def test_blocks_finish_release_and_fail(things: Collection, run: Run) -> None:
    fill(things, 12)
    seen = list[tuple[int, int]]()

    async def main() -> None:
        async with open_claims(things, OPEN, wait=False, concurrency=3, **QUICK) as claims:
            async for claim in claims:
                is_first = (claim.id, claim.attempt) not in seen
                seen.append((claim.id, claim.attempt))
                fails = (claim.id, claim.attempt) == (5, 1)
                with pytest.raises(ValueError, match="once") if fails else nullcontext():
                    async with claim:
                        await anyio.lowlevel.checkpoint()
                        if fails:
                            raise ValueError("once")
                        if claim.id == 4 and is_first:
                            await claim.release()
                        else:
                            await claim.finish(DONE)
        report = claims.report
        assert report is not None
        assert (report.finished, report.failed, report.released) == (12, 1, 1)
        with pytest.raises(StopAsyncIteration):
            await anext(claims)
        await claims.wait_drained()
        claims.drain()

    run(main)
    assert states(things) == ["done"] * 12
    assert sorted(seen) == sorted([*((number, 1) for number in range(12)), (4, 1), (5, 2)])


def test_a_claim_ends_once_and_is_held_after_a_refused_update(things: Collection, run: Run) -> None:
    fill(things, 1)

    async def main() -> None:
        async with open_claims(things, OPEN, **QUICK) as claims:
            claim = await anext(claims)
            async with claim:
                assert claim.cancel_reason is None
                with pytest.raises(InvalidOptionError):
                    await claim.finish({"state": "done"})
                with pytest.raises(InvalidUpdateError):
                    await claim.finish({"$inc": {"state": 1}})
                assert lock_of(things)["by"] == claims.id
                update: Any = {"$set": {"state": "done", "parts": [1]}}
                await claim.finish(update)
                with pytest.raises(MonqueError, match="has ended"):
                    await claim.finish()
                with pytest.raises(MonqueError, match="has ended"):
                    await claim.release()
            with pytest.raises(MonqueError, match="twice"):
                async with claim:
                    pass

    run(main)
    assert things.find_one() == {"_id": 0, "state": "done", "n": {"x": [0]}, "parts": [1]}


def test_a_lost_lock_cancels_the_block_at_each_checkpoint(things: Collection, run: Run) -> None:
    fill(things, 1)
    log = list[str]()

    async def main() -> None:
        async with open_claims(things, OPEN, **BEATS) as claims:
            claim = await anext(claims)
            with pytest.raises(ClaimLostError):
                async with claim:
                    take_away(things)
                    for _ in range(2):
                        try:
                            await anyio.sleep(LONG)
                        finally:
                            log.append(str(claim.cancel_reason))
                            continue  # noqa: B012
                    await anyio.sleep(LONG)
            with pytest.raises(ClaimLostError):
                await claim.finish(DONE)
        assert claims.report is not None
        assert claims.report.lost == 1

    run(main)
    assert log == ["lost", "lost"]
    assert lock_of(things)["by"] == "another"


def test_a_time_limit_cancels_the_block_and_counts_an_attempt(things: Collection, run: Run) -> None:
    fill(things, 1)

    async def main() -> None:
        async with open_claims(things, OPEN, wait=False, timeout=0.3, **QUICK) as claims:
            async for claim in claims:
                if claim.attempt == 2:
                    await claim.finish(DONE)
                    continue
                with pytest.raises(TimeoutError, match="its timeout"):
                    async with claim:
                        assert 0 < claim.deadline - anyio.current_time() <= 0.3
                        await anyio.sleep(LONG)

    run(main)
    assert states(things) == ["done"]


def test_a_cancelled_body_releases_what_is_worked_on_uncounted(things: Collection, run: Run) -> None:
    fill(things, 5)
    began, cancelled = list[int](), list[int]()

    async def work(claim: Claim[Any], scope: anyio.CancelScope) -> None:
        async with claim:
            began.append(claim.id)
            if len(began) == 3:
                scope.cancel()
            try:
                await anyio.sleep(LONG)
            finally:
                cancelled.append(claim.id)

    async def main() -> None:
        with anyio.CancelScope() as scope:
            async with open_claims(things, OPEN, concurrency=3, **QUICK) as claims:
                async with anyio.create_task_group() as tasks:
                    async for claim in claims:
                        tasks.start_soon(work, claim, scope)
        assert scope.cancelled_caught

    run(main)
    assert sorted(began) == sorted(cancelled)
    assert len(began) == 3
    assert (held(things), tries(things)) == (0, [0] * 5)


def test_an_error_of_the_body_releases_the_documents(things: Collection, run: Run) -> None:
    fill(things, 5)

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            async with open_claims(things, OPEN, **QUICK) as claims:
                await anext(claims)
                1 / 0  # noqa: B018
        with pytest.raises(ExceptionGroup) as caught:
            async with open_claims(things, OPEN, **QUICK) as claims, anyio.create_task_group() as tasks:
                async with await anext(claims):
                    tasks.start_soon(anyio.sleep, LONG)
                    raise ZeroDivisionError
        assert [type(one) for one in caught.value.exceptions] == [ZeroDivisionError]

    run(main)
    assert (held(things), tries(things)) == (0, [0] * 4 + [1])


def test_a_drain_ends_the_loops_and_waits_for_blocks(things: Collection, run: Run) -> None:
    fill(things, 3)
    log = list[str]()

    async def main() -> None:
        entered = anyio.Event()

        async def work(claims: Any) -> None:
            async for claim in claims:
                async with claim:
                    entered.set()
                    await until(lambda: log)
                    await claim.finish(DONE)

        async with open_claims(things, OPEN, concurrency=1, **QUICK) as claims, anyio.create_task_group() as tasks:
            tasks.start_soon(work, claims)
            await entered.wait()
            claims.drain()
            with pytest.raises(StopAsyncIteration):
                await anext(claims)
            log.append("drained")
        assert claims.report is not None
        assert claims.report.finished == 1

    run(main)
    assert sorted(states(things)) == ["done", "new", "new"]
    assert (held(things), tries(things)) == (0, [0] * 3)


def test_the_end_of_the_body_releases_idle_claims_and_cuts_blocks_in_time(things: Collection, run: Run) -> None:
    fill(things, 2)
    log = list[str]()

    async def main() -> None:
        async with anyio.create_task_group() as tasks:

            async def work(claim: Claim[Any]) -> None:
                with pytest.raises(ClaimLostError, match="shutting down"):
                    async with claim:
                        log.append("entered")
                        try:
                            await anyio.sleep(LONG)
                        finally:
                            log.append(str(claim.cancel_reason))

            async with open_claims(things, OPEN, concurrency=2, shutdown_timeout=0.2, **QUICK) as claims:
                tasks.start_soon(work, await anext(claims))
                idle = await anext(claims)
                await until(lambda: log)
            with pytest.raises(MonqueError, match="ended"):
                async with idle:
                    pass
        assert claims.report is not None
        assert (claims.report.released, claims.report.unfinished) == (2, ())

    run(main)
    assert log == ["entered", "shutdown"]
    assert (held(things), tries(things)) == (0, [0] * 2)


def test_two_loops_over_the_same_claims_get_each_document_once(things: Collection, run: Run) -> None:
    fill(things, 30)
    seen: dict[str, list[int]] = {"a": [], "b": []}

    async def main() -> None:
        async with (
            open_claims(things, OPEN, wait=False, concurrency=4, **QUICK) as claims,
            anyio.create_task_group() as tasks,
        ):

            async def work(name: str) -> None:
                async for claim in claims:
                    async with claim:
                        seen[name].append(claim.id)
                        await claim.finish(DONE)

            tasks.start_soon(work, "a")
            tasks.start_soon(work, "b")

    run(main)
    assert sorted(seen["a"] + seen["b"]) == list(range(30))
    assert seen["a"]
    assert seen["b"]


def test_a_loop_that_is_cancelled_while_it_waits_loses_no_document(things: Collection, run: Run) -> None:
    async def main() -> None:
        async with open_claims(things, OPEN, **QUICK) as claims:
            with anyio.move_on_after(0.01):
                await anext(claims)
            with anyio.CancelScope() as cancelled:
                cancelled.cancel()
                await anext(claims)
            for number in range(6):
                got = list[Claim[Any]]()
                things.insert_one({"_id": number, "state": "new"})
                with anyio.move_on_after(0.02 * number):
                    got.append(await anext(claims))
                if got:
                    await got[0].finish(DONE)
            with anyio.fail_after(15):
                while "new" in states(things):
                    async with await anext(claims) as claim:
                        assert claim.attempt == 1
                        await claim.finish(DONE)

    run(main)
    assert states(things) == ["done"] * 6


@ON_ASYNCIO
def test_a_claim_for_a_task_that_was_cancelled_natively_is_released(things: Collection, run: Run) -> None:
    async def main() -> None:
        async with open_claims(things, OPEN, **QUICK) as claims:
            task = asyncio.create_task(anext(claims))
            await anyio.sleep(0.05)
            fill(things, 1)
            while not (lock_of(things) or {"by": None})["by"]:
                time.sleep(0.01)  # noqa: ASYNC251  # The claim is answered while the task cannot get it.
            time.sleep(0.1)  # noqa: ASYNC251
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with anyio.fail_after(15):
                async with await anext(claims) as claim:
                    assert claim.attempt == 1
                    await claim.finish(DONE)
        assert claims.report is not None
        assert (claims.report.released, claims.report.finished) == (1, 1)

    run(main)


@ON_ASYNCIO
def test_a_claim_that_a_blocked_loop_gets_late_has_its_whole_time(things: Collection, run: Run) -> None:
    async def main() -> None:
        async with open_claims(things, OPEN, timeout=0.3, **QUICK) as claims:
            async with anyio.create_task_group() as tasks:

                async def work() -> None:
                    async with await anext(claims) as claim:
                        assert claim.deadline - anyio.current_time() > 0.2
                        await claim.finish(DONE)

                tasks.start_soon(work)
                await anyio.sleep(0.05)
                fill(things, 1)
                while not (lock_of(things) or {"by": None})["by"]:
                    time.sleep(0.01)  # noqa: ASYNC251
                time.sleep(0.4)  # noqa: ASYNC251

    run(main)
    assert states(things) == ["done"]


def test_run_claims_calls_handlers_and_returns_its_report(things: Collection, run: Run) -> None:
    fill(things, 20)
    heard = list[Any]()

    async def work(claim: Claim[Any]) -> None:
        await anyio.sleep(0.001)
        if claim.id == 3 and claim.attempt == 1:
            raise ValueError("once")
        if claim.id == 4:
            raise ValueError("always")
        await claim.finish({"$set": {"state": "done", "attempt": claim.attempt}})

    async def hear(event: DocumentDeadLettered) -> None:
        await anyio.lowlevel.checkpoint()
        heard.append((event.document_id, event.attempts))

    async def main() -> None:
        report = await run_claims(
            things, OPEN, work, wait=False, max_attempts=2, listeners={DocumentDeadLettered: hear}, **QUICK
        )
        assert (report.finished, report.failed, report.dead_lettered) == (19, 3, 1)

    run(main)
    assert heard == [(4, 2)]
    assert things.count_documents({"state": "done", "lock": {"$exists": False}}) == 19
    assert things.count_documents({"attempt": 2}) == 1


def test_run_claims_is_a_task_of_a_group_and_drains_or_is_cancelled(things: Collection, run: Run) -> None:
    fill(things, 1)
    log = list[str]()

    async def work(claim: Claim[Any]) -> None:
        log.append("began")
        try:
            if len(log) == 1:
                await claim.release()
            else:
                await anyio.sleep(LONG)
        finally:
            log.append(str(claim.cancel_reason))

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            claims: RunningClaims = await tasks.start(partial(run_claims, things, OPEN, work, **QUICK))
            await until(lambda: len(log) == 3)
            assert lock_of(things)["by"] == claims.id
            tasks.cancel_scope.cancel()
        async with anyio.create_task_group() as tasks:
            claims = await tasks.start(partial(run_claims, things, {"state": "none"}, work, **QUICK))
            claims.drain()
            await claims.wait_drained()
        assert claims.report is not None
        assert claims.report.finished == 0

    run(main)
    assert log == ["began", "None", "began", "shutdown"]
    assert (held(things), tries(things)) == (0, [0])


def test_a_handler_is_cancelled_by_its_time_limit_and_by_a_lost_lock(things: Collection, run: Run) -> None:
    fill(things, 2)
    log = list[tuple[int, str]]()

    async def work(claim: Claim[Any]) -> None:
        if claim.id == 1:
            take_away(things, 1)
        try:
            await anyio.sleep(LONG)
        finally:
            log.append((claim.id, str(claim.cancel_reason)))

    async def main() -> None:
        report = await run_claims(things, OPEN, work, wait=False, timeout=1, max_attempts=1, **BEATS)
        assert (report.failed, report.lost, report.dead_lettered) == (1, 1, 1)

    run(main)
    assert sorted(log) == [(0, "timeout"), (1, "lost")]


def test_a_filter_that_stays_true_ends_the_claims(things: Collection, run: Run) -> None:
    fill(things, 3)

    async def main() -> None:
        with pytest.raises(FilterStillMatchesError):
            async with open_claims(things, OPEN, **QUICK) as claims:
                async for claim in claims:
                    async with claim:
                        await claim.finish({"$set": {"seen": True}})

    run(main)
    assert held(things) == 0


def test_a_crash_cancels_blocks_and_is_raised_alone(
    things: Collection, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 1)
    log = list[str]()

    async def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            async with open_claims(things, OPEN, **BEATS) as claims:
                monkeypatch.setattr(DocumentSource, "renew", crash)
                async with await anext(claims) as claim:
                    try:
                        await anyio.sleep(LONG)
                    finally:
                        log.append(str(claim.cancel_reason))
        assert claims.report is not None
        assert [str(one) for one in claims.report.crashed] == ["a bug"]
        await anyio.sleep(0.01)
        task = None if not asyncio._get_running_loop() else asyncio.current_task()
        assert task is None or task.cancelling() == 0

    run(main)
    assert log == ["shutdown"]
    assert (held(things), tries(things)) == (0, [0])


def test_wrong_arguments_are_refused_at_once(things: Collection, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(InvalidOptionError):
            async with open_claims(things, {"lock": 1}):
                pass
        with pytest.raises(InvalidOptionError):
            await run_claims(things, OPEN, lambda claim: None)  # type: ignore[arg-type, return-value]

    run(main)


def test_claims_need_an_event_loop(things: Collection) -> None:
    entering = open_claims(things, OPEN).__aenter__()
    with pytest.raises(MonqueError, match="open_claims needs an event loop"):
        entering.send(None)
