"""Waits for jobs: the database fails, or answers late, at each step of the wait. And what the steps cost.

Polls are switched off where a test shows that the wait does not need them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import dropwhile
from typing import Any, Final, TypeVar

import bson
import pytest
import trio
from bson import Binary, ObjectId
from bson.binary import OLD_BINARY_SUBTYPE
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, OperationFailure
from trio.testing import MockClock

from tests.support.fail_points import refusing_server
from tests.support.interception import Recorder
from tests.support.internals import interference_of
from tests.support.store import handle
from tests.support.waiting import wait_until
from trio_monque import JobCancelledError, JobDeletedError, JobFailedError, Monque, NewJob
from trio_monque.client import job_wait_polling
from trio_monque.client.job_wait import JobWait
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError, MonqueError
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import ended_jobs
from trio_monque.store.jobs.ended_jobs import EndedLook
from trio_monque.testing import fail_next

T = TypeVar("T")

LOOK: Final = "look for the ends of jobs"
OPEN: Final = "open the stream of ends"
READ: Final = "read the ends of jobs"
NEVER: Final = 1e6
ENDS: Final = ("completed", "failed", "cancelled", "deleted")


@pytest.fixture
def monque(db: Database) -> Monque:
    return Monque(db)


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_BESIDE_STREAM", "POLL_WITHOUT_STREAM"):
        monkeypatch.setattr(job_wait_polling, name, NEVER)


@pytest.fixture
def no_polls_beside_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_wait_polling, "POLL_BESIDE_STREAM", NEVER)


class Call:
    """Stands in the way of the next call with that purpose: `inject` makes its answer.

    Args:
        of_looker: Of the calls that the client's own thread makes; False: of those that callers make.
    """

    def __init__(
        self, monque: Monque, purpose: str, inject: Callable[[Callable[[], Any]], Any], *, of_looker: bool = True
    ) -> None:
        self._purpose, self._inject, self._all, self._of_looker = purpose, inject, interference_of(monque), of_looker
        self._all.append(self)

    def takes(self, purpose: str) -> bool:
        return purpose == self._purpose and threading.current_thread().name.startswith("monque-") == self._of_looker

    def inject(self, call: Callable[[], T]) -> T:
        self._all.remove(self)
        answer: T = self._inject(call)
        return answer


class Seen:
    """Notices calls with that purpose, and lets them pass."""

    def __init__(self, monque: Monque, purpose: str) -> None:
        self._purpose, self.times = purpose, 0
        interference_of(monque).append(self)

    def takes(self, purpose: str) -> bool:
        self.times += purpose == self._purpose
        return False

    def inject(self, call: Callable[[], T]) -> T:
        raise AssertionError

    async def once(self) -> None:
        await trio.to_thread.run_sync(partial(wait_until, lambda: self.times, f"it comes to: {self._purpose}"))


def end(jobs: Collection, job_id: ObjectId, how: str) -> None:
    """As any other program may do it."""
    if how == "deleted":
        assert jobs.delete_one({"_id": job_id}).deleted_count == 1
    else:
        assert jobs.update_one({"_id": job_id}, {"$set": {"status": how, "result": 8}}).modified_count == 1


async def how_it_ended(monque: Monque, job_id: ObjectId) -> str:
    with trio.fail_after(20):
        try:
            ended: Job[Any] = await monque.wait_job(job_id)
        except (JobFailedError, JobCancelledError) as error:
            ended = error.job
        except JobDeletedError:
            return "deleted"
    assert ended.result == 8
    return ended.status.value


@pytest.mark.full
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("looks_that_fail", [1, 2, 4])
async def test_wait_outlasts_looks_that_fail(
    monque: Monque, jobs: Collection, caplog: pytest.LogCaptureFixture, how: str, looks_that_fail: int
) -> None:
    """The caller's own look, that one and the next, or more of them: in between, the job ends."""
    job = await monque.enqueue("double", 4)
    with fail_next(monque, AutoReconnect("gone"), command=LOOK, times=looks_that_fail):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, partial(end, jobs, job.id, how))
            assert await how_it_ended(monque, job.id) == how
    warnings = [one for one in caplog.records if "waits for jobs continue" in one.getMessage() and one.levelno >= 30]
    assert len(warnings) == (looks_that_fail > 1)


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("how", ENDS)
async def test_job_ends_between_the_callers_own_look_and_the_opening_of_the_stream(
    monque: Monque, jobs: Collection, how: str
) -> None:
    job = await monque.enqueue("double", 4)

    def first_open(call: Callable[[], Any]) -> Any:
        end(jobs, job.id, how)
        jobs.database["other"].insert_one({})  # The stream begins with this: only a look finds what was before.
        return call()

    Call(monque, OPEN, first_open)
    assert await how_it_ended(monque, job.id) == how


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("how", ENDS)
async def test_job_ends_between_the_callers_own_look_and_the_wait_while_a_stream_is_open(
    monque: Monque, jobs: Collection, how: str
) -> None:
    """The open stream reports it when no wait is for it yet."""
    passed, job = await monque.enqueue("double", 1), await monque.enqueue("double", 2)
    is_open, ended = Seen(monque, READ), list[str]()

    async def wait_for_the_other() -> None:
        ended.append(await how_it_ended(monque, passed.id))

    def first_look(call: Callable[[], Any]) -> Any:
        found = call()
        end(jobs, job.id, how)
        end(jobs, passed.id, "completed")
        wait_until(lambda: ended, "the stream has come to a later end")
        return found

    async with trio.open_nursery() as nursery:
        live = await monque.enqueue("double", 3)
        nursery.start_soon(monque.wait_job, live)  # Keeps the stream open.
        nursery.start_soon(wait_for_the_other)
        await is_open.once()
        Call(monque, LOOK, first_look, of_looker=False)
        assert await how_it_ended(monque, job.id) == how
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("how", ENDS)
async def test_look_at_a_reported_job_that_fails_is_made_again(monque: Monque, jobs: Collection, how: str) -> None:
    job = await monque.enqueue("double", 4)
    is_open = Seen(monque, READ)

    def fail(call: Callable[[], Any]) -> Any:
        raise AutoReconnect("gone")

    async with trio.open_nursery() as nursery:

        async def end_it() -> None:
            await is_open.once()
            Call(monque, LOOK, fail)
            end(jobs, job.id, how)

        nursery.start_soon(end_it)
        assert await how_it_ended(monque, job.id) == how


