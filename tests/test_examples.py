"""The examples run, each as its header says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.programs import ROOT, run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.types import Database

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


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


def test_example_project_with_tests_of_jobs_passes_them(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("-m", "pytest", "-q", "examples/testing_jobs", uri=mongod.uri, database=db.name)
    assert "9 passed" in printed


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_is_short_and_says_why_it_exists(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) <= 60
    assert f"examples/{example.name}`" in text.split('"""')[1]
    assert f"examples/{example.name}" in Path(__file__).read_text(encoding="utf-8"), "no test runs it"
