"""`trio-monque run --dashboard`: a dashboard beside the worker, by the process that was started."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli.connection_options import Connection
from trio_monque.cli.dashboard import dashboard_thread
from trio_monque.cli.dashboard.dashboard_thread import dashboard_beside
from trio_monque.cli.dashboard.serving import DashboardOptions
from trio_monque.cli.program import run_program
from trio_monque.cli.run.http_server import Address
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .dashboard_browser import Browser
from .run_process import RunProcess, run_process, write_program

ANY_PORT = Address("127.0.0.1", 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_program(tmp_path)
    return tmp_path


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


def browser_of(worker: RunProcess) -> Browser:
    worker.wait_for("  http://")
    return Browser(worker.lines[-1].strip())


def open_stream(browser: Browser) -> socket.socket:
    stream = socket.create_connection((browser.link.hostname or "", browser.link.port or 0), timeout=30)
    head = f"GET /api/v1/events HTTP/1.1\r\nHost: {browser.link.netloc}\r\nCookie: {browser.cookie}\r\n\r\n"
    stream.sendall(head.encode())
    assert b"200" in stream.recv(100)
    return stream


@pytest.mark.full
@pytest.mark.parametrize(("options", "schedulers"), [([], 1), (["--loop", "asyncio"], 1), (["--processes", "2"], 2)])
def test_one_process_serves_it_and_a_signal_ends_all_beside_an_open_stream(
    folder: Path, uri: str, db: Database, options: list[str], schedulers: int
) -> None:
    job = Monque(db).sync.enqueue("wait")
    with run_process(folder, "shop:workers", "--dashboard", "127.0.0.1:0", *options, "--uri", uri) as worker:
        browser = browser_of(worker)
        assert browser.ask("GET", "/")[0] == 401
        assert browser.ask("GET", "/", host=f"evil.test:{browser.link.port}")[0] == 421
        assert browser.sign_in() == 303
        worker.wait_for("waiting")
        assert "running" in browser.ask("GET", f"/jobs/{job.id}")[1]
        for _ in range(schedulers):  # A signal during a start has another status.
            worker.wait_for_log("started on")
        assert browser.ask("POST", "/act", "do=resume&target=mail")[0] == 303
        with open_stream(browser):
            worker.send(signal.SIGTERM)
            status, errors = worker.wait_ended()
    assert status == 0
    assert "Traceback" not in errors
    assert sum("is shown at" in line for line in worker.lines) == 1
    assert browser.link.query.removeprefix("token=") not in errors
    assert re.search(r"trio_monque.web.audit: resume by \S+ from 127.0.0.1", errors)


@pytest.mark.full
def test_handler_that_blocks_its_loop_does_not_stop_the_pages(folder: Path, uri: str, db: Database) -> None:
    Monque(db).sync.enqueue("block")
    options = ["--dashboard", "0", "--dashboard-read-only", "--dashboard-no-token"]
    with run_process(folder, "shop:workers", *options, "--uri", uri) as worker:
        browser = browser_of(worker)
        worker.wait_for("blocking")
        status, text = browser.ask("GET", "/")
        assert (status, "block" in text) == (200, True)
        assert browser.ask("POST", "/act", "do=resume&target=mail")[0] == 403
        (folder / "go on").touch()
        worker.send(signal.SIGTERM)
        assert worker.wait_ended()[0] == 0


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--dashboard", "0", "--dashboard-no-token"], "it needs --dashboard-read-only"),
        (["--dashboard", "0.0.0.0:8713"], "other machines may reach 0.0.0.0:8713"),
        (["--dashboard-read-only"], "need --dashboard"),
        (["--i-know-who-can-reach-it"], "need --dashboard"),
        (["--dashboard", "127.0.0.1"], "has no port"),
    ],
)
def test_flags_that_do_not_fit_are_an_error_that_says_what_to_do(
    uri: str, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    assert run_program(["run", "shop:workers", "--uri", uri, *options]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_address_in_use_is_named_and_nothing_runs(
    uri: str, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_program(["run", "no_such_module:workers", "--uri", uri, "--dashboard", address, *options]) == 2
    assert f"cannot listen at {address} for the dashboard" in capsys.readouterr().err


def test_dashboard_that_fails_is_logged_and_harms_nothing(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: object, task_status: Any) -> None:
        task_status.started("http://127.0.0.1:1/")
        raise OSError("no more files")

    monkeypatch.setattr(dashboard_thread, "serve_until", fail)
    with dashboard_beside(Connection(uri, None), ANY_PORT, DashboardOptions()):
        pass
    assert "the dashboard failed; the worker continues without it" in caplog.text
    assert "no more files" in caplog.text