@pytest.mark.usefixtures("no_polls")
@pytest.mark.parametrize("how", ENDS)
async def test_reported_job_that_a_majority_does_not_show_as_ended_yet_is_looked_at_again(
    monque: Monque, jobs: Collection, how: str
) -> None:
    job = await monque.enqueue("double", 4)
    late: list[EndedLook] = []

    def look_behind_the_opening(call: Callable[[], Any]) -> Any:
        found = call()
        Call(monque, LOOK, look_at_what_is_reported)
        end(jobs, job.id, how)
        return found

    def look_at_what_is_reported(call: Callable[[], Any]) -> Any:
        late.append(EndedLook())
        return late[0]

    Call(monque, LOOK, look_behind_the_opening)
    assert await how_it_ended(monque, job.id) == how
    assert late


@pytest.mark.usefixtures("no_polls")
async def test_job_that_a_late_look_does_not_find_is_not_taken_for_deleted(monque: Monque, jobs: Collection) -> None:
    """As in an election: a majority read does not find a job that was acknowledged."""
    job = await monque.enqueue("double", 4)
    for of_looker in (False, True):
        Call(monque, LOOK, lambda _: EndedLook(unseen={job.id}), of_looker=of_looker)
    looks = Seen(monque, LOOK)
    async with trio.open_nursery() as nursery:

        async def end_it() -> None:
            # Those two and one more: a job that was not found is looked at again soon, and not with the next poll.
            await trio.to_thread.run_sync(partial(wait_until, lambda: looks.times >= 3, "it is looked at again"))
            end(jobs, job.id, "completed")

        nursery.start_soon(end_it)
        assert await how_it_ended(monque, job.id) == "completed"


