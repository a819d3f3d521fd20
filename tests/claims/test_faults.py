"""Answers and requests that are lost, renewals beside settlements, and holders that die. Against a real server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from pymongo.uri_parser import parse_uri
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish, first_claim, kill, listened, lock_of, states
from tests.support.interception import Interceptor
from tests.support.internals import interferences_of_claims, run_of, sources_of_claim
from tests.support.lossy_proxy import Loss, LossyProxy, lossy_proxy
from trio_monque import open_claims, run_claims
from trio_monque.claims.rescues import DocumentRescues
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine import pauses
from trio_monque.errors import ClaimLostError
from trio_monque.events import DocumentDeadLettered, DocumentsRescued
from trio_monque.store.driver.types import Collection

COUNTED: Any = {"$set": {"state": "done"}, "$inc": {"written": 1}}


@pytest.fixture
def proxy(mongod: EmbeddedServer) -> Iterator[LossyProxy]:
    with lossy_proxy(parse_uri(mongod.uri)["nodelist"][0]) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: LossyProxy, things: Collection) -> Iterator[Collection]:
    """The same documents, by way of the proxy."""
    with MongoClient[Any](proxy.uri) as client:
        yield client[things.database.name][things.name]


@pytest.fixture
def virtual_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after faults freeze virtual time for some real seconds: in these tests leases run out meanwhile."""
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)


@contextmanager
def losing(proxy: LossyProxy, loss: Loss, matches: Callable[[dict[str, Any]], bool], times: int = 1) -> Iterator[None]:
    """The next updates that match are lost: all of them within the block."""
    proxy.lose("update", loss, times, matches=matches)
    yield
    assert len(proxy.lost) == times


def updates_of(command: dict[str, Any]) -> list[Any]:
    return [one.get("u") for one in command.get("documents") or command.get("updates") or []]


def is_claim(command: dict[str, Any]) -> bool:
    return any(isinstance(one, list) and "$mergeObjects" in str(one) for one in updates_of(command))


def is_renewal(command: dict[str, Any]) -> bool:
    return any(isinstance(one, dict) and "$max" in one for one in updates_of(command))


def is_end(command: dict[str, Any]) -> bool:
    return not is_claim(command) and not is_renewal(command) and bool(updates_of(command))


@pytest.mark.full
@pytest.mark.parametrize("loss", list(Loss))
@pytest.mark.parametrize("times", [1, 3])
async def test_finish_with_a_lost_message_is_written_once_and_reported_as_finished(
    behind: Collection,
    things: Collection,
    proxy: LossyProxy,
    autojump_clock: MockClock,
    loss: Loss,
    times: int,
) -> None:
    fill(things, 5)
    reported: list[Any] = []
    finished = []

    async def handler(claim: Any) -> None:
        await claim.finish(COUNTED)
        finished.append(claim.id)

    with losing(proxy, loss, is_end, times):
        report = await run_claims(behind, OPEN, handler, wait=False, listeners=listened(reported))
    assert sorted(finished) == [0, 1, 2, 3, 4]
    assert (report.finished, report.lost, report.failed, reported) == (5, 0, 0, [])
    assert things.count_documents({"state": "done", "written": 1, "lock": {"$exists": False}}) == 5


@pytest.mark.parametrize("loss", list(Loss))
async def test_failed_try_whose_message_is_lost_is_counted_once(
    behind: Collection, things: Collection, proxy: LossyProxy, autojump_clock: MockClock, loss: Loss
) -> None:
    fill(things, 1)
    attempts = []

    async def handler(claim: Any) -> None:
        attempts.append(claim.attempt)
        if claim.attempt == 1:
            raise ZeroDivisionError
        await claim.finish(COUNTED)

    with losing(proxy, loss, is_end):
        report = await run_claims(behind, OPEN, handler, wait=False)
    assert attempts == [1, 2]
    assert (report.finished, report.failed, report.lost) == (1, 1, 0)


@pytest.mark.parametrize("loss", list(Loss))
async def test_claim_whose_message_is_lost_runs_once(
    behind: Collection, things: Collection, proxy: LossyProxy, autojump_clock: MockClock, loss: Loss
) -> None:
    fill(things, 5)
    attempts = []

    async def handler(claim: Any) -> None:
        attempts.append((claim.id, claim.attempt))
        await claim.finish(COUNTED)

    with losing(proxy, loss, is_claim):
        report = await run_claims(behind, OPEN, handler, wait=False)
    assert sorted(attempts) == [(number, 1) for number in range(5)]
    assert report.finished == 5
    assert trio.current_time() < 2


@pytest.mark.full
@pytest.mark.usefixtures("virtual_pauses")
@pytest.mark.parametrize("loss", list(Loss))
async def test_renewal_whose_message_is_lost_is_made_again_and_nothing_is_lost(
    behind: Collection, things: Collection, proxy: LossyProxy, autojump_clock: MockClock, loss: Loss
) -> None:
    fill(things, 2)

    async def handler(claim: Any) -> None:
        await trio.sleep(100)
        await claim.finish(COUNTED)

    with losing(proxy, loss, is_renewal, times=2):
        report = await run_claims(behind, OPEN, handler, wait=False)
    assert (report.finished, report.lost) == (2, 0)


