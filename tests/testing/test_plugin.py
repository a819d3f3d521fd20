"""The plugin in a user's project: found by its entry point, with pytest-trio and with anyio's plugin."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from typing import Any

import pytest
from pymongo import MongoClient

from trio_monque.embedded import EmbeddedServer

WORKERS = """
import pytest
import trio
from trio.testing import MockClock

from trio_monque import JobStatus, Workers
from trio_monque.events import JobCompleted
from trio_monque.testing import assert_enqueued, fail_next

workers = Workers()


@workers.register("greet")
async def greet(job):
    await trio.sleep(600)
"""

RUNS_A_JOB = """
    started = trio.current_time()
    async with open_test_scheduler(workers) as scheduler:
        async with scheduler.events(JobCompleted) as completed:
            await scheduler.enqueue(greet, "world", delay=86400)
            await anext(completed)
    took = trio.current_time() - started
    assert took == 86400 + 600
    job = await assert_enqueued(monque, name="greet", data="world")
    assert job.status is JobStatus.COMPLETED
"""


@pytest.fixture
def project(pytester: pytest.Pytester, mongod: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """An empty project, whose tests use the server of these tests; every warning is an error there."""
    monkeypatch.setenv("MONQUE_MONGODB_URI", mongod.uri)
    pytester.makeini("[pytest]\nfilterwarnings = error\ntimeout = 30\n")
    return pytester


def run(project: pytest.Pytester, *arguments: str, **outcomes: int) -> pytest.RunResult:
    result = project.runpytest_subprocess("-p", "no:xdist", *arguments, timeout=45)
    result.assert_outcomes(**outcomes)
    return result


def test_plugin_is_registered() -> None:
    (entry,) = entry_points(group="pytest11", name="monque")
    assert entry.value == "trio_monque.testing.plugin"


@pytest.mark.full
def test_fixtures_serve_pytest_trio(project: pytest.Pytester) -> None:
    project.makepyfile(
        WORKERS
        + f"""
@pytest.mark.trio
async def test_day_passes(open_test_scheduler, monque, autojump_clock):
{RUNS_A_JOB}

@pytest.mark.trio
async def test_fault(monque):
    from pymongo.errors import AutoReconnect
    with fail_next(monque, AutoReconnect("gone"), when="after"):
        job = await monque.enqueue("greet")
    await assert_enqueued(monque, name="greet", count=1)
"""
    )
    run(project, "-p", "no:anyio", passed=2)


@pytest.mark.full
def test_fixtures_serve_the_plugin_of_anyio_on_both_backends(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_on_trio=WORKERS
        + f"""
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "trio", {{"clock": MockClock(autojump_threshold=0)}}


async def test_day_passes(open_test_scheduler, monque):
{RUNS_A_JOB}

async def test_another_day_passes(open_test_scheduler, monque):
{RUNS_A_JOB}
""",
        test_on_both="""
import pytest

from trio_monque.testing import assert_enqueued, assert_not_enqueued

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_client(monque, monque_db):
    await assert_not_enqueued(monque)
    job = await monque.enqueue("greet", {"name": "world"})
    assert await assert_enqueued(monque, name="greet", data={"name": "world"}) == job
    assert monque_db["monque_jobs"].count_documents({}) == 1
""",
    )
    run(project, "-p", "no:trio", passed=4)


@pytest.mark.full
def test_each_test_has_a_database_of_its_own_that_is_dropped(project: pytest.Pytester, mongod: EmbeddedServer) -> None:
    project.makepyfile(
        """
import pathlib

import pytest


@pytest.mark.parametrize("number", [1, 2])
def test_plain(monque, monque_db, number):
    monque.sync.enqueue("greet")
    assert monque.sync.get_queue_stats().total == 1
    with open("names", "a") as names:
        names.write(monque_db.name + " ")
    assert number == 1
"""
    )
    run(project, passed=1, failed=1)
    names = (project.path / "names").read_text().split()
    assert len(set(names)) == 2
    with MongoClient[Any](mongod.uri) as client:
        assert not set(names) & set(client.list_database_names())


@pytest.mark.full
def test_database_that_a_test_never_wrote_to_is_not_dropped(project: pytest.Pytester, mongod: EmbeddedServer) -> None:
    """A drop waits for a majority and for the journal, although there is nothing to drop."""

    def drops() -> int:
        with MongoClient[dict[str, Any]](mongod.uri) as client:
            return int(client.admin.command("serverStatus")["metrics"]["commands"]["dropDatabase"]["total"])

    before = drops()
    project.makepyfile("def test_plain(monque):\n    assert monque.sync.get_jobs() == []\n")
    run(project, passed=1)
    assert drops() == before


@pytest.mark.full
def test_failed_assertion_points_to_the_line_of_the_test(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
import pytest

from trio_monque.testing import assert_enqueued


@pytest.mark.trio
async def test_it(monque):
    await monque.enqueue("greet", {"name": "world"})
    await assert_enqueued(monque, data={"name": "moon"})
"""
    )
    result = run(project, failed=1)
    result.stdout.no_fnmatch_line("*assertions.py*")
    result.stdout.fnmatch_lines(["*test_*.py?, line 9, in test_it", "*data?'name'?: 'world' instead of 'moon'"])


@pytest.mark.full
def test_project_can_have_fixtures_of_its_own_by_these_names(project: pytest.Pytester) -> None:
    project.makepyfile(
        """
import pytest


@pytest.fixture(scope="session")
def mongod():
    return "mine"


def test_it(mongod):
    assert mongod == "mine"
"""
    )
    run(project, passed=1)


@pytest.mark.full
def test_kit_works_where_pytest_is_not_installed() -> None:
    program = """
import sys
sys.modules["pytest"] = sys.modules["_pytest"] = None
import trio
from trio_monque.testing import run_job

async def handler(job):
    return job.data + 1

print(trio.run(run_job, handler, 1).value)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=os.environ)
    assert (ended.stdout, ended.stderr) == ("2\n", "")