@pytest.mark.usefixtures("no_polls")
async def test_report_that_the_driver_cannot_decode_ends_no_wait(monque: Monque, jobs: Collection) -> None:
    """The stream reports deletions of all documents. One has an `_id` whose length, the first byte, is a wrong one."""
    job = await monque.enqueue("double", 4)
    readable = bson.encode({"_id": Binary(b"12345678", OLD_BINARY_SUBTYPE)})
    unreadable: Any = RawBSONDocument(readable.replace(b"\x08\x00\x00\x00", b"\x63\x00\x00\x00"))
    jobs.insert_one(unreadable)
    openings, reads = Seen(monque, OPEN), Seen(monque, READ)
    async with trio.open_nursery() as nursery:

        async def end_it() -> None:
            await reads.once()
            assert jobs.delete_one(unreadable).deleted_count == 1
            await trio.to_thread.run_sync(partial(wait_until, lambda: openings.times >= 2, "it is opened again"))
            end(jobs, job.id, "completed")

        nursery.start_soon(end_it)
        assert await how_it_ended(monque, job.id) == "completed"


@pytest.mark.full
@pytest.mark.usefixtures("no_polls_beside_the_stream")
@pytest.mark.parametrize("how", ENDS)
async def test_client_polls_while_a_stream_that_broke_cannot_be_opened_again(
    monque: Monque, jobs: Collection, how: str
) -> None:
    job = await monque.enqueue("double", 4)
    is_open = Seen(monque, READ)
    async with trio.open_nursery() as nursery:

        async def end_it() -> None:
            await is_open.once()
            with (
                fail_next(monque, AutoReconnect("gone"), command=OPEN, times=None),
                fail_next(monque, AutoReconnect("gone"), command=READ, times=1) as broken,
            ):
                await trio.to_thread.run_sync(partial(wait_until, lambda: broken.happened, "the stream breaks"))
                end(jobs, job.id, how)
                await has_ended.wait()

        has_ended = trio.Event()
        nursery.start_soon(end_it)
        assert await how_it_ended(monque, job.id) == how
        has_ended.set()


async def test_wait_in_virtual_time_outlasts_a_look_that_fails(monque: Monque, autojump_clock: MockClock) -> None:
    job = await monque.enqueue("double", 1)
    await monque.cancel_job(job.id)
    with fail_next(monque, AutoReconnect("gone"), command=LOOK, times=3):
        with pytest.raises(JobCancelledError):
            await monque.wait_job(job)


async def test_outage_that_lasts_as_long_as_the_wait_is_the_cause_of_its_end(
    monque: Monque, autojump_clock: MockClock
) -> None:
    job = await monque.enqueue("double", 1)
    with fail_next(monque, AutoReconnect("gone"), command=LOOK, times=None):
        with pytest.raises(
            TimeoutError, match="after 100 s; the job continues; the last query failed: .*gone"
        ) as error:
            await monque.wait_job(job, timeout=100)
    assert isinstance(error.value.__cause__, MonqueConnectionError)
    assert 100 <= trio.current_time() < 101


async def test_error_that_does_not_pass_ends_the_wait_at_the_first_look(monque: Monque) -> None:
    job = await monque.enqueue("double", 1)
    with fail_next(monque, OperationFailure("no rights", 13), command=LOOK):
        with pytest.raises(MonqueConnectionError, match="no rights"):
            await monque.wait_job(job, timeout=200)


# --- One wait ---


def test_wait_notes_only_what_concerns_its_own_jobs() -> None:
    """One look serves many waits."""
    ours, theirs = job_that(JobStatus.COMPLETED), job_that(JobStatus.COMPLETED)
    wait = JobWait([ours.id], "first", check=True)
    wait.take(EndedLook(ended={theirs.id: theirs}, recurring={ObjectId()}), gone=[ObjectId()])
    wait.fail(MonqueError("of another job"), theirs.id)
    assert not wait.is_over
    wait.take(EndedLook(ended={ours.id: ours}))
    assert wait.result() == [ours]
    wait.fail(MonqueError("too late"), ours.id)
    assert wait.result() == [ours]


def job_that(status: JobStatus) -> Job[Any]:
    moment = datetime.now(UTC)
    return Job(
        id=ObjectId(), name="x", data=None, status=status, next_run_at=moment, created_at=moment, updated_at=moment
    )


# --- What it costs ---


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def recorded(mongod: EmbeddedServer, db: Database, recorder: Recorder) -> Iterator[Monque]:
    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        yield Monque(client[db.name])