@pytest.mark.full
@pytest.mark.usefixtures("virtual_pauses")
async def test_finish_that_is_never_answered_raises_before_the_lease_ends_and_another_may_have_it(
    behind: Collection, things: Collection, proxy: LossyProxy, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    ends: list[Any] = []

    async def handler(claim: Any) -> None:
        if claim.attempt > 1 or ends:
            await claim.finish(COUNTED)
            return
        proxy.lose("update", Loss.REQUEST, 100_000)
        began = trio.current_time()
        try:
            with pytest.raises(ClaimLostError):
                await claim.finish({"$set": {"state": "never"}})
        finally:
            ends.append(trio.current_time() - began)
            proxy.forget()

    report = await run_claims(behind, OPEN, handler, wait=False, heartbeat_interval=0.5, operation_timeout=0.5)
    assert states(things) in (["done"], ["never"])
    assert ends[0] <= 1.5
    assert report.finished == 1
    assert things.count_documents({"lock": {"$exists": True}}) == 0


class Outage:
    """The first end of a claim is applied, and nothing is answered any more."""

    def __init__(self) -> None:
        self._has_begun = False

    def takes(self, purpose: str) -> bool:
        return self._has_begun or purpose == "settle documents"

    def inject(self, call: Callable[[], object]) -> Any:
        if not self._has_begun:
            self._has_begun = True
            call()
        raise AutoReconnect("nothing is answered")


@pytest.mark.usefixtures("virtual_pauses")
async def test_finish_whose_answer_comes_after_the_lease_is_not_reported_as_written(
    things: Collection, autojump_clock: MockClock
) -> None:
    """The lock is gone, and it may have been another holder who took it away."""
    fill(things, 1)
    reports: list[Any] = []
    interferences: list[list[Any]] = []

    async def handler(claim: Any) -> None:
        outage = Outage()
        for interference in interferences_of_claims(sources_of_claim(claim)):
            interference.append(outage)
            interferences.append(interference)
        await claim.finish(COUNTED)

    async def run() -> None:
        reports.append(await run_claims(things, OPEN, handler, wait=False, heartbeat_interval=2.0))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.sleep(7)  # A lease is six seconds.
        for one in interferences:
            one.clear()
    assert things.count_documents({"written": 1}) == 1
    assert (reports[0].finished, reports[0].lost) == (0, 1)


async def test_beat_that_finds_out_about_a_claim_makes_its_lock_last_longer(
    behind: Collection, things: Collection, proxy: LossyProxy, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    grown: list[Any] = []

    async def handler(claim: Any) -> None:
        grown.append(lock_of(things, claim.id)["until"] - run_of(claim).claim.cycle.stamp.until)
        await claim.finish(COUNTED)

    with losing(proxy, Loss.ANSWER, is_claim):
        await run_claims(behind, OPEN, handler, wait=False)
    assert grown == [timedelta(milliseconds=1)]


async def test_finish_beside_a_renewal_is_not_reported_as_lost(
    mongod: EmbeddedServer, things: Collection, autojump_clock: MockClock
) -> None:
    """Between the decision on a settlement and its arrival the lock is renewed: `until` is another one then."""
    fill(things, 1)
    interceptor = Interceptor()
    reported: list[Any] = []
    moved: list[Any] = []
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        own = client[things.database.name][things.name]

        async def handler(claim: Any) -> None:
            await trio.sleep(1)
            renewals = sources_of_claim(claim).renewals

            def renew() -> None:
                before = lock_of(things, claim.id)["until"]
                held = [run_of(claim).claim]
                trio.from_thread.run(renewals.renew, held, trio_token=token)
                moved.append(lock_of(things, claim.id)["until"] - before)

            token = trio.lowlevel.current_trio_token()
            interceptor.before(lambda name, command: name == "update" and is_end(dict(command)), renew)
            await claim.finish(COUNTED)

        report = await run_claims(own, OPEN, handler, wait=False, listeners=listened(reported))
    assert len(moved) == 1
    assert moved[0].total_seconds() > 0
    assert (report.finished, report.lost, reported) == (1, 0, [])
    assert things.count_documents({"written": 1}) == 1


async def test_renewal_behind_a_finish_is_not_reported_as_lost(
    mongod: EmbeddedServer, things: Collection, autojump_clock: MockClock
) -> None:
    """A renewal that was decided before, and arrives after the lock was taken away by the result."""
    fill(things, 1)
    interceptor = Interceptor()
    reported: list[Any] = []
    with MongoClient[Any](mongod.uri, event_listeners=[interceptor]) as client:
        own = client[things.database.name][things.name]
        is_sent, go_on = trio.Event(), threading.Event()

        async def handler(claim: Any) -> None:
            token = trio.lowlevel.current_trio_token()

            def hold() -> None:
                token.run_sync_soon(is_sent.set)
                assert go_on.wait(50)

            interceptor.before(lambda name, command: name == "update" and is_renewal(dict(command)), hold)
            await is_sent.wait()
            await claim.finish(COUNTED)
            go_on.set()
            await trio.sleep(50)
            assert claim.cancel_reason is None

        report = await run_claims(own, OPEN, handler, wait=False, listeners=listened(reported))
    assert (report.finished, report.lost, reported) == (1, 0, [])


@pytest.mark.full
@pytest.mark.usefixtures("virtual_pauses")
async def test_lock_that_cannot_be_renewed_cancels_its_work_before_the_lease_ends(
    behind: Collection, things: Collection, proxy: LossyProxy, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    ends: list[Any] = []
    reported: list[Any] = []

    async def handler(claim: Any) -> None:
        if ends:
            await claim.finish(COUNTED)
            return
        proxy.lose("update", Loss.REQUEST, 100_000, matches=is_renewal)
        try:
            with pytest.raises(ClaimLostError):
                async with claim:
                    await trio.sleep_forever()
        finally:
            ends.append((trio.current_time(), claim.cancel_reason))
            proxy.forget()

    report = await run_claims(
        behind, OPEN, handler, wait=False, listeners=listened(reported), heartbeat_interval=3.0, cleanup_timeout=1.0
    )
    assert ends == [(9 - 3 / 6 - 1, "lost")]
    assert (report.finished, report.lost) == (1, 1)
    assert [type(one).__name__ for one in reported] == ["DocumentClaimLost"]


@pytest.mark.full
@pytest.mark.parametrize("heartbeat_interval", [20.0, 2.0])
async def test_document_of_a_dead_holder_is_free_within_a_lease_and_a_pass(
    things: Collection, autojump_clock: MockClock, heartbeat_interval: float
) -> None:
    fill(things, 4)
    reported: list[Any] = []
    starts: list[Any] = []

    async def handler(claim: Any) -> None:
        starts.append((claim.id, claim.attempt, trio.current_time()))
        await claim.finish(DONE)

    options: Any = {"heartbeat_interval": heartbeat_interval, "retry_jitter": 0.0, "base_retry_interval": 0.5}
    async with trio.open_nursery() as nursery:
        async with open_claims(things, OPEN, **options) as dying:
            for _ in range(4):
                await anext(dying)
            other = await nursery.start(
                lambda task_status: run_claims(
                    things, OPEN, handler, listeners=listened(reported), task_status=task_status, **options
                )
            )
            await trio.sleep(3.3 * heartbeat_interval)  # Renewed three times.
            assert starts == []
            await kill(dying)
            died = trio.current_time()
        assert {lock_of(things, number)["by"] for number in range(4)} == {dying.id}
        await trio.sleep(10 * heartbeat_interval)
        other.drain()
    assert sorted(start[:2] for start in starts) == [(number, 2) for number in range(4)]
    # A lease, half a beat until the pass that sees it first, and the backoff of one try.
    assert all(2 * heartbeat_interval < at - died <= 3.5 * heartbeat_interval + 1.0 + 0.01 for _, _, at in starts)
    assert sum(one.count for one in reported if isinstance(one, DocumentsRescued)) == 4
    assert other.report.rescued == 4


@pytest.mark.full
async def test_document_that_kills_its_holders_is_set_aside(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    for number in range(2):
        async with open_claims(things, OPEN) as dying:
            claim = await anext(dying)
            assert claim.attempt == number + 1
            await kill(dying)
    reported: list[Any] = []
    report = await run_claims(things, OPEN, finish, wait=False, max_attempts=2, listeners=listened(reported))
    assert (report.finished, report.rescued, report.dead_lettered) == (0, 1, 1)
    (aside,) = (one for one in reported if isinstance(one, DocumentDeadLettered))
    assert (aside.document_id, aside.attempts) == (0, 2)
    assert "died" in aside.error
    assert lock_of(things)["error"] == aside.error


@pytest.mark.full
async def test_live_holder_is_not_rescued_however_long_it_works(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)

    async def slow(claim: Any) -> None:
        await trio.sleep(200)
        await claim.finish(DONE)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run_claims, things, OPEN, slow, wait=False))
        await trio.sleep(1)
        report = await run_claims(things, OPEN, finish, wait=False)
    assert (report.finished, report.rescued) == (0, 0)
    assert states(things) == ["done"]


async def test_earlier_claim_of_its_own_hides_no_later_one_on_the_same_document(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    async with first_claim(things, []) as claim:
        held, rescues = [run_of(claim).claim], sources_of_claim(claim).rescues
        assert isinstance(rescues, DocumentRescues)
        assert await rescues.observe(held) == []
        things.update_one({}, {"$set": {"lock.token": f"{lock_of(things)['by']}:later"}})
        (seen,) = await rescues.observe(held)
        assert seen.claim.id == claim.id
