"""Health and statistics of claims: the same on trio, asyncio and uvloop, and in a plain thread."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import QUICK, until
from tests.support.documents import DONE, OPEN, fill, states
from tests.support.waiting import wait_until
from trio_monque import Claim, Health, open_claims, run_claims
from trio_monque.claims import ClaimsStatistics, RunningClaims
from trio_monque.store.driver.types import Collection


def counts(claims: RunningClaims) -> tuple[int, int, int, int]:
    one = claims.statistics()
    return one.claimed, one.finished, one.failed, one.running


def test_claims_report_what_runs_and_what_ended(things: Collection, run: Run) -> None:
    fill(things, 4)

    async def main() -> None:
        may_end = anyio.Event()

        async def work(claim: Claim[Any]) -> None:
            if claim.id == 0 and claim.attempt == 1:
                raise ValueError("once")
            await may_end.wait()
            await claim.finish(DONE)

        async with anyio.create_task_group() as tasks:
            claims: RunningClaims = await tasks.start(partial(run_claims, things, OPEN, work, **QUICK))
            await until(lambda: counts(claims) == (5, 0, 1, 4))
            health = await anyio.to_thread.run_sync(claims.health)
            assert (health.healthy, health.reasons) == (True, ())
            assert {"claimer", "heartbeat"} <= {loop.name for loop in health.loops if loop.healthy}
            may_end.set()
            await until(lambda: claims.statistics().finished == 4)
            claims.drain()
        assert counts(claims) == (5, 4, 1, 0)
        assert not claims.is_healthy()
        assert "the claims instance has ended" in claims.health().reasons

    run(main)
    assert states(things) == ["done"] * 4


def complaints(health: Health) -> list[str]:
    return [one for one in health.reasons if one.startswith("the application's event loop has not answered for ")]


@pytest.mark.full
@ON_ASYNCIO
def test_loop_that_does_not_answer_is_a_reason_and_is_counted_in_the_report(
    things: Collection, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    fill(things, 2)
    seen, counted = list[Health](), list[ClaimsStatistics]()

    async def main() -> None:
        async with open_claims(things, OPEN, concurrency=2, **QUICK) as claims:

            def until_it_is_counted() -> None:
                wait_until(lambda: not claims.is_healthy() and complaints(claims.health()), "the complaint")
                seen.append(claims.health())
                counted.append(claims.statistics())
                wait_until(lambda: "Claims are renewed meanwhile" in caplog.text, "the block is counted")

            async with await anext(claims) as claim:
                thread = threading.Thread(target=until_it_is_counted)
                thread.start()
                thread.join()  # Blocks the loop.
                await claim.finish(DONE)
            await until(claims.is_healthy)
        assert claims.report is not None
        assert (claims.report.finished, claims.report.lost, claims.report.loop_blocked) == (1, 0, 1)

    run(main)
    assert len(complaints(seen[0])) == 1
    assert "by the block of 0 (attempt 1). Claims are renewed meanwhile" in caplog.text
    assert all(loop.healthy for loop in seen[0].loops), "the thread of the claims renews them"
    assert (counted[0].running, counted[0].waiting, counted[0].free_slots) == (1, 1, 0)
