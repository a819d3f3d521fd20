"""Work on claims in handlers of run_claims: the same on trio, asyncio and uvloop."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio

from tests.asyncio_hosts.conftest import Run, VirtualRun
from tests.asyncio_hosts.scenes import BEATS, LONG, QUICK, are_free, until
from tests.support.documents import OPEN, fill, lock_of, take_away
from trio_monque import Claim, run_claims
from trio_monque.claims import RunningClaims
from trio_monque.events import DocumentDeadLettered
from trio_monque.store.driver.types import Collection


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
    # On asyncio, the next handler may begin before the one that has released the document has ended.
    assert sorted(log[:3]) == ["None", "began", "began"]
    assert log[3:] == ["shutdown"]
    assert are_free(things)


def test_a_handler_is_cancelled_by_its_time_limit_and_by_a_lost_lock(
    things: Collection, run_virtually: VirtualRun
) -> None:
    fill(things, 2)
    log = list[tuple[int, str]]()

    async def work(claim: Claim[Any]) -> None:
        if claim.id == 1:
            take_away(things, 1)
        try:
            await anyio.sleep_forever()
        finally:
            log.append((claim.id, str(claim.cancel_reason)))

    async def main() -> None:
        report = await run_claims(things, OPEN, work, wait=False, timeout=3, max_attempts=1, **BEATS)
        assert (report.failed, report.lost, report.dead_lettered) == (1, 1, 1)

    run_virtually(main)
    assert sorted(log) == [(0, "timeout"), (1, "lost")]
