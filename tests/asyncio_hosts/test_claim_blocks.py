"""Work on claims in blocks and loops: the same on trio, asyncio and uvloop."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import Run, VirtualRun
from tests.asyncio_hosts.scenes import BEATS, LONG, QUICK
from tests.support.documents import DONE, OPEN, fill, lock_of, states, take_away
from trio_monque import Claim, MonqueError, open_claims
from trio_monque.errors import ClaimLostError, InvalidOptionError, InvalidUpdateError
from trio_monque.store.driver.types import Collection


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


def test_a_lost_lock_cancels_the_block_at_each_checkpoint(things: Collection, run_virtually: VirtualRun) -> None:
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
                        except anyio.get_cancelled_exc_class():
                            log.append(str(claim.cancel_reason))
                    await anyio.sleep(LONG)
            with pytest.raises(ClaimLostError):
                await claim.finish(DONE)
        assert claims.report is not None
        assert claims.report.lost == 1

    run_virtually(main)
    assert log == ["lost", "lost"]
    assert lock_of(things)["by"] == "another"


def test_a_time_limit_cancels_the_block_and_counts_an_attempt(things: Collection, run_virtually: VirtualRun) -> None:
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

    run_virtually(main)
    assert states(things) == ["done"]


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
            with anyio.fail_after(40):
                while "new" in states(things):
                    async with await anext(claims) as claim:
                        assert claim.attempt == 1
                        await claim.finish(DONE)

    run(main)
    assert states(things) == ["done"] * 6
