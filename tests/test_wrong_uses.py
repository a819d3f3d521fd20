"""What a newcomer is likely to get wrong is answered in our own words, with what to write instead."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.standalone import standalone_server
from trio_monque import (
    Monque,
    MonqueError,
    Retention,
    Retry,
    RunningJob,
    Scheduler,
    Workers,
    open_claims,
    open_scheduler,
    run_until_signalled,
)
from trio_monque.embedded import embedded_mongod
from trio_monque.errors import (
    AsyncWithError,
    InvalidCronError,
    InvalidDatabaseError,
    InvalidJobIdentifierError,
    InvalidOptionError,
    MonqueConnectionError,
)
from trio_monque.events import JobFailed
from trio_monque.store.driver.types import ClientSession, Database

workers = Workers()


@workers.register("greet")
async def greet(job: RunningJob[Any]) -> None: ...


async def unregistered(job: RunningJob[Any]) -> None: ...


def untyped(db: Database) -> Any:
    """A type checker knows better; not all newcomers have one."""
    return Monque(db)


async def awaited(value: Any) -> None:
    await value


async def entered(manager: Any) -> None:
    async with manager:
        raise AssertionError("it was entered")


async def iterated(iterable: Any) -> None:
    async for _ in iterable:
        raise AssertionError("it was iterated")


async def entered_plainly(manager: Any) -> None:
    with manager:
        raise AssertionError("it was entered")


OPEN = r"write `async with open_scheduler\(\.\.\.\) as scheduler:`"

WRONG: dict[str, tuple[Callable[[Any], Awaitable[object]], type[MonqueError], str]] = {
    "open_scheduler awaited": (lambda db: awaited(open_scheduler(db)), AsyncWithError, OPEN),
    "open_scheduler by with": (lambda db: entered_plainly(open_scheduler(db)), AsyncWithError, OPEN),
    "open_scheduler assigned": (
        lambda db: open_scheduler(db).enqueue("greet"),  # type: ignore[attr-defined]
        AsyncWithError,
        f"has no attribute 'enqueue', because it was not entered: {OPEN}",
    ),
    "claims iterated": (lambda db: iterated(open_claims(db["x"], {})), AsyncWithError, r"async with open_claims"),
    "events iterated": (lambda db: iterated(Monque(db).events(JobFailed)), AsyncWithError, r"async with events\("),
    "string as database": (
        lambda db: entered(open_scheduler("mongodb://u:hunter2@h")),  # type: ignore[arg-type]
        InvalidDatabaseError,
        r"^str is not .* MongoClient\(connection_string\)\['name'\]",
    ),
    "client as database": (lambda db: entered(open_scheduler(db.client)), InvalidDatabaseError, r"client\['name'\]"),
    "collection as database": (lambda db: entered(open_scheduler(db["jobs"])), InvalidDatabaseError, "collection_name"),
    "swapped": (
        lambda db: entered(open_scheduler(workers, db)),  # type: ignore[arg-type]
        InvalidDatabaseError,
        "Workers is not .* as the first argument",
    ),
    "database as collection": (lambda db: entered(open_claims(db, {})), InvalidDatabaseError, r"db\['messages'\] of"),
    "worker as workers": (
        lambda db: entered(open_scheduler(db, greet)),  # type: ignore[arg-type]
        InvalidOptionError,
        "must be the Workers that the handlers were registered with",
    ),
    "unregistered function": (
        lambda db: untyped(db).enqueue(unregistered),
        InvalidJobIdentifierError,
        "register this function with @workers.register",
    ),
    "called handler": (
        lambda db: untyped(db).enqueue(unregistered(untyped(db))),
        InvalidJobIdentifierError,
        r"coroutine of a handler that was called. Write enqueue\(handler, data\)",
    ),
    "timedelta": (
        lambda db: untyped(db).enqueue("greet", timeout=timedelta(5)),
        InvalidOptionError,
        r"must be a number of seconds: write .total_seconds\(\)",
    ),
    "moment as number": (
        lambda db: untyped(db).enqueue("greet", run_at=17e8),
        InvalidOptionError,
        r"for example datetime.now\(UTC\) \+ timedelta",
    ),
    "tuples": (
        lambda db: untyped(db).enqueue_many([("greet", 1)]),
        InvalidOptionError,
        r"for example NewJob\(name='greet', data=1\)",
    ),
    "schedule swapped": (
        lambda db: untyped(db).schedule("greet", "0 9 * * *"),
        InvalidCronError,
        "the expression is the first argument and the name the second",
    ),
    "job instead of its id": (lambda db: cancelled_by_job(db), InvalidOptionError, "pass job.id"),
    "filter as dict": (
        lambda db: untyped(db).get_jobs_with_cursor(filter={"status": "failed"}),
        InvalidOptionError,
        r"for example JobFilter\(status='failed'\)",
    ),
    "retention as dict": (
        lambda db: entered(open_scheduler(db, retention={"completed": 5})),  # type: ignore[arg-type]
        InvalidOptionError,
        r"for example Retention\(completed=86400\)",
    ),
    "option of another": (
        lambda db: entered(open_scheduler(db, max_workers=5)),  # type: ignore[call-arg]
        InvalidOptionError,
        "max_workers=5: is not an option of a scheduler",
    ),
}  # fmt: skip


async def cancelled_by_job(db: Database) -> None:
    monque = Monque(db)
    await monque.cancel_job(await monque.enqueue("greet"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("use", "error", "words"), WRONG.values(), ids=WRONG)
async def test_wrong_use_says_what_to_write(
    db: Database, use: Callable[[Any], Awaitable[object]], error: type[MonqueError], words: str
) -> None:
    with pytest.raises(error, match=words) as raised:
        await use(db)
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("use", "error", "words"),
    [
        (lambda: Retention(completed=timedelta(days=1)), InvalidOptionError, "total_seconds"),  # type: ignore[arg-type]
        (lambda: Retry(5), InvalidOptionError, r"write Retry\(after=\.\.\.\) for seconds"),  # type: ignore[arg-type]
        (lambda: Workers().cron("daily", "0 9 * * *"), InvalidCronError, "the expression is the first argument"),
        (lambda: Scheduler(MongoClient("h", connect=False)["x"], None), AsyncWithError, "async with open_scheduler"),  # type: ignore[arg-type]
        (lambda: embedded_mongod().uri, AsyncWithError, r"write `with embedded_mongod\(\) as server:`"),
    ],
    ids=["Retention", "Retry", "cron", "Scheduler", "embedded_mongod"],
)  # fmt: skip
def test_wrong_making_says_what_to_write(use: Callable[[], object], error: type[MonqueError], words: str) -> None:
    with pytest.raises(error, match=words):
        use()


def test_worker_process_outside_of_an_event_loop_says_what_to_write(db: Database) -> None:
    with pytest.raises(
        MonqueError, match=r"run_until_signalled needs an event loop: .* run by trio\.run, asyncio\.run"
    ):
        run_until_signalled(db, workers).send(None)


def test_what_is_never_entered_warns(db: Database) -> None:
    with pytest.warns(RuntimeWarning, match=f"was never entered, so nothing runs: {OPEN}"):
        open_scheduler(db, workers)  # Nothing holds it, so it goes at once.


async def test_what_is_entered_is_as_before(db: Database) -> None:
    """By an exit stack, too; errors inside come out, and nothing warns."""
    async with open_scheduler(db, workers) as scheduler:
        assert isinstance(scheduler, Scheduler)
    with pytest.raises(KeyError):
        async with open_scheduler(db, workers):
            raise KeyError
    gc.collect()


@pytest.mark.full
def test_transaction_on_a_standalone_server_names_the_replica_set() -> None:
    with standalone_server() as uri, MongoClient[Any](uri) as client:
        monque = Monque(client["x"])

        def enqueue(session: ClientSession) -> None:
            monque.sync.enqueue("greet", session=session)

        expected = r"a standalone server has no transactions.*--replSet rs0"
        with client.start_session() as session, pytest.raises(MonqueConnectionError, match=expected):
            session.with_transaction(enqueue)


OLD_NAMES = {
    "instance_concurrency": "concurrency",
    "job_retention": "retention",
    "max_retries": "max_attempts",
    "scheduler_instance_id": "instance_id",
    "worker_concurrency": "concurrency_per_name",
}


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
async def test_option_as_monque_for_node_calls_it_names_ours(db: Database, old: str, new: str) -> None:
    options: dict[str, Any] = {old: 5}
    with pytest.raises(InvalidOptionError, match=f"{old}=5: is not an option of a scheduler: did you mean '{new}'"):
        await entered(open_scheduler(db, **options))
