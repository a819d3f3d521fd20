"""`GET /metrics`: what Prometheus reads of the application, and who may."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any, Final

import anyio
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families
from pymongo import MongoClient

from tests.support.interception import Recorder
from tests.support.store import handle, insert
from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque, RunningJob, Workers, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.web import create_app
from trio_monque.web.live.metrics_page import KEPT, MetricsPage

DENIED: Final = (403, {"error": "Action denied"})
UNSUPPORTED: Final = (403, {"error": "Unsupported action"})


def values(text: str, metric: str) -> dict[str, float]:
    """The values by status, or by the name of the job."""
    return {
        sample.labels.get("status", sample.labels.get("name", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == f"trio_monque_{metric}"
    }


@pytest.mark.parametrize("loop", LOOPS)
def test_page_has_the_jobs_of_the_collection_for_all_who_may_read(db: Database, loop: str) -> None:
    insert(handle(db), "mail")

    async def work(ask: Ask) -> Any:
        return await ask("GET", "/metrics")

    found = asking(loop, create_app(Monque(db)), work)
    assert (found.status_code, found.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert found.headers["cache-control"] == "no-store"
    assert values(found.text, "jobs") == {
        "pending": 1,
        **dict.fromkeys(("processing", "completed", "failed", "cancelled"), 0),
    }


async def test_page_of_a_scheduler_has_its_runs_also_beside_its_metrics_on_the_default_registry(db: Database) -> None:
    from trio_monque.metrics import SchedulerMetrics

    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None: ...

    async def work(ask: Ask) -> str:
        return (await ask("GET", "/metrics")).text

    async with open_scheduler(db, workers) as scheduler:
        with SchedulerMetrics(scheduler):
            await scheduler.wait_job(await scheduler.enqueue(greet))
            text = await trio.to_thread.run_sync(asking, "asyncio", create_app(scheduler), work)
    assert values(text, "runs_total")["greet"] == 1
    assert "trio_monque_instance_info" in text
    assert "python_info" not in text  # What else the process counts is not in it.


def test_many_scrapers_make_one_page_and_ask_once(mongod: EmbeddedServer, db: Database) -> None:
    recorder = Recorder()
    now = 0.0

    with MongoClient[Any](mongod.uri, tz_aware=True, event_listeners=[recorder]) as client:
        page = MetricsPage(Monque(client[db.name]), clock=lambda: now)

        async def scrape() -> None:
            nonlocal now
            found: list[bytes] = []

            async def one() -> None:
                found.append(await page.page())

            async with anyio.create_task_group() as tasks:
                for _ in range(100):
                    tasks.start_soon(one)
            assert len(found) == 100
            assert len(set(found)) == 1
            now = KEPT - 0.1
            assert await page.page() is found[0]
            now = KEPT
            # Of another age.
            assert await page.page() != found[0]

        anyio.run(scrape, backend="trio")
        assert recorder.count(lambda name, _: name == "aggregate") == 1


def test_scraper_may_be_allowed_nothing_but_metrics(db: Database) -> None:
    allowed = "metrics"
    asked: list[tuple[str, Any]] = []

    def authorize(action: str, context: Any, target: Any) -> bool:
        asked.append((action, target))
        return action == allowed

    async def work(ask: Ask) -> list[Any]:
        found = [await ask("GET", path) for path in ("/metrics", "/jobs", "/permissions")]
        return [found[0].status_code, found[1].status_code, found[2].json()["actions"]]

    status, of_jobs, actions = asking("trio", create_app(Monque(db), authorize=authorize, read_only=True), work)
    assert asked[0] == ("metrics", None)
    assert (status, of_jobs) == (200, 403)
    assert [action for action, may in actions.items() if may] == ["metrics"]
    allowed = "read"

    async def denied(ask: Ask) -> Any:
        answer = await ask("GET", "/metrics")
        return answer.status_code, answer.json()

    assert asking("trio", create_app(Monque(db), authorize=authorize), denied) == DENIED


def test_without_the_extra_the_action_is_not_supported(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert importlib.util.find_spec("prometheus_client") is None

    async def work(ask: Ask) -> Any:
        answer = await ask("GET", "/metrics")
        return (answer.status_code, answer.json()), (await ask("GET", "/permissions")).json()["actions"]

    answer, actions = asking("trio", create_app(Monque(db)), work)
    assert answer == UNSUPPORTED
    assert actions["metrics"] is False
    assert actions["read"] is True
