"""Behind a block, the cancellation of a run comes before what the children ended with."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest
from bson import ObjectId

from trio_monque.engine.run_end import CancelReason
from trio_monque.error_types import MonqueError
from trio_monque.jobs import JobStatus
from trio_monque.jobs.job import Job
from trio_monque.scheduler.handler_nurseries import HandlerNurseries

LOOPS = ("asyncio", "trio")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
JOB = Job(
    id=ObjectId(), name="order", data=None, status=JobStatus.PROCESSING, next_run_at=NOW, created_at=NOW, updated_at=NOW
)


class Engine:
    """An engine whose cancellation arrives at the handler while it answers, or that has ended."""

    def __init__(self, arrives_in: anyio.CancelScope | None) -> None:
        self._arrives_in = arrives_in
        self.calls = 0

    async def call_for(self, *_: object) -> None:
        self.calls += 1
        if self._arrives_in is None:
            raise MonqueError("the engine has ended")
        self._arrives_in.cancel()


def owner(reason: CancelReason | None, engine: Engine) -> HandlerNurseries:
    loop = SimpleNamespace(cancel_reason=lambda _: reason, engine=engine)
    return HandlerNurseries(
        cast("Any", SimpleNamespace(claim=JOB)), cast("Any", loop), cast("Any", None), cast("Any", None)
    )


@pytest.mark.parametrize("loop", LOOPS)
def test_cancellation_that_is_on_its_way_is_awaited_and_raised(loop: str) -> None:
    async def main() -> None:
        reached = False
        with anyio.CancelScope() as scope:
            await owner(CancelReason.SHUTDOWN, Engine(scope)).raise_if_cancelled()
            reached = True
        assert (scope.cancelled_caught, reached) == (True, False)

    anyio.run(main, backend=loop)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize(("reason", "calls"), [(None, 0), (CancelReason.SHUTDOWN, 1)])
def test_run_without_a_cancellation_goes_on(loop: str, reason: CancelReason | None, calls: int) -> None:
    async def main() -> None:
        engine = Engine(None)
        await owner(reason, engine).raise_if_cancelled()
        assert engine.calls == calls

    anyio.run(main, backend=loop)
