"""Runs of documents that miss their lease deadline are released uncounted, but not without end."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import OPEN, fill, listened
from tests.support.interference import Failing
from tests.support.internals import interferences_of_claims, parts_of
from trio_monque import Claim, run_claims
from trio_monque.claims import RunningClaims
from trio_monque.engine import pauses
from trio_monque.events import DocumentFailed
from trio_monque.host.run_ends import MissedLeaseError
from trio_monque.store.driver.types import Collection


async def test_runs_that_miss_their_lease_each_time_are_a_failed_attempt_at_last(
    things: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)  # An outage takes virtual time.
    fill(things, 1)
    runs, reported = 0, list[Any]()

    async def handle(claim: Claim[Any]) -> None:
        nonlocal runs
        runs += 1
        await trio.sleep_forever()

    options: dict[str, Any] = {"max_attempts": 1, "listeners": listened(reported)}
    with trio.fail_after(3000):
        async with trio.open_nursery() as nursery:
            claims: RunningClaims = await nursery.start(partial(run_claims, things, OPEN, handle, **options))
            for one in interferences_of_claims(parts_of(claims).sources):
                one.append(Failing("renew claims"))
            while not any(isinstance(one, DocumentFailed) for one in reported):
                await trio.sleep(10)
            nursery.cancel_scope.cancel()
    (failed,) = [one for one in reported if isinstance(one, DocumentFailed)]
    assert isinstance(failed.error, MissedLeaseError)
    assert runs == 4
