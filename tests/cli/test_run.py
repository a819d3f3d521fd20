"""`trio-monque run` as a process: it runs jobs, ends in order on signals, and logs."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .run_process import run_process, write_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_program(tmp_path)
    return tmp_path


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


LOOPS = ["trio", pytest.param("asyncio", marks=pytest.mark.full), pytest.param("uvloop", marks=pytest.mark.full)]


def statuses(db: Database, name: str) -> list[str]:
    return [job["status"] for job in db["monque_jobs"].find({"name": name})]


@pytest.mark.parametrize("loop", LOOPS)
def test_first_signal_lets_running_jobs_finish_and_resources_are_closed(
    folder: Path, uri: str, db: Database, loop: str
) -> None:
    Monque(db).sync.enqueue("send", "a")
    Monque(db).sync.enqueue("wait")
    with run_process(folder, "shop:opened", "--loop", loop, "--instance-id", "shop-1", MONQUE_URI=uri) as worker:
        worker.wait_for("waiting")
        worker.send(signal.SIGTERM)
        status, errors = worker.wait_ended()
    assert (status, statuses(db, "send"), statuses(db, "wait")) == (0, ["completed"], ["completed"])
    assert worker.lines[0] == f"opened on {'trio' if loop == 'trio' else 'asyncio'}"
    assert "send a a pool" in worker.lines
    assert worker.lines[-1] == "closed"
    assert f"INFO trio_monque.scheduler: scheduler shop-1 started on {db.name}.monque_jobs: runs send" in errors
    assert "ended (SIGTERM was received): 2 completed" in errors


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS[:2])
def test_handlers_of_each_target_get_its_resources(folder: Path, uri: str, db: Database, loop: str) -> None:
    for name in ("send", "post", "weigh"):
        Monque(db).sync.enqueue(name, "a")
    Monque(db).sync.enqueue("wait", delay=0.1)
    with run_process(folder, "shop:opened", "mail:with_stamps", "--loop", loop, "--uri", uri) as worker:
        worker.wait_for("waiting")
        worker.send(signal.SIGTERM)
        status, _ = worker.wait_ended()
    assert status == 0
    assert {"send a a pool", "post a stamps", "weigh a stamps"} <= set(worker.lines)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_second_signal_cancels_and_releases_running_jobs(folder: Path, uri: str, db: Database, loop: str) -> None:
    Monque(db, collection_name="orders").sync.enqueue("wait", "for ever")
    options = ("--collection", "orders", "--only", "wait", "--log-format", "json", "--loop", loop)
    (folder / "uri").write_text(f"{uri}\n", encoding="utf-8")
    with run_process(folder, "shop:made", "--uri-file", "uri", *options) as worker:
        worker.wait_for_log(f"started on {db.name}.orders: runs wait (5 at a time)")
        worker.wait_for("waiting")
        worker.send(signal.SIGINT)
        worker.wait_for_log("draining: SIGINT was received")
        worker.send(signal.SIGTERM)
        status, errors = worker.wait_ended()
    assert (status, [job["status"] for job in db["orders"].find()]) == (0, ["pending"])
    lines = [json.loads(line) for line in errors.splitlines()]
    assert [(line["level"], line["logger"]) for line in lines] == [
        ("warning", "trio_monque.scheduler"),
        ("info", "trio_monque.scheduler"),
    ]
    assert lines[0]["message"].startswith("cancelled runs to shut down (jobs: 1): ")
    assert "ended (SIGINT was received): 0 completed, 0 failed" in lines[1]["message"]


@pytest.mark.full
def test_ended_jobs_are_deleted_as_the_options_of_retention_say(folder: Path, uri: str, db: Database) -> None:
    calls = Monque(db).sync
    ended = [calls.enqueue("old", delay=3600) for _ in range(3)]
    for job in ended:
        calls.cancel_job(job.id)
    pending = calls.enqueue("old", delay=3600)
    options = ("--retention-cancelled", "0", "--retention-keep-last", "1", "--retention-completed", "30d")
    with run_process(folder, "shop:made", "--uri", uri, *options) as worker:
        worker.wait_for_log("retention deleted")
        worker.send(signal.SIGTERM)
        status, _ = worker.wait_ended()
    assert status == 0
    assert {one["_id"] for one in db["monque_jobs"].find({"name": "old"})} == {ended[-1].id, pending.id}


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["trio", "asyncio", "uvloop"])
def test_signal_while_resources_open_cleans_them_up(folder: Path, uri: str, loop: str, number: signal.Signals) -> None:
    with run_process(folder, "shop:slow_to_open", "--loop", loop, "--uri", uri) as worker:
        worker.wait_for("opening")
        worker.send(number)
        assert worker.wait_ended() == (130, "")
    assert worker.lines == ["opening", "closed"]


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["trio", "asyncio", "uvloop"])
def test_signal_while_resources_close_ends_that_in_order(
    folder: Path, uri: str, loop: str, number: signal.Signals
) -> None:
    with run_process(folder, "shop:slow_to_close", "--loop", loop, "--uri", uri) as worker:
        worker.wait_for_log("started on")
        worker.send(signal.SIGTERM)
        worker.wait_for("closing")
        worker.send(number)
        status, errors = worker.wait_ended()
    assert (status, worker.lines) == (130, ["closing", "closed"])
    assert "Traceback" not in errors


DECLARING = """
import asyncio
from contextlib import asynccontextmanager

from trio_monque import Workers

on_asyncio, on_trio = Workers(loop="asyncio"), Workers(loop="trio")


@on_asyncio.register("native")
async def native(job):
    await asyncio.sleep(0)
    job.scheduler.drain()


@on_trio.register("other")
async def other(job):
    pass


async def late():
    return on_asyncio


@asynccontextmanager
async def closing():
    yield on_asyncio
    await asyncio.gather(asyncio.sleep(0))  # As clients that belong to asyncio do when they are closed.


@asynccontextmanager
async def closing_in_any_case():
    try:
        yield on_asyncio
    finally:
        await asyncio.gather(asyncio.sleep(0))
"""


def test_loop_that_the_workers_declare_is_used_without_an_option(folder: Path, uri: str, db: Database) -> None:
    (folder / "declaring.py").write_text(DECLARING, encoding="utf-8")
    Monque(db).sync.enqueue("native")
    with run_process(folder, "declaring:on_asyncio", "shop:made", "--except", "swallow", "--uri", uri) as worker:
        status, _ = worker.wait_ended()
    assert (status, statuses(db, "native")) == (0, ["completed"])


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["declaring:on_asyncio", "--loop", "trio"], "--loop asyncio"),
        (["declaring:late"], "--loop asyncio"),
        (["declaring:closing"], "--loop asyncio"),
        (["declaring:closing_in_any_case"], "--loop asyncio"),
        (["declaring:on_trio", "--loop", "asyncio"], "--loop trio"),
        (["declaring:on_trio", "declaring:on_asyncio"], "processes of their own"),
    ],
    ids=["another option", "known too late", "opened", "cannot be closed there", "declares trio", "two"],
)
def test_worker_does_not_start_on_a_loop_that_its_handlers_do_not_run_on(
    folder: Path, uri: str, arguments: list[str], said: str
) -> None:
    (folder / "declaring.py").write_text(DECLARING, encoding="utf-8")
    with run_process(folder, *arguments, "--uri", uri) as worker:
        status, errors = worker.wait_ended()
    assert status == 2
    assert len(errors.splitlines()) == 1
    assert said in errors
