"""How claims drain, are cut and crash: the same on trio, asyncio and uvloop."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import Run, VirtualRun
from tests.asyncio_hosts.scenes import BEATS, LONG, QUICK, are_free, until
from tests.support.documents import DONE, OPEN, fill, states
from trio_monque import Claim, MonqueError, open_claims, run_claims
from trio_monque.claims.renewals import DocumentRenewals
from trio_monque.errors import ClaimLostError, FilterStillMatchesError, InvalidOptionError
from trio_monque.store.driver.types import Collection


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
    assert are_free(things)


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
    assert are_free(things, failed=1)


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
    assert are_free(things)


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
    assert are_free(things)


def test_a_filter_that_stays_true_ends_the_claims(things: Collection, run: Run) -> None:
    fill(things, 3)

    async def main() -> None:
        with pytest.raises(FilterStillMatchesError):
            async with open_claims(things, OPEN, **QUICK) as claims:
                async for claim in claims:
                    async with claim:
                        await claim.finish({"$set": {"seen": True}})

    run(main)
    assert are_free(things)


def test_a_crash_cancels_blocks_and_is_raised_alone(
    things: Collection, run_virtually: VirtualRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(things, 1)
    log = list[str]()

    async def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    async def main() -> None:
        with pytest.raises(RuntimeError, match="a bug"):
            async with open_claims(things, OPEN, **BEATS) as claims:
                monkeypatch.setattr(DocumentRenewals, "renew", crash)
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

    run_virtually(main)
    assert log == ["shutdown"]
    assert are_free(things)


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
