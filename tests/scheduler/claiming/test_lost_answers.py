"""Answers that are lost on the way: found out, never guessed. By a proxy that really breaks the connection."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import trio
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, ServerSelectionTimeoutError
from pymongo.uri_parser import parse_uri
from trio.testing import MockClock

from tests.support.interception import written_by
from tests.support.interference import Slow
from tests.support.internals import context_of, die, engine_of, interference_of, sources_of, threads_of
from tests.support.lossy_proxy import Loss, LossyProxy, lossy_proxy
from tests.support.store import PAST, claim, handle, insert, stamp
from trio_monque import Monque, NewJob, RunningJob, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine.orphaned_claims import OrphanedClaims
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import JobClaimLost, JobCompleted, JobFailed, SchedulerErrorOccurred
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.store.driver.database_threads import Channel
from trio_monque.store.driver.types import Collection, Database, ObjectId
from trio_monque.store.jobs import claiming
from trio_monque.testing import SchedulerOpener, advance, assert_enqueued, drain, fail_next, now, quiesce


@pytest.fixture
def proxy(mongod: EmbeddedServer) -> Iterator[LossyProxy]:
    with lossy_proxy(parse_uri(mongod.uri)["nodelist"][0]) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: LossyProxy, db: Database) -> Iterator[Database]:
    """The same database, by way of the proxy."""
    with MongoClient[Any](proxy.uri) as client:
        yield client[db.name]


def sets_status(status: str, command: dict[str, Any]) -> bool:
    update = command.get("documents", [{}])[0].get("u", {})
    return bool(written_by(update).get("status") == status)


is_claim = partial(sets_status, "processing")


class Runs:
    """Every run that was made, and its events."""

    def __init__(self, *, takes: float = 0.0) -> None:
        self.attempts: list[int] = []
        self.reported: list[Any] = []
        self.workers = Workers()
        self.workers.register("job", self.handler)
        self._takes = takes

    async def handler(self, job: RunningJob[Any]) -> None:
        self.attempts.append(job.attempt)
        await trio.sleep(self._takes)

    @property
    def listeners(self) -> dict[Any, Any]:
        return dict.fromkeys((JobCompleted, JobFailed, JobClaimLost), self.reported.append)


async def test_claim_whose_answer_was_lost_is_found_and_run_once(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock
) -> None:
    runs = Runs()
    proxy.lose("update", matches=is_claim)
    await Monque(behind).enqueue("job")  # Found by a look: on an idle scheduler it would be claimed by its id.
    async with open_scheduler(behind, runs.workers, listeners=runs.listeners) as scheduler:
        await drain(scheduler)
        await assert_enqueued(scheduler, status="completed", count=1)
        assert trio.current_time() == 0  # No lease had to end for it.
    assert len(proxy.lost) == 1
    assert runs.attempts == [1]
    assert [type(event) for event in runs.reported] == [JobCompleted]


async def test_beat_that_finds_out_about_a_claim_is_later_than_the_claim(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock
) -> None:
    """No time has passed. Without a change, an observer of the claim would count its lease from before."""
    beats: list[timedelta] = []
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        (stored,) = jobs.find()
        beats.append(stored["lastHeartbeat"] - stored["lockedAt"])

    proxy.lose("update", matches=is_claim)
    await Monque(behind).enqueue("job")
    async with open_scheduler(behind, workers) as scheduler:
        await drain(scheduler)
    assert beats == [timedelta(milliseconds=1)]


async def test_claim_that_cannot_be_found_is_disowned_and_given_back_with_the_next_beat(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    resolve = claiming.resolve

    def blind_once(*arguments: Any) -> Any:
        monkeypatch.setattr(claiming, "resolve", resolve)
        return []  # As if it were applied only later.

    monkeypatch.setattr(claiming, "resolve", blind_once)
    proxy.lose("update", matches=is_claim)
    await Monque(behind).enqueue("job")
    faults: list[SchedulerErrorOccurred] = []
    listeners = {**runs.listeners, SchedulerErrorOccurred: faults.append}
    async with open_scheduler(behind, runs.workers, heartbeat_interval=10, listeners=listeners) as scheduler:
        await trio.sleep(9.999)
        await assert_enqueued(scheduler, status="processing", count=1)
        assert runs.attempts == []  # Whether it is held is not known: it does not run.
        assert len(faults) == 1
        await trio.sleep(0.001)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)
    assert runs.attempts == [2]


@pytest.mark.full
async def test_release_of_a_disowned_claim_that_fails_is_tried_again_soon_and_not_a_beat_later(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs()
    monkeypatch.setattr(claiming, "resolve", lambda *_: [])
    proxy.lose("update", matches=is_claim)
    proxy.lose("update", Loss.REQUEST, times=2, matches=partial(sets_status, "pending"))
    # Before the start, so that it is claimed by a look: a job announced alone is claimed by another command.
    await Monque(behind).enqueue("job")
    async with open_scheduler(behind, runs.workers, heartbeat_interval=10, listeners=runs.listeners) as scheduler:
        await trio.sleep(10)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)
        assert trio.current_time() == 10
    assert len(proxy.lost) == 3
    assert runs.attempts == [2]


@pytest.mark.parametrize("found", [0, 1])
async def test_disowned_claim_that_is_applied_after_a_beat_is_given_back_with_the_next_one(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock, found: int
) -> None:
    """Its message is on the way for longer than a beat, whether or not a part of it was applied at once."""
    runs, away = Runs(), list[Any]()

    def is_applied() -> None:
        (late,) = proxy.lost[0]["documents"]
        assert jobs.update_many(late["q"], late["u"]).modified_count == 1

    def is_on_the_way() -> None:
        away.append(jobs.find_one_and_delete({"data": "late"}))
        if found:
            is_applied()

    proxy.lose("update", Loss.REQUEST, matches=is_claim, after=is_on_the_way)
    await Monque(behind).enqueue_many([NewJob(name="job", data=data) for data in ["late", *["prompt"] * found]])
    async with open_scheduler(behind, runs.workers, heartbeat_interval=10, listeners=runs.listeners) as scheduler:
        await trio.sleep(15)
        jobs.insert_one(away[0])
        is_applied()
        await trio.sleep(5)
        await quiesce()
        assert runs.attempts == [1] * found + [2]
        done = await assert_enqueued(scheduler, status="completed", count=1 + found)
        assert [job.rescues for job in done] == [0] * (1 + found)
        await trio.sleep(21)
        assert not sources_of(scheduler).orphans.has_orphaned_claims()  # For one lease, and not for ever.


async def test_claim_that_was_never_sent_is_not_looked_for(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    runs, errors = Runs(), list[SchedulerErrorOccurred]()
    async with open_test_scheduler(runs.workers, listeners={SchedulerErrorOccurred: errors.append}) as scheduler:
        await quiesce()
        look = fail_next(scheduler, AutoReconnect("gone"), command="check the outcome of a claim")
        with fail_next(scheduler, ServerSelectionTimeoutError("no server"), command="claim jobs"):
            await scheduler.enqueue("job")
            await drain(scheduler)
        look.remove()
    assert (look.hits, runs.attempts, len(errors)) == ((), [1], 1)


async def test_job_that_runs_is_not_given_back_with_those_of_its_claim_that_are_disowned(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock
) -> None:
    runs = Runs(takes=100)

    def another_takes_one() -> None:
        jobs.update_one({"data": "another's"}, {"$set": {"claimedBy": "another"}})

    proxy.lose("update", matches=is_claim, after=another_takes_one)
    await Monque(behind).enqueue_many([NewJob(name="job", data="ours"), NewJob(name="job", data="another's")])
    async with open_scheduler(behind, runs.workers, heartbeat_interval=10, listeners=runs.listeners) as scheduler:
        await trio.sleep(101)
        await quiesce()
        await assert_enqueued(scheduler, status="completed", count=1)
    assert runs.attempts == [1]
    assert [type(event) for event in runs.reported] == [JobCompleted]


@pytest.mark.parametrize("slow", ["claim jobs", "check the outcome of a claim"])
async def test_claim_that_is_granted_to_a_scheduler_that_has_gone_is_given_back_at_once(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock, slow: str
) -> None:
    runs, under_way = Runs(), Slow(slow)
    async with open_test_scheduler(recover_stale_jobs=False) as other:
        with trio.CancelScope() as leaving:
            async with open_test_scheduler(runs.workers, recover_stale_jobs=False) as gone:
                await quiesce()
                interference_of(gone).append(under_way)
                if slow != "claim jobs":
                    fail_next(gone, AutoReconnect("the answer was lost"), when="after", command="claim jobs")
                await gone.enqueue("job")
                while not under_way.has_begun.is_set():
                    await trio.lowlevel.checkpoint()
                leaving.cancel()
                die(gone)
        assert runs.attempts == []
        under_way.may_go_on.set()
        other.register("job", runs.handler)
        await quiesce()
        (job,) = await assert_enqueued(other, status="completed", count=1)
        assert (runs.attempts, job.rescues) == ([2], 0)
    assert trio.current_time() < 30


def test_disowned_claim_that_cannot_be_released_does_not_stand_in_the_way_of_others(
    behind: Database, proxy: LossyProxy, jobs: Collection
) -> None:
    store = handle(behind)
    marks = [stamp("first"), stamp("second")]
    orphans: OrphanedClaims[ClaimStamp, ObjectId] = OrphanedClaims(
        lambda mark, held: claiming.release_all(store, mark, PAST, but=held)
    )
    for mark in marks:
        claim(store, 1, mark)
        orphans.add(mark, [], until=math.inf)
    proxy.lose(
        "update",
        Loss.REQUEST,
        times=2,
        matches=lambda it: it["documents"][0]["q"]["claimToken"] == marks[0].claim_token,
    )
    for _ in range(2):
        with pytest.raises(MonqueConnectionError):
            orphans.release(moment=0)
    assert jobs.distinct("claimToken") == [marks[0].claim_token]
    assert orphans.release(moment=0) == 1


@pytest.mark.parametrize("lost", [1, 3])
async def test_settlement_with_a_lost_answer_is_reported_with_its_true_outcome(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock, lost: int
) -> None:
    runs = Runs()
    proxy.lose("update", times=lost, matches=partial(sets_status, "completed"))
    delays: list[SchedulerErrorOccurred] = []
    async with open_scheduler(
        behind, runs.workers, listeners={**runs.listeners, SchedulerErrorOccurred: delays.append}
    ) as scheduler:
        await scheduler.enqueue("job")
        await drain(scheduler)
    assert len(proxy.lost) == lost
    assert len(delays) == 1, "once for each outage"
    assert runs.attempts == [1]
    assert [type(event) for event in runs.reported] == [JobCompleted]
    assert jobs.count_documents({"status": "completed"}) == 1


async def test_settled_job_is_not_sent_again_while_another_of_its_batch_is_decided_again(
    db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, ended, go_on = Workers(), list[Any](), trio.Event()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        await go_on.wait()

    def claimed_again(_: SchedulerErrorOccurred) -> None:
        # As the settlement of the next claim on the job does.
        jobs.update_one({"data": "one-off"}, {"$set": {"receipt": "of another settlement"}})

    listeners = {SchedulerErrorOccurred: claimed_again, JobCompleted: ended.append, JobClaimLost: ended.append}
    async with open_scheduler(db, workers, listeners=listeners, change_stream=False) as scheduler:
        await scheduler.enqueue("job", "one-off")
        await scheduler.enqueue("job", "recurring", unique_key="k")
        await quiesce()
        # From here on the recurring one is decided by another schedule than the one that its run has.
        jobs.update_one({"data": "recurring"}, {"$set": {"repeatInterval": "0 * * * *"}})
        with fail_next(scheduler, AutoReconnect("gone"), command="read the schedule of the job"):
            go_on.set()
            await drain(scheduler)
    assert sorted((type(event).__name__, event.job.data) for event in ended) == [
        ("JobCompleted", "one-off"),
        ("JobCompleted", "recurring"),
    ]
    assert jobs.distinct("status", {"data": "one-off"}) == ["completed"]
    assert jobs.distinct("status", {"data": "recurring"}) == ["pending"]


async def test_results_of_many_whose_answer_was_lost_are_each_jobs_own(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers, reported = Workers(), list[JobCompleted]()

    @workers.register("job", store_result=True, concurrency=20)
    async def handler(job: RunningJob[Any]) -> Any:
        return {"of": job.data}

    proxy.lose("update", times=2, matches=partial(sets_status, "completed"))
    async with open_scheduler(behind, workers, listeners={JobCompleted: reported.append}) as scheduler:
        await scheduler.enqueue_many([NewJob(name="job", data=number) for number in range(20)])
        await drain(scheduler)
    lost = [command["documents"] for command in proxy.lost]
    assert any(isinstance(one["u"], list) for one in lost[0])  # Many in one statement.
    assert lost[1] == lost[0]
    assert [one["result"] for one in jobs.find(sort=[("data", 1)])] == [{"of": number} for number in range(20)]
    assert sorted(event.job.result["of"] for event in reported) == list(range(20))
    assert jobs.distinct("attempts") == [1]


async def test_release_whose_answer_was_lost_is_sent_again_before_leaving_ends(
    behind: Database, proxy: LossyProxy, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    entered = trio.Event()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        entered.set()
        await trio.sleep_forever()

    proxy.lose("update", matches=partial(sets_status, "pending"))
    async with open_scheduler(behind, workers, shutdown_timeout=0) as scheduler:
        await scheduler.enqueue("job")
        await entered.wait()
    assert len(proxy.lost) == 1
    assert jobs.count_documents({"status": "pending"}) == 1
    assert scheduler.report is not None
    # A claim that was in flight meanwhile may have taken it once more, and given it back, too.
    assert scheduler.report.released >= 1
    assert scheduler.report.unfinished == ()


def test_claim_that_was_made_in_part_is_unknown_and_found_out(db: Database) -> None:
    """It may take several statements: the last one was never sent, and the others may have been."""
    store, mark = handle(db), stamp()
    found = [insert(store), insert(store)]

    class AfterAPart:
        def takes(self, purpose: str) -> bool:
            return purpose == "claim jobs"

        def inject(self, call: Callable[[], Any]) -> Any:
            store.interference.clear()
            claiming.take(store, found[:1], PAST, mark)
            raise ServerSelectionTimeoutError("no server was found")

    store.interference.append(AfterAPart())
    with pytest.raises(MonqueConnectionError) as caught:
        claiming.take(store, found, PAST, mark)
    assert caught.value.unknown_outcome
    assert [job.id for job in claiming.resolve(store, mark, PAST)] == [found[0].id]


async def test_heartbeat_grows_although_the_servers_clock_steps_back(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Workers()

    @workers.register("job")
    async def handler(job: RunningJob[Any]) -> None:
        await trio.sleep(45)

    beats: list[datetime] = []
    async with open_test_scheduler(workers, heartbeat_interval=10) as scheduler:
        await scheduler.enqueue("job")
        await advance(10)
        stands = now() - timedelta(hours=1)
        monkeypatch.setattr(context_of(scheduler).clock, "now", lambda: stands)
        for _ in range(3):
            document = jobs.find_one()
            assert document is not None
            beats.append(document["lastHeartbeat"])
            await advance(10)
    assert [later - earlier for earlier, later in pairwise(beats)] == [timedelta(milliseconds=1)] * 2


async def test_settlements_do_not_wait_behind_the_programs_commands(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    workers = Workers()
    workers.register("job", lambda job: None)
    release = threading.Event()
    async with open_test_scheduler(workers) as scheduler, trio.open_nursery() as nursery:
        for _ in range(Channel.COMMANDS.value + 5):
            nursery.start_soon(threads_of(scheduler).call, partial(release.wait, 50))
        await trio.testing.wait_all_tasks_blocked()
        scheduler.sync_in_loop.enqueue("job")
        engine_of(scheduler).wake.set()
        while not jobs.count_documents({"status": "completed"}):
            await trio.lowlevel.checkpoint()
        release.set()
