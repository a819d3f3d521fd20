"""Tracebacks of handlers begin at the handler, in logs and in documents, on every event loop."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from tests.asyncio_hosts.conftest import Run
from tests.asyncio_hosts.scenes import QUICK, until
from trio_monque import Claim, Discard, Retry, RunningJob, Workers, open_scheduler, run_claims
from trio_monque.store.driver.types import Collection, Database, ObjectId

HERE = "test_tracebacks.py"


def fail() -> None:
    raise ValueError("mine")


async def from_async(job: RunningJob[Any]) -> None:
    fail()


def from_plain(job: RunningJob[Any]) -> None:
    fail()


async def from_nursery(job: RunningJob[Any]) -> None:
    async def child() -> None:
        fail()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(child)


async def from_cause(job: RunningJob[Any]) -> None:
    try:
        fail()
    except ValueError as error:
        raise KeyError("other") from error


async def from_thread(job: RunningJob[Any]) -> None:
    await anyio.to_thread.run_sync(fail)


async def around(job: RunningJob[Any], run: Callable[[], Awaitable[None]]) -> None:
    await run()


HANDLERS = [from_async, from_plain, from_nursery, from_cause, from_thread]


def first_frame(text: str) -> str:
    """The first frame of the first traceback: of the cause, if there is one."""
    return next(line for line in text.splitlines() if line.lstrip(" |+").startswith("File "))


async def failed(db: Database, handler: Any, middleware: Any = (), **options: Any) -> dict[str, Any]:
    workers = Workers(middleware=middleware)
    workers.register("job", handler, max_attempts=1)
    async with open_scheduler(db, workers, **options) as scheduler:
        job = await scheduler.enqueue("job")
        assert job.id is not None
        with pytest.raises(Exception, match="mine|other|unhandled"):
            await scheduler.wait_job(job.id)
    document = db["monque_jobs"].find_one({"_id": job.id})
    assert document is not None
    error: dict[str, Any] = document["errors"][0]
    return error


def logged(caplog: pytest.LogCaptureFixture) -> str:
    [record] = [one for one in caplog.records if "failed" in one.getMessage() and one.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[1] is not None
    return "".join(traceback.format_exception(record.exc_info[1]))


@pytest.mark.full
@pytest.mark.parametrize("handler", HANDLERS, ids=lambda handler: str(handler.__name__))
def test_traceback_begins_at_the_handler(
    run: Run, db: Database, caplog: pytest.LogCaptureFixture, handler: Any
) -> None:
    stored: list[str] = []

    async def main() -> None:
        stored.append((await failed(db, handler))["traceback"])

    run(main)
    for text in (stored[0], logged(caplog)):
        assert HERE in first_frame(text)
        assert f"in {handler.__name__}" in text
        assert "in fail" in text
        assert "trio_monque/" not in text


def test_middleware_counts_as_code_of_the_user(run: Run, db: Database) -> None:
    stored: list[str] = []

    async def main() -> None:
        stored.append((await failed(db, from_async, [around]))["traceback"])

    run(main)
    assert first_frame(stored[0]).endswith("in around")


def test_option_keeps_the_frames_before(run: Run, db: Database, caplog: pytest.LogCaptureFixture) -> None:
    stored: list[str] = []

    async def main() -> None:
        stored.append((await failed(db, from_async, full_tracebacks=True))["traceback"])

    run(main)
    for text in (stored[0], logged(caplog)):
        assert HERE not in first_frame(text)
        assert "in from_async" in text


@pytest.mark.parametrize("is_full", [False, True], ids=["cut", "full"])
def test_log_of_claims_is_cut_in_the_same_way(
    run: Run, things: Collection, caplog: pytest.LogCaptureFixture, is_full: bool
) -> None:
    things.insert_one({})

    async def handle(claim: Claim[Any]) -> None:
        fail()

    async def main() -> None:
        await run_claims(things, {}, handle, wait=False, max_attempts=1, full_tracebacks=is_full)

    run(main)
    text = logged(caplog)
    assert "in handle" in text
    assert (HERE in first_frame(text)) is not is_full


def decide(kind: type[Discard | Retry], behind: str) -> None:
    """Raises a handler's decision, with or without an error that led to it."""
    reason = "the account is closed"
    what = Discard(reason) if kind is Discard else Retry(reason, after=600)
    if behind == "none":
        raise what
    try:
        fail()
    except ValueError as error:
        if behind == "cause":
            raise what from error
        if behind == "hidden":
            raise what from None
        raise what  # noqa: B904  # As many handlers do.


@pytest.mark.parametrize("error", [Discard, Retry])
def test_a_decision_of_a_handler_is_one_line_and_an_error_behind_it_is_shown(
    error: type[Discard | Retry], db: Database, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """It is a warning, and not an error: an alarm for errors in the log must not wake anyone."""
    workers = Workers()

    @workers.register("plain", max_attempts=2, concurrency=1)
    def plain(job: RunningJob[str]) -> None:
        decide(error, job.data)

    @workers.register("async", max_attempts=2, concurrency=1)
    async def from_task(job: RunningJob[str]) -> None:
        async def child() -> None:
            decide(error, job.data)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(child)

    kinds = ("none", "cause", "context", "hidden")

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            for name in ("plain", "async"):
                for behind in kinds:
                    job = await scheduler.enqueue(name, behind)
                    await until(lambda job=job: lines_of(job.id))  # type: ignore[misc]

    def lines_of(job_id: ObjectId) -> list[logging.LogRecord]:
        return [one for one in caplog.records if getattr(one, "job_id", "") == str(job_id)]

    run(main)
    lines = [one for one in caplog.records if "the account is closed" in one.getMessage()]
    assert {one.levelname for one in lines} == {"WARNING"}
    assert [one.exc_info is not None for one in lines] == [kind in ("cause", "context") for kind in kinds] * 2
    verb = "was discarded: the" if error is Discard else "failed (failure 1 of 2); retrying at "
    assert all(verb in one.getMessage() for one in lines)


@pytest.mark.parametrize("kind", [Discard, Retry])
def test_a_decision_without_a_reason_and_one_with_notes_keep_their_tracebacks(
    kind: type[Discard | Retry], db: Database, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing else would show where they come from."""
    workers = Workers()

    @workers.register("empty", max_attempts=1)
    async def empty(job: RunningJob[Any]) -> None:
        raise kind("")

    @workers.register("noted", max_attempts=1)
    async def noted(job: RunningJob[Any]) -> None:
        error = kind("a reason")
        error.add_note("and more")
        raise error

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            for number, name in enumerate(("empty", "noted"), 1):
                await scheduler.enqueue(name)
                await until(lambda number=number: len(lines()) == number)  # type: ignore[misc]

    def lines() -> list[logging.LogRecord]:
        return [one for one in caplog.records if "job_id" in vars(one)]

    run(main)
    assert all(one.exc_info for one in lines())
