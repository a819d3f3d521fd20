"""Handlers raise and return objects whose attributes raise or lie: each fails its own job, and ends no scheduler."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from unittest.mock import MagicMock, Mock

import anyio
import pytest

from tests.asyncio_hosts.conftest import Run
from tests.asyncio_hosts.scenes import LONG, QUICK, until
from tests.support.documents import OPEN, fill
from tests.support.hostile_errors import HOSTILE, replacing_errors
from trio_monque import Claim, NewJob, RunningJob, Workers, open_claims, open_scheduler, run_claims
from trio_monque.errors import UnsafeExceptionError
from trio_monque.events import JobFailed
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import Discarded, Failed, run_job

ERRORS: dict[str, Callable[[], BaseException]] = {
    **replacing_errors(),
    **{name: make for name, make in HOSTILE.items() if "MB" not in name},
}
NAMES = sorted(ERRORS)


async def passing(job: RunningJob[Any], run: Callable[[], Awaitable[Any]]) -> Any:
    return await run()


def workers_of_all_kinds() -> Workers:
    """Each handler raises the error of that name."""

    async def raises(job: RunningJob[str]) -> None:
        raise ERRORS[job.data]()

    async def raises_when_cancelled(job: RunningJob[str]) -> None:
        try:
            await anyio.sleep(LONG)
        finally:
            raise ERRORS[job.data]()

    def raises_in_thread(job: RunningJob[str]) -> None:
        raise ERRORS[job.data]()

    async def raises_in_middleware(job: RunningJob[str], run: Callable[[], Awaitable[Any]]) -> None:
        await run()
        raise ERRORS[job.data]()

    async def innocent(job: RunningJob[Any]) -> None: ...

    def unreadable(stored: Any) -> Any:
        raise ERRORS[stored]()

    options: Any = {"max_attempts": 1, "concurrency": 20}
    plain, inside, around = Workers(), Workers(middleware=[passing]), Workers(middleware=[raises_in_middleware])
    plain.register("async", raises, **options)
    plain.register("cancelled", raises_when_cancelled, timeout=0.05, **options)
    plain.register("plain", raises_in_thread, **options)
    plain.register("runtime", raises, runs_on="runtime", **options)
    plain.register("payload", innocent, payload=unreadable, **options)
    inside.register("async-in-middleware", raises, **options)
    inside.register("plain-in-middleware", raises_in_thread, **options)
    around.register("middleware", innocent, **options)
    plain.register("innocent", innocent)
    return plain.union(inside, around)


@pytest.mark.full
@pytest.mark.timeout(400)  # A hundred jobs, with tracebacks.
def test_error_of_any_class_fails_its_own_job_and_ends_no_scheduler(
    db: Database, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    workers = workers_of_all_kinds()
    names = [name for name in workers.names if name != "innocent"]
    number = len(names) * len(ERRORS)
    heard: list[JobFailed] = []

    async def main() -> None:
        async with open_scheduler(db, workers, listeners={JobFailed: heard.append}, **QUICK) as scheduler:
            await scheduler.enqueue_many([NewJob(name, what) for name in names for what in ERRORS])
            await until(lambda: db["monque_jobs"].count_documents({"status": "failed"}) == number, 250)
            assert (await scheduler.wait_job(await scheduler.enqueue("innocent"), timeout=100)).status == "completed"

    with caplog.at_level(logging.WARNING, "trio_monque"):
        run(main)
    assert db["monque_jobs"].count_documents({"failReason": {"$in": [None, ""]}, "status": "failed"}) == 0
    assert (
        db["monque_jobs"].count_documents({"failReason": {"$regex": "while the end of the run was being decided"}}) == 0
    )
    assert len(heard) == number
    assert not [record for record in caplog.records if "crashed; shutting down" in record.getMessage()]


def test_error_whose_class_lies_is_reported_with_its_name_its_message_and_advice(run: Run) -> None:
    class OddError(Exception):
        __class__ = property(lambda self: 1 / 0)

    async def raises(job: RunningJob[Any]) -> None:
        raise OddError("no paper")

    async def main() -> None:
        outcome = await run_job(raises, reraise=False)
        assert isinstance(outcome.error, UnsafeExceptionError)
        assert outcome.error.raised_type is OddError
        assert str(outcome.job.fail_reason).startswith("UnsafeExceptionError: OddError was raised, whose class defines")
        assert "no paper" in str(outcome.job.fail_reason)
        assert "in raises" in outcome.job.errors[0]["traceback"]
        # The options about errors see the class that was raised.
        worker = Workers().register("odd", raises, discard_on=OddError)
        assert isinstance((await run_job(worker, reraise=False)).outcome, Discarded)
        worker = Workers().register("odd", raises, retry_on=OddError)
        assert isinstance((await run_job(worker, reraise=False)).outcome, Failed)

    run(main)


class Hostile:
    """A value none of whose methods may be called."""

    def __getattribute__(self, name: str) -> Any:
        raise SystemExit(3)

    def _raise(self, *_: Any) -> Any:
        raise SystemExit(3)

    __eq__ = __hash__ = __bool__ = __len__ = __iter__ = __repr__ = __str__ = _raise


class HostileDict(dict[str, Any]):
    def items(self) -> Any:
        raise SystemExit(3)

    __iter__ = keys = values = items


@pytest.mark.full
@pytest.mark.parametrize("make", [Hostile, Mock, MagicMock, partial(HostileDict, a=1)])
def test_values_of_any_class_fail_their_own_job_at_most(db: Database, run: Run, make: Callable[[], Any]) -> None:
    workers = Workers()

    async def returns(job: RunningJob[Any]) -> Any:
        return make()

    def returns_in_thread(job: RunningJob[Any]) -> Any:
        return make()

    async def saves(job: RunningJob[Any]) -> None:
        await job.save(make())

    async def reports(job: RunningJob[Any]) -> None:
        await job.set_progress(make())

    for handler in (returns, returns_in_thread, saves, reports):
        workers.register(handler.__name__, handler, max_attempts=1, store_result=True)
    workers.register("unstored", returns)

    async def main() -> None:
        async with open_scheduler(db, workers, **QUICK) as scheduler:
            await scheduler.enqueue_many([NewJob(name) for name in workers.names])
            await until(lambda: db["monque_jobs"].count_documents({"status": {"$in": ["failed", "completed"]}}) == 5)

    run(main)
    stored = db["monque_jobs"].find_one({"name": "unstored"})
    assert stored is not None
    assert stored["status"] == "completed"


# --- Documents ---


@pytest.mark.full
@pytest.mark.parametrize("is_block", [False, True])
def test_error_of_any_class_fails_its_own_document(things: Collection, run: Run, is_block: bool) -> None:
    # A block that is left by an exit has not failed: its document is released.
    names = [name for name in NAMES if not (is_block and name == "a base exception")]
    fill(things, len(names))

    async def handler(claim: Claim[Any]) -> None:
        raise ERRORS[names[claim.id]]()

    async def block(claim: Claim[Any]) -> None:
        error = ERRORS[names[claim.id]]()
        caught: list[BaseException] = []
        try:
            async with claim:
                raise error
        except BaseException as raised:  # noqa: BLE001
            caught.append(raised)
        # The block raises its own error, whatever its class; see `foreign_errors`.
        assert caught[0] is error

    async def main() -> None:
        if is_block:
            async with open_claims(things, OPEN, wait=False, max_attempts=1, **QUICK) as claims:
                async for claim in claims:
                    await block(claim)
        else:
            report = await run_claims(things, OPEN, handler, wait=False, max_attempts=1, **QUICK)
            assert report.dead_lettered == len(names)
        await anyio.lowlevel.checkpoint()

    run(main)
    locks = [one["lock"] for one in things.find()]
    assert all(lock["error"] for lock in locks)
    assert len(locks) == len(names)
