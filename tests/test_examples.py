"""The examples run, each as its header says."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.support.programs import ROOT, run_program, uri_of_database
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.types import Database

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES = {"skip_locked.py": 175}  # It brings the service that it asks, and proves what it says.


@pytest.mark.full
def test_hello_greets_and_ends(mongod: EmbeddedServer, db: Database) -> None:
    assert run_program("examples/hello.py", uri=mongod.uri, database=db.name) == "Hello, world!\n"


@pytest.mark.full
def test_jobs_from_an_asyncio_program_run_in_a_worker_process(mongod: EmbeddedServer, db: Database) -> None:
    *squares, last = run_program("examples/enqueue_from_asyncio.py", uri=mongod.uri, database=db.name).splitlines()
    assert sorted(squares) == ["0 squared is 0", "1 squared is 1", "2 squared is 4"]
    assert last == "the worker completed 3 jobs"
    assert db["monque_jobs"].count_documents({"status": "completed"}) == 3


@pytest.mark.full
def test_health_endpoint_answers_while_it_runs_and_while_it_drains(
    mongod: EmbeddedServer, db: Database, unused_port: int
) -> None:
    printed = run_program("examples/health_endpoint.py", str(unused_port), uri=mongod.uri, database=db.name)
    assert printed.splitlines() == [
        "HTTP/1.1 200 OK: ready",
        "HTTP/1.1 503 Service Unavailable: draining",
    ]


@pytest.mark.full
def test_fastapi_application_enqueues_runs_jobs_and_drains_at_sigterm(
    mongod: EmbeddedServer, db: Database, unused_port: int
) -> None:
    at = f"127.0.0.1:{unused_port}"
    command = ["hypercorn", "--worker-class", "trio", "--bind", at, "examples/fastapi_on_trio.py:app"]
    environment = {**os.environ, "MONGODB_URI": uri_of_database(mongod.uri, db.name), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-m", *command], cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE, text=True
    ) as application:
        assert application.stdout is not None
        assert application.stderr is not None
        try:
            assert any("Running on" in line for line in application.stderr)
            first = asked(f"http://{at}/orders", {"customer": "Ada", "seconds": 0})
            assert application.stdout.readline() == "shipped to Ada\n"
            second = asked(f"http://{at}/orders", {"customer": "Bob", "seconds": 1})
            while asked(f"http://{at}/jobs/{second['job_id']}")["status"] == "pending":
                pass
            # The report of the first run reaches the database in its own time, and before the end.
            application.terminate()
            printed, logged = application.communicate(timeout=20)
        finally:
            application.kill()
    assert (application.returncode, "Traceback" in logged) == (0, False), logged
    assert printed.startswith("shipped to Bob\nSchedulerReport(completed=2, failed=0, released=0")
    assert {str(job["_id"]): job["status"] for job in db["monque_jobs"].find()} == {
        first["job_id"]: "completed",
        second["job_id"]: "completed",
    }


def asked(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=20) as answer:
        return json.load(answer)


@pytest.mark.full
def test_program_that_knows_only_plain_locks_works_through_a_collection(mongod: EmbeddedServer, db: Database) -> None:
    """Beside `run_claims` it runs in `tests/faults/test_plain_locks.py`."""
    assert run_program("examples/plain_locks.py", uri=mongod.uri, database=db.name) == "plain has done 10\n"
    done = {"state": "done", "results": 1, "written_by": {"by": "plain"}, "lock": None}
    assert db["messages"].count_documents(done) == db["messages"].count_documents({}) == 10


@pytest.mark.full
def test_example_project_with_tests_of_jobs_passes_them(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("-m", "pytest", "-q", "examples/testing_jobs", uri=mongod.uri, database=db.name)
    assert "9 passed" in printed


@pytest.mark.full
def test_documents_are_located_exactly_once_although_a_process_is_killed(mongod: EmbeddedServer, db: Database) -> None:
    killed, refused, *proven = run_program("examples/skip_locked.py", uri=mongod.uri, database=db.name).splitlines()
    assert killed.startswith("Killed the process ")
    assert "503: 20" in refused
    assert [line[:5] for line in proven] == ["yes  "] * 5
    messages = db["messages"]
    assert messages.count_documents({"times_located": 1, "lock": {"$exists": False}}) == 199
    assert [lost["address"].split()[0] for lost in messages.find({"location": None})] == ["13"]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_is_short_and_says_why_it_exists(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) <= LINES.get(example.name, 60)
    assert re.search(rf"examples/{example.name}(:app)?`", text.split('"""')[1])
    assert f"examples/{example.name}" in Path(__file__).read_text(encoding="utf-8"), "no test runs it"
