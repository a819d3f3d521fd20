"""Claims of programs on asyncio: native cancellation, blocked, closed and other loops."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run, runtimes_left
from tests.asyncio_hosts.scenes import BEATS, LONG, QUICK, are_free, until
from tests.support.documents import DONE, OPEN, fill, lock_of, states, take_away
from trio_monque import Claim, open_claims
from trio_monque.errors import (
    ClaimLostError,
)
from trio_monque.store.types import Collection


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
    while runtimes_left():
        time.sleep(0.01)
    assert log == ["entered", "left"]
    assert are_free(things)


@ON_ASYNCIO
def test_a_block_that_python_closes_counts_no_attempt(things: Collection, run: Run) -> None:
    fill(things, 1)

    async def work(claim: Claim[Any]) -> None:
        async with claim:
            await anyio.sleep(LONG)

    async def main() -> None:
        async with open_claims(things, OPEN, **QUICK) as claims:
            working = asyncio.create_task(work(await anext(claims)))
            await anyio.sleep(0.05)
            await anyio.to_thread.run_sync(working.get_coro().close)
            async with await anext(claims) as claim:
                assert claim.attempt == 1
                await claim.finish(DONE)

    run(main)


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
