"""The examples run, each as its header says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.types import Database

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
LINES = {"skip_locked.py": 175}  # It brings the service that it asks, and proves what it says.


def test_hello_greets_and_ends(mongod: EmbeddedServer, db: Database) -> None:
    assert run_program("examples/hello.py", uri=mongod.uri, database=db.name) == "Hello, world!\n"


def test_jobs_from_an_asyncio_program_run_in_a_worker_process(mongod: EmbeddedServer, db: Database) -> None:
    *squares, last = run_program("examples/enqueue_from_asyncio.py", uri=mongod.uri, database=db.name).splitlines()
    assert sorted(squares) == ["0 squared is 0", "1 squared is 1", "2 squared is 4"]
    assert last == "the worker completed 3 jobs"
    assert db["monque_jobs"].count_documents({"status": "completed"}) == 3


def test_health_endpoint_answers_while_it_runs_and_while_it_drains(
    mongod: EmbeddedServer, db: Database, unused_port: int
) -> None:
    printed = run_program("examples/health_endpoint.py", str(unused_port), uri=mongod.uri, database=db.name)
    assert printed.splitlines() == [
        "HTTP/1.1 200 OK: ready",
        "HTTP/1.1 503 Service Unavailable: draining",
    ]


def test_program_that_knows_only_plain_locks_works_through_a_collection(mongod: EmbeddedServer, db: Database) -> None:
    """Beside `run_claims` it runs in `tests/faults/test_plain_locks.py`."""
    assert run_program("examples/plain_locks.py", uri=mongod.uri, database=db.name) == "plain has done 10\n"
    done = {"state": "done", "results": 1, "written_by": {"by": "plain"}, "lock": None}
    assert db["messages"].count_documents(done) == db["messages"].count_documents({}) == 10


def test_example_project_with_tests_of_jobs_passes_them(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("-m", "pytest", "-q", "examples/testing_jobs", uri=mongod.uri, database=db.name)
    assert "9 passed" in printed


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
    assert f"examples/{example.name}`" in text.split('"""')[1]
    assert f"examples/{example.name}" in Path(__file__).read_text(encoding="utf-8"), "no test runs it"
