"""Claims whose `finish` the server refuses while its caller is cancelled natively, so that it does not get the error.

On trio, and in a cancelled scope of anyio, the caller gets the error.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from tests.asyncio_hosts.conftest import ON_ASYNCIO, Run
from tests.asyncio_hosts.scenes import QUICK, until
from tests.support.documents import DONE, OPEN, fill, states
from tests.support.internals import interferences_of_claims, sources_of_claim
from trio_monque import Claim, open_claims, run_claims
from trio_monque.errors import InvalidUpdateError
from trio_monque.events import DocumentFailed
from trio_monque.store.driver.types import Collection

pytestmark = ON_ASYNCIO


class HeldEnd:
    """Holds the first end of a claim open, until `go_on` is set."""

    def __init__(self, claim: Claim[Any]) -> None:
        self.is_sent = False
        self.go_on = threading.Event()
        for interference in interferences_of_claims(sources_of_claim(claim)):
            interference.append(self)

    def takes(self, purpose: str) -> bool:
        return purpose == "settle documents" and not self.is_sent

    def inject(self, call: Callable[[], object]) -> object:
        self.is_sent = True
        assert self.go_on.wait(20)
        return call()


async def finish_cancelled_natively(claim: Claim[Any]) -> None:
    """The server refuses the update, and the caller gets CancelledError instead of that error."""
    held_end = HeldEnd(claim)
    task = asyncio.create_task(claim.finish({"$inc": {"state": 1}}))
    await until(lambda: held_end.is_sent)
    task.cancel()
    held_end.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["ends normally", "is cancelled"])
def test_a_block_fails_by_a_refusal_that_its_natively_cancelled_finish_did_not_get(
    things: Collection, run: Run, *, is_cancelled: bool
) -> None:
    fill(things, 1)

    async def main() -> None:
        async with open_claims(things, OPEN, wait=False, **QUICK) as claims:
            async for claim in claims:
                with pytest.raises(asyncio.CancelledError) if is_cancelled and claim.attempt == 1 else nullcontext():
                    async with claim:
                        if claim.attempt > 1:
                            await claim.finish(DONE)
                            continue
                        await finish_cancelled_natively(claim)
                        if is_cancelled:
                            raise asyncio.CancelledError
        assert claims.report is not None
        assert (claims.report.failed, claims.report.finished) == (1, 1)

    run(main)
    assert states(things) == ["done"]


@pytest.mark.parametrize("finishes_again", [False, True])
def test_a_handler_fails_by_a_refusal_that_its_natively_cancelled_finish_did_not_get_or_finishes_again(
    things: Collection, run: Run, *, finishes_again: bool
) -> None:
    fill(things, 1)
    failures = list[Any]()

    async def handler(claim: Claim[Any]) -> None:
        if claim.attempt == 1:
            await finish_cancelled_natively(claim)
        if claim.attempt > 1 or finishes_again:
            await claim.finish(DONE)

    async def main() -> None:
        listeners: Mapping[Any, Any] = {DocumentFailed: failures.append}
        report = await run_claims(things, OPEN, handler, wait=False, listeners=listeners, **QUICK)
        assert (report.failed, report.finished) == (0 if finishes_again else 1, 1)

    run(main)
    assert [type(one.error) for one in failures] == ([] if finishes_again else [InvalidUpdateError])
    assert states(things) == ["done"]
