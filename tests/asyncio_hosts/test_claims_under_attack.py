"""Claims of programs on asyncio: native cancellation, blocked, closed and other loops."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run, runtimes_left
from tests.asyncio_hosts.scenes import BEATS, LONG, QUICK, SECONDS_TO_BEAT, are_free, until
from tests.support.documents import DONE, OPEN, fill, lock_of, states, take_away
from tests.support.waiting import wait_for_changes, wait_until
from trio_monque import Claim, open_claims
from trio_monque.errors import ClaimLostError
from trio_monque.store.driver.types import Collection

OF_CLOCKS = 0.01
"""Seconds by which a moment may differ that was converted from one clock to another."""


def block_until_a_claim_waits(things: Collection) -> None:
    """Block the loop of the task that asked for it, until the claim was handed over as far as that is possible."""
    wait_until(lambda: (lock_of(things) or {"by": None})["by"], "the claim")
    wait_for_changes(lambda: lock_of(things)["until"], 2, "the lock, by renewals")


@pytest.mark.full
@ON_ASYNCIO
def test_a_claim_for_a_task_that_was_cancelled_natively_is_released(things: Collection, run: Run) -> None:
    async def main() -> None:
        async with open_claims(things, OPEN, heartbeat_interval=SECONDS_TO_BEAT, **QUICK) as claims:
            task = asyncio.create_task(anext(claims))
            await asyncio.sleep(0)
            fill(things, 1)
            block_until_a_claim_waits(things)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            with anyio.fail_after(40):
                async with await anext(claims) as claim:
                    assert claim.attempt == 1
                    await claim.finish(DONE)
        assert claims.report is not None
        assert (claims.report.released, claims.report.finished) == (1, 1)

    run(main)


@pytest.mark.full
@ON_ASYNCIO
def test_a_claim_that_a_blocked_loop_gets_late_has_its_whole_time(things: Collection, run: Run) -> None:
    async def main() -> None:
        blocked_until = list[float]()
        async with open_claims(things, OPEN, timeout=60.0, heartbeat_interval=SECONDS_TO_BEAT, **QUICK) as claims:
            async with anyio.create_task_group() as tasks:

                async def work() -> None:
                    async with await anext(claims) as claim:
                        await until(lambda: claim.deadline > blocked_until[0] + 60.0 - OF_CLOCKS)
                        assert claim.deadline < time.monotonic() + 60.0 + OF_CLOCKS
                        await claim.finish(DONE)

                tasks.start_soon(work)
                await asyncio.sleep(0)
                fill(things, 1)
                block_until_a_claim_waits(things)
                blocked_until.append(time.monotonic())

    run(main)
    assert states(things) == ["done"]


@ON_ASYNCIO
def test_the_end_of_the_program_releases_what_is_worked_on(things: Collection, run: Run) -> None:
    fill(things, 3)
    log, left_open = list[str](), list[Any]()

    async def work(claim: Claim[Any]) -> None:
        async with claim:
            log.append("entered")
            try:
                await anyio.sleep(LONG)
            finally:
                log.append("left")

    async def main() -> None:
        opened = open_claims(things, OPEN, concurrency=2, **QUICK)
        claims = await opened.__aenter__()
        await anext(claims)
        left_open.extend([opened, asyncio.create_task(work(await anext(claims)))])
        await until(lambda: log)

    run(main)
    wait_until(lambda: not runtimes_left(), "the runtime ends")
    assert log == ["entered", "left"]
    assert are_free(things)


@ON_ASYNCIO
def test_a_block_that_python_closes_counts_no_attempt(things: Collection, run: Run) -> None:
    fill(things, 1)
    log = list[str]()

    async def work(claim: Claim[Any]) -> None:
        async with claim:
            log.append("entered")
            await anyio.sleep(LONG)

    async def main() -> None:
        async with open_claims(things, OPEN, **QUICK) as claims:
            working = asyncio.create_task(work(await anext(claims)))
            await until(lambda: log)
            await anyio.to_thread.run_sync(working.get_coro().close)
            async with await anext(claims) as claim:
                assert claim.attempt == 1
                await claim.finish(DONE)

    run(main)


@pytest.mark.full
@ON_ASYNCIO
def test_claims_are_worked_on_in_another_loop(things: Collection, run: Run) -> None:
    fill(things, 2)
    log = list[str]()

    async def work(claims: Any) -> None:
        async with await anext(claims) as claim:
            await claim.finish(DONE)
        with pytest.raises(ClaimLostError):
            async with await anext(claims) as claim:
                take_away(things, claim.id)
                try:
                    await asyncio.sleep(LONG)
                finally:
                    log.append(str(claim.cancel_reason))

    async def main() -> None:
        async with open_claims(things, OPEN, concurrency=1, **BEATS) as claims:
            await anyio.to_thread.run_sync(partial(asyncio.run, work(claims), debug=True))

    run(main)
    assert log == ["lost"]
