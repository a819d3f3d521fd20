"""Web servers whose application runs jobs are signalled, reloaded and killed under load: no job is lost, none overlaps.

The server is real, in processes of its own, and so are the requests.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final

import pytest

from tests.faults.records import Record, attempts_grow, gaps, read, spans
from tests.support.standstills import Witness
from tests.support.waiting import wait_until
from tests.support.web_servers import WebServer
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

APPLICATION: Final = Path(__file__).with_name("web_service.py")

JOBS: Final = 200
CALLERS: Final = 8
SHORT: Final = (0.0, 0.01, 0.05)
LONG: Final = 120.0
"""Seconds that handlers sleep. Only a cancellation ends a long one."""

FEW: Final = 20
"""Jobs, one of them long."""

HEARTBEAT_INTERVAL: Final = 0.8

OPTIONS: Final[dict[str, Any]] = {"shutdown_timeout": 0.5, "cleanup_timeout": 1.0, "base_retry_interval": 0.01}
BOUND: Final = 0.5 + 1.0 + 2.0
"""Of a drain with these options, as the documentation defines it."""

OF_SERVER: Final = 6.0
"""Seconds that a web server may take besides, on a busy machine: it looks every tenth of a second, and Python ends."""


class Service:
    """The application in its server, and what it has acknowledged and run.

    Attributes:
        acknowledged: The ids of the jobs that requests have enqueued.
    """

    def __init__(self, mongod: EmbeddedServer, db: Database, folder: Path) -> None:
        self._uri = mongod.uri
        self.jobs = db["monque_jobs"]
        self._database = db.name
        self._records = folder / "runs.records"
        self.acknowledged: list[str] = []

    def server(self, kind: str, *server_options: str, application: Path = APPLICATION, **options: float) -> WebServer:
        order = {
            "uri": self._uri,
            "database": self._database,
            "records": str(self._records),
            "options": {**OPTIONS, **options},
        }
        return WebServer(kind, application, {"ORDER": json.dumps(order)}, server_options)

    @contextmanager
    def load(self, server: WebServer, jobs: int = JOBS, long: float = LONG) -> Iterator[None]:
        """Callers enqueue during the block and until they have enqueued that many, or the server answers no more.

        Most jobs are short, and one in forty is long.
        """
        numbers = iter(range(jobs))

        def enqueue() -> None:
            for number in numbers:
                try:
                    status, job_id = server.ask("POST", "/jobs", long if number % 40 == 5 else SHORT[number % 3])
                except (OSError, HTTPException, ValueError):  # It ends, or reloads, in the middle of an answer perhaps.
                    if server.process.poll() is not None:
                        return
                    time.sleep(0.05)
                    continue
                if status == 202:
                    self.acknowledged.append(job_id)

        callers = [threading.Thread(target=enqueue) for _ in range(CALLERS)]
        for caller in callers:
            caller.start()
        try:
            yield
        finally:
            for caller in callers:
                caller.join()

    def wait_until_acknowledged(self, count: int) -> None:
        wait_until(lambda: len(self.acknowledged) >= count, f"{count} jobs are enqueued")

    def ask_in_vain(self, server: WebServer) -> None:
        """Send a request that is not answered before the server ends."""
        with suppress(OSError, HTTPException, ValueError):
            server.ask("GET", "/hangs")

    def records(self) -> Sequence[Record]:
        return read(self._records)

    def processes(self) -> set[str]:
        """The ids of those that have run jobs."""
        return {one.process for one in self.records()}

    def statuses(self) -> Counter[str]:
        return Counter(job["status"] for job in self.jobs.find())

    def check_none_is_lost_and_none_overlaps(self, ended: dict[str, float] | None = None) -> None:
        """`ended`: of killed processes, by their ids, the moments by which they had ended."""
        stored = {str(job["_id"]): job["status"] for job in self.jobs.find()}
        assert len(self.acknowledged) == len(set(self.acknowledged))
        assert set(self.acknowledged) <= set(stored)
        runs = spans(self.records(), ended)
        assert all(run.end < math.inf for run in runs)
        assert min(gaps(runs), default=0.0) >= 0
        assert attempts_grow(runs)
        assert {job for job, status in stored.items() if status == "completed"} <= {run.job for run in runs}


@pytest.fixture
def service(mongod: EmbeddedServer, db: Database, tmp_path: Path) -> Service:
    return Service(mongod, db, tmp_path)


def opened_in(server: WebServer) -> str:
    """The id of the process that runs the application."""
    (process,) = re.findall(r"opened in (\d+)", server.printed)
    return str(process)


def finish(service: Service, kind: str = "uvicorn") -> None:
    """Another process runs what is pending; long jobs are cut short first."""
    service.jobs.update_many({"data": LONG}, {"$set": {"data": 0.0}})
    with service.server(kind) as second:
        second.wait_until_it_serves()
        wait_until(lambda: set(service.statuses()) == {"completed"}, "the next process runs what is left")
        second.signal(signal.SIGTERM)
        second.wait()


@pytest.mark.parametrize(
    "kind",
    [
        "uvicorn",
        pytest.param("uvicorn, uvloop", marks=pytest.mark.full),
        pytest.param("hypercorn, trio", marks=pytest.mark.full),
        pytest.param("hypercorn, asyncio", marks=pytest.mark.full),
    ],
)
def test_server_leaves_in_order_at_sigterm_under_load(service: Service, kind: str, witness: Witness) -> None:
    with service.server(kind) as server:
        server.wait_until_it_serves()
        with service.load(server):
            service.wait_until_acknowledged(JOBS // 2)
            signalled = server.signal(signal.SIGTERM)
            server.wait()
        assert witness.undisturbed(signalled, time.monotonic()) < BOUND + OF_SERVER
    assert "Traceback" not in server.printed
    assert "unfinished=()" in server.printed
    assert service.statuses().keys() <= {"completed", "pending"}
    assert service.statuses()["pending"] > 0  # The long ones, at least.
    service.check_none_is_lost_and_none_overlaps()
    finish(service)
    service.check_none_is_lost_and_none_overlaps()


@pytest.mark.full
def test_every_worker_of_uvicorn_leaves_in_order_at_sigterm_under_load(service: Service, witness: Witness) -> None:
    with service.server("uvicorn", "--workers", "2") as server:
        server.wait_until_it_serves()
        server.wait_for_lines("opened in", 2)
        with service.load(server):
            service.wait_until_acknowledged(JOBS // 2)
            signalled = server.signal(signal.SIGTERM)
            server.wait()
        assert witness.undisturbed(signalled, time.monotonic()) < BOUND + OF_SERVER
    assert server.printed.count("unfinished=()") == 2
    assert service.statuses().keys() <= {"completed", "pending"}
    service.check_none_is_lost_and_none_overlaps()


@pytest.mark.full
def test_second_signal_does_not_shorten_the_drain_for_which_uvicorn_waits(service: Service, witness: Witness) -> None:
    with service.server("uvicorn", shutdown_timeout=1.0) as server:
        server.wait_until_it_serves()
        with service.load(server, FEW):
            pass
        wait_until(lambda: service.statuses() == {"completed": FEW - 1, "processing": 1}, "only the long job runs")
        signalled = server.signal(signal.SIGTERM)
        server.wait_for_line("Waiting for application shutdown")
        server.signal(signal.SIGTERM)
        server.signal(signal.SIGINT)
        server.wait()
        assert time.monotonic() - signalled > 1.0
        assert witness.undisturbed(signalled, time.monotonic()) < 1.0 + BOUND + OF_SERVER
    assert service.statuses() == {"completed": FEW - 1, "pending": 1}
    service.check_none_is_lost_and_none_overlaps()


@pytest.mark.full
def test_uvicorn_that_is_forced_to_exit_by_a_second_ctrl_c_cuts_jobs_short_in_order(
    service: Service, witness: Witness
) -> None:
    with service.server("uvicorn", shutdown_timeout=60.0) as server:
        server.wait_until_it_serves()
        with service.load(server, FEW):
            pass
        wait_until(lambda: service.statuses() == {"completed": FEW - 1, "processing": 1}, "only the long job runs")
        hanging = threading.Thread(target=service.ask_in_vain, args=[server])
        hanging.start()
        server.wait_for_line("hangs")
        signalled = server.signal(signal.SIGINT)
        server.wait_for_line("Waiting for connections to close")
        server.signal(signal.SIGINT)
        server.wait()
        hanging.join()
        assert witness.undisturbed(signalled, time.monotonic()) < BOUND + OF_SERVER
    assert service.statuses() == {"completed": FEW - 1, "pending": 1}
    service.check_none_is_lost_and_none_overlaps()


@pytest.mark.full
def test_process_that_uvicorn_reloads_leaves_in_order_under_load(service: Service, tmp_path: Path) -> None:
    folder = tmp_path / "application"
    folder.mkdir()
    application = Path(shutil.copy(APPLICATION, folder))
    options = ["--reload", "--reload-dir", str(folder)]
    with service.server("uvicorn", *options, application=application) as server:
        server.wait_until_it_serves()
        server.wait_for_line("Application startup complete")
        with service.load(server):
            service.wait_until_acknowledged(JOBS // 4)
            application.write_text(application.read_text("utf-8") + "\n", encoding="utf-8")
            server.wait_for_line("left in")
            assert service.statuses().keys() <= {"completed", "pending"}
            server.wait_for_line("opened in")
            service.wait_until_acknowledged(JOBS // 2)
        server.signal(signal.SIGTERM)
        server.wait()
    # It may have reloaded once more: soon after its start, for the file that was copied.
    assert server.printed.count("unfinished=()") == server.printed.count("opened in") >= 2
    assert len(service.processes()) >= 2
    assert service.statuses().keys() <= {"completed", "pending"}
    service.check_none_is_lost_and_none_overlaps()


@pytest.mark.full
@pytest.mark.parametrize(
    ("killed_kind", "other_kind"), [("uvicorn", "uvicorn"), ("hypercorn, trio", "uvicorn, uvloop")]
)
def test_jobs_of_a_killed_server_run_again_in_another_after_the_lease(
    service: Service, killed_kind: str, other_kind: str
) -> None:
    options: dict[str, Any] = {"heartbeat_interval": HEARTBEAT_INTERVAL, "cleanup_timeout": 0.2}
    with service.server(killed_kind, **options) as victim:
        victim.wait_until_it_serves()
        with service.load(victim, JOBS // 2, long=1.5):
            service.wait_until_acknowledged(JOBS // 4)
            wait_until(lambda: math.inf in [run.end for run in spans(service.records())], "a handler runs")
            victim.kill()
            ended = {opened_in(victim): time.monotonic()}
    with service.server(other_kind, **options) as other:
        wait_until(lambda: set(service.statuses()) == {"completed"}, "the other process runs what is left")
        other.wait_until_it_serves()
        other.signal(signal.SIGTERM)
        other.wait()
    cut = [run for run in spans(service.records(), ended) if run.end == ended.get(run.process)]
    assert cut  # The kill came while handlers were running.
    service.check_none_is_lost_and_none_overlaps(ended)
