"""The examples run, each as its header says."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.support.programs import ROOT, run_program, uri_of_database
from tests.support.web_servers import Program, WebServer
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

FOLDERS = ("examples", "examples/migrate", "examples/web_service", "examples/workflows")
EXAMPLES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))
LINES = {
    "skip_locked.py": 175,
    "payments.py": 65,
    "order.py": 110,
    "approval.py": 75,
}  # The first brings the service that it asks, and proves what it says. The third kills its own worker processes.


@pytest.mark.full
def test_hello_greets_and_ends(mongod: EmbeddedServer, db: Database) -> None:
    assert run_program("examples/hello.py", uri=mongod.uri, database=db.name) == "Hello, world!\n"


@pytest.mark.full
def test_payments_are_made_once_each_with_a_receipt_and_one_report(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("examples/payments.py", uri=mongod.uri, database=db.name).splitlines()
    report = "{'ada': -25, 'bob': 20, 'eve': 5}"
    receipts = ["ada has paid 30 to bob", "bob has paid 10 to eve", "eve has paid 5 to ada"]
    assert (sorted(set(printed) - {report}), printed.count(report)) == (receipts, 1)
    assert db["monque_jobs"].count_documents({"name": "report"}) == 1


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
def test_order_ends_as_if_its_worker_process_had_not_been_killed_three_times(
    mongod: EmbeddedServer, db: Database
) -> None:
    printed = run_program("examples/workflows/order.py", uri=mongod.uri, database=db.name).splitlines()
    killed = [f"killed the worker process in: {what}" for what in ("reserve 1", "pack 1", "undo 2")]
    assert sorted(printed[:3]) == sorted(killed)
    assert printed[3:] == [
        "order 1: parcel 1 from shelf 1, payment 1",
        "order 2: refused: the card has expired",
        "undone: ['undo 2']",
    ]
    counts = {name: db["monque_jobs"].count_documents({"name": name}) for name in ("reserve", "charge", "undo")}
    assert counts == {"reserve": 2, "charge": 2, "undo": 1}


@pytest.mark.full
def test_first_failed_check_of_a_release_cancels_the_others(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("examples/workflows/release.py", uri=mongod.uri, database=db.name).splitlines()
    assert sorted(printed[:2]) == ["linux: cancelled", "macos: cancelled"]
    assert printed[2].startswith("not released, attempt 1: JobFailedError: job check ")
    assert printed[2].endswith("RuntimeError: a path has a backslash")


@pytest.mark.full
def test_words_are_counted_without_the_file_that_cannot_be_read(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("examples/workflows/word_count.py", uri=mongod.uri, database=db.name)
    assert printed == "{'words': 5, 'unreadable': ['third.txt']}\n"


@pytest.mark.full
def test_expenses_wait_for_their_approvals(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("examples/workflows/approval.py", uri=mongod.uri, database=db.name)
    paid = [f"['paid 120 to {who}', 'rejected']\n" for who in ("ada", "bob")]
    assert printed in paid


@pytest.mark.full
def test_program_adds_squares_as_they_come_and_leaves_no_job_of_its_own(mongod: EmbeddedServer, db: Database) -> None:
    *_, last, total = run_program("examples/workflows/squares.py", uri=mongod.uri, database=db.name).splitlines()
    assert (last, total) == ("30 so far", "30")
    assert db["monque_jobs"].distinct("name") == ["square"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "tests", "number"),
    [
        ("true", "examples/workflows/test_order.py", 2),
        ("false", "examples/workflows/test_on_asyncio.py", 2),
        ("false", "examples/test_nightly_report.py", 1),
    ],
)
def test_workflow_and_schedule_are_tested_in_virtual_time_and_on_asyncio(
    mongod: EmbeddedServer, db: Database, mode: str, tests: str, number: int
) -> None:
    """With `trio_mode`, as this repository has it, pytest-trio runs each test on trio, whatever its backend is."""
    command = ["-m", "pytest", "-q", "-n", "0", "-o", f"trio_mode={mode}", tests]
    assert f"{number} passed" in run_program(*command, uri=mongod.uri, database=db.name)


WEB = ROOT / "examples/web_service"
LONG = {"title": "long", "pages": 1000, "seconds_per_page": 0.05}
SHORT = {"title": "short", "pages": 2, "seconds_per_page": 0.01}


@pytest.mark.parametrize(
    ("application", "server"),
    [
        pytest.param("fastapi_app.py", "uvicorn"),
        pytest.param("fastapi_app.py", "hypercorn, trio", marks=pytest.mark.full),
        pytest.param("starlette_app.py", "uvicorn, uvloop", marks=pytest.mark.full),
        pytest.param("starlette_app.py", "hypercorn, asyncio", marks=pytest.mark.full),
        pytest.param("litestar_app.py", "uvicorn", marks=pytest.mark.full),
        pytest.param("litestar_app.py", "hypercorn, trio", marks=pytest.mark.full),
    ],
)
def test_web_application_runs_jobs_and_shows_and_cancels_them_and_drains_at_sigterm(
    mongod: EmbeddedServer, db: Database, application: str, server: str
) -> None:
    environment = {"MONQUE_URI": uri_of_database(mongod.uri, db.name)}
    with WebServer(server, WEB / application, environment) as web:
        web.wait_until_it_serves()
        assert web.ask("POST", "/reports", {"pages": 1})[0] in (400, 422)  # Without its title.
        status, first = web.ask("POST", "/reports", LONG)
        assert status == 202
        report = f"/reports/{first['id']}"
        shown = wait_for(lambda: web.ask("GET", report)[1], "progress")
        assert (shown["status"], shown["progress"]["pages"]) == ("processing", 1000)
        assert web.ask("DELETE", report) == (202, {"status": "processing"})
        wait_for(lambda: web.ask("GET", report)[1], "status", "cancelled")

        assert web.ask("DELETE", report) == (202, {"status": "cancelled"})  # Again.
        assert [web.ask(method, "/reports/unknown")[0] for method in ("GET", "DELETE")] == [404, 404]
        _, last = web.ask("POST", "/reports", SHORT)
        wait_for(lambda: web.ask("GET", f"/reports/{last['id']}")[1], "status", "processing", "completed")
        web.signal(signal.SIGTERM)
        # uvicorn ends by the signal that it has caught, after the application has ended.
        assert web.wait() == (-signal.SIGTERM if "uvicorn" in server else 0)
    assert "rendered short\n" in web.printed
    assert "SchedulerReport(completed=1, failed=0, released=0, unfinished=()" in web.printed
    assert "Traceback" not in web.printed
    assert statuses(db) == {first["id"]: "cancelled", last["id"]: "completed"}


@pytest.mark.full
def test_worker_process_runs_the_jobs_of_a_web_application_that_runs_none(mongod: EmbeddedServer, db: Database) -> None:
    environment = {"MONQUE_URI": uri_of_database(mongod.uri, db.name)}
    with (
        WebServer("uvicorn", WEB / "starlette_app.py", {**environment, "RUN_JOBS": "no"}) as web,
        Program([str(WEB / "jobs.py")], environment) as worker,
    ):
        web.wait_until_it_serves()
        _, short = web.ask("POST", "/reports", SHORT)
        assert worker.wait_for_line("rendered")
        _, first = web.ask("POST", "/reports", LONG)
        wait_for(lambda: web.ask("GET", f"/reports/{first['id']}")[1], "progress")
        web.ask("DELETE", f"/reports/{first['id']}")
        wait_for(lambda: web.ask("GET", f"/reports/{first['id']}")[1], "status", "cancelled")
        web.signal(signal.SIGTERM)
        assert web.wait() == -signal.SIGTERM
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert "rendered" not in web.printed
    assert "SchedulerReport(completed=1, failed=0, released=0" in worker.printed
    assert statuses(db) == {first["id"]: "cancelled", short["id"]: "completed"}


@pytest.mark.full
def test_handlers_of_the_web_service_are_tested_on_both_event_loops(mongod: EmbeddedServer, db: Database) -> None:
    tests = "examples/web_service/test_jobs.py"
    printed = run_program("-m", "pytest", "-q", tests, uri=mongod.uri, database=db.name)
    assert "7 passed" in printed


@pytest.mark.full
def test_endpoints_of_the_web_service_are_tested_against_a_database_of_their_own(
    mongod: EmbeddedServer, db: Database
) -> None:
    tests = "examples/web_service/test_fastapi_app.py"
    printed = run_program("-m", "pytest", "-q", tests, uri=mongod.uri, database=db.name)
    assert "2 passed" in printed


def wait_for(ask: Callable[[], dict[str, Any]], field: str, *values: str) -> dict[str, Any]:
    """Ask until the field has one of the values; without values, until it has any."""
    answer: dict[str, Any] = {}
    until = time.monotonic() + 50
    while time.monotonic() < until:
        answer = ask()
        if answer[field] in values or (answer[field] and not values):
            return answer
    raise AssertionError(f"{field} was never {values}: {answer}")


def statuses(db: Database) -> dict[str, str]:
    return {str(job["_id"]): job["status"] for job in db["monque_jobs"].find()}


@pytest.mark.full
def test_handlers_use_a_client_that_works_on_asyncio_only(mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program("examples/asyncio_client.py", uri=mongod.uri, database=db.name)
    assert printed.splitlines() == ["about: 1", "home: 2"]


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


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "line"),
    [
        ("from_agenda.py", "sent to ada@example.org"),
        ("from_apscheduler.py", "reminded ada"),
        ("from_arq.py", "14"),
        ("from_celery.py", "small cat.png and small dog.png"),
        ("from_monque.py", "sent to ada@example.org"),
        ("from_procrastinate.py", "3"),
        ("from_sidequest.py", "sent news to ada@example.org"),
    ],
)
def test_program_that_replaces_one_of_another_library_runs(
    mongod: EmbeddedServer, db: Database, program: str, line: str
) -> None:
    printed = run_program(f"examples/migrate/{program}", uri=mongod.uri, database=db.name)
    assert line in printed.splitlines()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_is_short_and_says_why_it_exists(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    assert text.startswith('"""')
    assert len(text.splitlines()) <= LINES.get(example.name, 60)
    where = example.parent.relative_to(ROOT)
    assert re.search(rf"{where}(/{example.name}(:app)?| {example.stem}:app)`", text.split('"""')[1])
    files = (Path(__file__), ROOT / "tests/migrate/test_moved_jobs.py")
    tests = "".join(file.read_text(encoding="utf-8") for file in files)
    assert f"{where}/{example.name}" in tests or f'"{example.name}"' in tests, "no test runs it"


