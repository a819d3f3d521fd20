"""What a client accepts, a worker can read, and the server can change: all else is refused before anything is sent."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson import Code, DatetimeMS, DBRef
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo import MongoClient
from trio.testing import MockClock

from tests.support.fail_points import refusing_server
from trio_monque import JobStatus, Monque, NewJob, RunningJob, Workers
from trio_monque.errors import InvalidPayloadError
from trio_monque.jobs.stored_value_limits import DEEPEST, check_payload, snapshot
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, advance, quiesce

PLAIN = CodecOptions[dict[str, Any]]()
BAD_TEXT = RawBSONDocument(bson.encode({"a": "QQ"}).replace(b"QQ", b"\xff\xfe"))


def documents(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = {"a": value}
    return value


def arrays(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


UNREADABLE = {
    "date beyond Python's": ({"at": [1, DatetimeMS(2**60)]}, "data['at'][1]"),
    "date before Python's": (DatetimeMS(-(2**60)), "data is"),
    "raw document": ({"inner": BAD_TEXT}, "data['inner']"),
    "raw document alone": (BAD_TEXT, "data is RawBSONDocument"),
    "raw document with an unknown type": (
        RawBSONDocument(bson.encode({"a": 1}).replace(b"\x10a", b"\x77a")),
        "data is",
    ),
    "documents": (documents(DEEPEST + 1), "more than 178 levels"),
    "arrays": (arrays(DEEPEST + 1), "more than 178 levels"),
    "a reference": (DBRef("c", documents(DEEPEST)), "more than 178 levels"),
    "raw documents": (RawBSONDocument(bson.encode(documents(190))), "more than 178 levels"),
}


@pytest.mark.parametrize(("data", "expected"), UNREADABLE.values(), ids=UNREADABLE)
async def test_data_that_no_worker_could_read_is_refused_by_every_way_in(
    unused_port: int, data: Any, expected: str
) -> None:
    with MongoClient[Any]("127.0.0.1", unused_port) as client:
        monque = Monque(client["nowhere"])
        for call in (
            monque.enqueue("greet", data),
            monque.enqueue("greet", data, unique_key="k"),
            monque.schedule("@daily", "greet", data),
            monque.document("greet", data),
            monque.enqueue_many([NewJob(name="greet"), NewJob(name="greet", data=data)]),
        ):
            with pytest.raises(InvalidPayloadError, match=re.escape(expected)):
                await call


async def test_one_of_many_that_cannot_be_read_is_named_by_its_place(db: Database, jobs: Collection) -> None:
    new = [NewJob(name="greet", data=data) for data in (1, documents(DEEPEST + 1), 3)]
    with pytest.raises(InvalidPayloadError) as caught:
        await Monque(db).enqueue_many(new)
    assert caught.value.__notes__ == ["It is number 1 (from 0) of 3 jobs, and nothing was sent."]
    assert jobs.count_documents({}) == 0


@pytest.mark.parametrize("make", [documents, arrays])
def test_deepest_data_are_accepted_and_one_level_more_is_not(make: Any) -> None:
    check_payload(make(DEEPEST), None, PLAIN)
    check_payload([[]] * 1000, None, PLAIN)  # Wide, and not deep.
    check_payload(Code("f()", documents(3)), None, PLAIN)
    with pytest.raises(InvalidPayloadError, match="the job's progress is nested"):
        snapshot(make(DEEPEST + 1), None, PLAIN, "progress")


def test_code_whose_scopes_are_nested_too_deeply_is_refused() -> None:
    """There is neither a document nor an array in it: a scope is of a type of its own."""
    value: Any = 1
    for _ in range(DEEPEST + 1):
        value = Code("f(x)", {"": value})
    with pytest.raises(InvalidPayloadError, match="nested more than"):
        check_payload(value, None, PLAIN)


def test_what_the_clients_codec_options_read_is_accepted() -> None:
    far = DatetimeMS(2**60)
    for conversion in (DatetimeConversion.DATETIME_MS, DatetimeConversion.DATETIME_AUTO):
        assert snapshot(far, None, PLAIN.with_options(datetime_conversion=conversion)) == far
    # A job's own fields are read strictly, whatever becomes of text beside them.
    for handler in ("replace", "ignore"):
        with pytest.raises(InvalidPayloadError, match="not read back"):
            check_payload(BAD_TEXT, None, PLAIN.with_options(unicode_decode_error_handler=handler))


@pytest.mark.full
@pytest.mark.parametrize("is_told", [True, False], ids=["claimed by its id", "claimed in a batch"])
async def test_job_with_the_deepest_data_goes_all_its_way(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, is_told: bool
) -> None:
    workers = Workers()
    deepest = documents(DEEPEST)

    @workers.register("greet", store_result=True, max_attempts=1)
    async def greet(job: RunningJob[Any]) -> Any:
        assert job.data == deepest
        await job.save(deepest)
        await job.set_progress(deepest)
        if job.attempt == 1:
            raise ZeroDivisionError
        return deepest

    async with open_test_scheduler(workers) as scheduler:
        # The only one that is due at a moment is claimed by its id.
        due = [{"delay": 5.0}] if is_told else [{}, {}]
        made = [await monque.enqueue("greet", deepest, **one) for one in due]  # type: ignore[call-overload]
        await advance(6)
        assert scheduler.report is None
        for job in made:
            assert (await monque.retry_job(job.id)) is not None
        await quiesce()
        for job in made:
            stored = await monque.get_job(job.id)
            assert stored is not None
            assert stored.status is JobStatus.COMPLETED
            assert (stored.data, stored.progress, stored.result) == (deepest, deepest, deepest)


@pytest.mark.full
@pytest.mark.parametrize("how", ["save", "progress", "result"])
async def test_value_of_a_handler_that_cannot_be_read_fails_its_own_job_alone(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock, how: str
) -> None:
    workers = Workers()
    made_now = datetime.now(UTC)

    @workers.register("greet", store_result=True, max_attempts=1)
    async def greet(job: RunningJob[Any]) -> Any:
        value = job.data["deep"] and documents(DEEPEST + 1)
        if job.data["far"]:
            value = {"at": DatetimeMS(2**60)}
        if how == "save":
            await job.save(value)
        elif how == "progress":
            await job.set_progress(value)
        return value if how == "result" else made_now

    async with open_test_scheduler(workers) as scheduler:
        good = await scheduler.enqueue("greet", {"deep": False, "far": False})
        bad = [await scheduler.enqueue("greet", {"deep": far is False, "far": far}) for far in (True, False)]
        await quiesce()
        stored = [await scheduler.get_job(job.id) for job in (good, *bad)]
    assert [job and job.status for job in stored] == [JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.FAILED]
    assert [job and "cannot represent" not in str(job.fail_reason) for job in stored] == [True] * 3
    assert all(job is not None and "InvalidPayloadError" in str(job.fail_reason) for job in stored[1:])


@pytest.mark.full
def test_job_that_makes_the_server_refuse_a_statement_does_not_keep_the_others_out() -> None:
    """It refuses the command that it is in, and does not say which job of it was meant: each is sent alone."""
    with refusing_server() as server, server.client() as client, MongoClient[Any](server.uri) as admin:
        monque = Monque(client["shop"])
        monque.sync.enqueue("first")  # The indexes are there from here on.
        data = {"failCommands": ["insert"], "errorCode": 15, "appName": server.app}
        admin.admin.command({"configureFailPoint": "failCommand", "mode": {"times": 1}, "data": data})
        made = monque.sync.enqueue_many([NewJob(name="greet", data=number) for number in range(3)])
        stored = client["shop"]["monque_jobs"].find({"name": "greet"}, sort=[("data", 1)])
        assert [one["_id"] for one in stored] == [job.id for job in made]
