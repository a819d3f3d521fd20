"""A collection in which an acknowledged write does not mean what it says is refused before anything is stored in it."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.errors import MonqueConnectionError
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs.collection_options import problem_of

UNSAFE: dict[str, tuple[dict[str, Any], str]] = {
    "capped": ({"capped": True, "size": 65536}, "it is capped"),
    "by age": (
        {"clusteredIndex": {"key": {"_id": 1}, "unique": True}, "expireAfterSeconds": 3600},
        "deletes its documents by their age",
    ),
    "collation": ({"collation": {"locale": "en", "strength": 2}}, "it has the collation 'en'"),
}


@pytest.mark.parametrize(("options", "problem"), UNSAFE.values(), ids=UNSAFE)
async def test_unsafe_collection_is_refused_by_clients_and_schedulers(
    db: Database, options: dict[str, Any], problem: str
) -> None:
    db.create_collection("monque_jobs", **options)
    with pytest.raises(MonqueConnectionError, match=rf"cannot hold jobs: .*{problem}.* copy the documents") as caught:
        await Monque(db).enqueue("greet")
    assert caught.value.permanent
    for skip_index_creation in (False, True):
        with pytest.raises(MonqueConnectionError, match=problem):
            async with open_scheduler(db, Workers(), skip_index_creation=skip_index_creation):
                raise AssertionError("it has started")
    assert db["monque_jobs"].count_documents({}) == 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"collation": {"locale": "simple"}},
        {"validator": {"name": {"$type": "string"}}, "validationAction": "warn"},
        {"clusteredIndex": {"key": {"_id": 1}, "unique": True}},
    ],
)
def test_options_that_harm_no_job_are_accepted(db: Database, options: dict[str, Any]) -> None:
    db.create_collection("monque_jobs", **options)
    job = Monque(db).sync.enqueue("greet")
    assert Monque(db).sync.get_job(job.id) == job


def test_no_options_no_problem() -> None:
    assert problem_of({}) is None


async def test_conversion_under_a_live_scheduler_is_noticed(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    workers, ran = Workers(), trio.Event()

    @workers.register("greet")
    async def greet(job: RunningJob[None]) -> None:
        ran.set()

    async with open_scheduler(db, workers, poll_interval=0.1) as scheduler:
        await scheduler.enqueue("greet")
        await ran.wait()
        await trio.to_thread.run_sync(lambda: db.command("convertToCapped", "monque_jobs", size=65536))
        with pytest.raises(MonqueConnectionError, match="it is capped"):
            await scheduler.enqueue("greet", unique_key="k")
        while "it is capped" not in caplog.text:
            await trio.sleep(0.01)
        # The collection is replaced, as the error says. The scheduler goes on.
        await trio.to_thread.run_sync(lambda: db.drop_collection("monque_jobs"))
        ran = trio.Event()
        await scheduler.enqueue("greet")
        await ran.wait()