@pytest.mark.full
def test_jobs_are_managed_over_http_by_those_who_are_logged_in(mongod: EmbeddedServer, db: Database) -> None:
    environment = {"MONQUE_URI": uri_of_database(mongod.uri, db.name), "ADMIN_TOKEN": "s3cret"}
    api = "/admin/jobs/api/v1"
    with WebServer("uvicorn", WEB / "manage_over_http.py", environment) as server:
        server.wait_until_it_serves()
        assert server.ask("GET", f"{api}/health") == (200, {"status": "ok", "scheduler": {"healthy": True}})
        assert server.ask("GET", f"{api}/jobs") == (403, {"error": "Read access denied"})
        logged_in = {"Authorization": "Bearer s3cret"}
        assert server.ask("GET", f"{api}/jobs", headers=logged_in)[1]["jobs"] == []
        everything = {"everything": True}
        answer = server.ask("POST", f"{api}/jobs/actions/retry", everything, headers=logged_in)
        assert answer == (200, {"count": 0, "errors": []})
        refused = server.ask("POST", f"{api}/jobs/actions/delete", everything, headers=logged_in)
        assert refused == (403, {"error": "Action denied"})


@pytest.mark.full
def test_dashboard_in_litestar_has_links_below_its_path(mongod: EmbeddedServer, db: Database) -> None:
    environment = {"MONQUE_URI": uri_of_database(mongod.uri, db.name)}
    with WebServer("uvicorn", WEB / "manage_in_litestar.py", environment) as server:
        server.wait_until_it_serves()
        assert server.ask("GET", "/admin/jobs/openapi.json")[1]["servers"] == [{"url": "/admin/jobs"}]
        with urlopen(f"{server.url}/admin/jobs/") as answer:
            links = re.findall(r'(?:href|src)="(/[^"]*)"', answer.read().decode())
        assert links
        assert all(link.startswith("/admin/jobs/") for link in links)
        (style,) = (link for link in links if link.endswith(".css"))
        with urlopen(server.url + style) as answer:
            assert answer.status == 200
        assert server.ask("POST", "/admin/jobs/api/v1/jobs/actions/retry", {"everything": True})[0] == 403