def ids_asked(recorder: Recorder) -> list[int]:
    """How many ids each look has named."""
    return [
        len(command["pipeline"][0]["$match"]["_id"]["$in"])
        for name, command in tuple(recorder.commands)
        if name == "aggregate" and "$match" in command["pipeline"][0]
    ]


@pytest.mark.usefixtures("no_polls")
async def test_many_waits_name_each_id_once_in_a_look_and_there_are_two_looks(
    recorded: Monque, recorder: Recorder, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The caller's own, and the one after the opening of the stream."""
    monkeypatch.setattr(ended_jobs, "MOST_IN_A_QUERY", 40)
    ids = [job.id for job in await recorded.enqueue_many([NewJob("double", number) for number in range(100)])]
    is_open, looks = Seen(recorded, READ), Seen(recorded, LOOK)
    recorder.commands.clear()
    async with trio.open_nursery() as nursery:

        async def end_one() -> None:
            await is_open.once()
            await trio.to_thread.run_sync(partial(wait_until, lambda: looks.times >= 2, "both looks"))
            end(jobs, ids[7], "completed")

        nursery.start_soon(end_one)
        (ended,) = await recorded.wait_jobs(ids, until="first")
    assert ended.id == ids[7]
    # One more look at the job that was reported, unless the second one has found its end.
    assert ids_asked(recorder) in ([40, 40, 20, 40, 40, 20], [40, 40, 20, 40, 40, 20, 1])
    assert not recorder.count(lambda name, command: name == "find" and command["filter"]["_id"] is not None)


async def test_many_deleted_jobs_are_proven_to_be_gone_by_one_linearizable_read(
    recorded: Monque, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ended_jobs, "MOST_IN_A_QUERY", 40)
    there = await recorded.enqueue("double", 1)
    ids = [ObjectId() for _ in range(100)]
    recorder.commands.clear()
    with pytest.raises(JobDeletedError):
        await recorded.wait_jobs([there.id, *ids])
    reads = [command for name, command in recorder.commands if name == "find"]
    levels = [read["readConcern"]["level"] for read in reads]
    assert levels == ["linearizable", "majority", "majority", "majority"]
    assert "afterClusterTime" not in reads[0]["readConcern"]
    assert len({read["lsid"]["id"] for read in reads[1:]}) == 1
    assert all("afterClusterTime" in read["readConcern"] for read in reads[1:])


@pytest.mark.full
def test_proof_that_a_job_is_gone_is_tried_again_by_the_driver() -> None:
    """In an election. The refusal comes with a time, and each server refuses a linearizable read after a time."""
    with refusing_server() as server, server.client() as client, MongoClient[Any](server.uri) as admin:
        monque = Monque(client["shop"])
        monque.sync.enqueue("first")
        data = {"failCommands": ["find"], "errorCode": 189, "appName": server.app}  # PrimarySteppedDown
        admin.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})
        gone = ObjectId()
        assert ended_jobs.gone_among(handle(client["shop"]), [gone]) == {gone}


async def test_stream_begins_at_a_moment_that_the_look_behind_it_has_seen(recorded: Monque, recorder: Recorder) -> None:
    """By itself it would begin later: with what its server has written last, and a majority need not hold yet."""
    job = await recorded.enqueue("double", 1)

    def stream_and_looks_behind_it() -> list[Any]:
        sent = [command for name, command in recorder.commands if name == "aggregate"]
        return list(dropwhile(lambda one: "$changeStream" not in one["pipeline"][0], sent))

    with trio.move_on_after(20) as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recorded.wait_job, job)
            is_sent = partial(wait_until, lambda: len(stream_and_looks_behind_it()) >= 2, "the look after the opening")
            await trio.to_thread.run_sync(is_sent)
            nursery.cancel_scope.cancel()
    assert not scope.cancelled_caught
    stream, look, *_ = stream_and_looks_behind_it()  # On a busy machine, others follow.
    begins = stream["pipeline"][0]["$changeStream"]["startAtOperationTime"]
    assert look["readConcern"]["level"] == "majority"
    assert look["readConcern"]["afterClusterTime"] >= begins
