"""The health endpoints of `trio-monque run --health`."""

from __future__ import annotations

import json
import logging
import math
import re
import select
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli import main
from trio_monque.cli.run import http_server
from trio_monque.cli.run.health_answers import (
    LIVE_WITHIN,
    HealthReport,
    ProcessReport,
    health_pages,
    report_of_processes,
    report_of_worker,
)
from trio_monque.cli.run.http_server import Address, AddressType, served
from trio_monque.embedded import EmbeddedServer
from trio_monque.scheduler import LoopHealth
from trio_monque.store.driver.types import Database

from .health_values import make_health
from .probe import Probe, ask
from .run_process import run_process, write_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_program(tmp_path)
    return tmp_path


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


@pytest.mark.parametrize(
    "loop", ["trio", pytest.param("asyncio", marks=pytest.mark.full), pytest.param("uvloop", marks=pytest.mark.full)]
)
def test_worker_is_ready_from_its_start_until_it_drains_and_live_all_the_time(
    folder: Path, uri: str, db: Database, loop: str
) -> None:
    options = ("--health", ":0", "--loop", loop, "--instance-id", "shop-1", "--uri", uri)
    with run_process(folder, "shop:when_there_is_a_file", *options) as worker:
        probe = Probe(worker)
        worker.wait_for("opening")
        assert probe.ask("/livez") == (200, "live\n")
        assert probe.ask("/readyz") == (503, "the scheduler has not started\n")
        assert json.loads(probe.ask("/healthz")[1]) == {
            "live": True,
            "ready": False,
            "healthy": False,
            "reasons": ["the scheduler has not started"],
            "instance": None,
            "draining": False,
            "health": None,
        }
        (folder / "open").touch()
        assert probe.wait_for("/readyz", 200) == "ready\n"
        Monque(db).sync.enqueue("wait", "for ever")
        worker.wait_for("waiting")
        status, body = probe.ask("/health")
        answer = json.loads(body)
        assert (status, answer["instance"], answer["ready"], answer["health"]["healthy"]) == (200, "shop-1", True, True)
        assert {"claimer", "heartbeat"} <= {one["name"] for one in answer["health"]["loops"]}
        worker.send(signal.SIGTERM)
        assert probe.wait_for("/readyz", 503) == "the scheduler is draining\n"
        assert probe.ask("/livez")[0] == probe.ask("/healthz")[0] == 200
        worker.send(signal.SIGINT)  # Not SIGTERM: the same signal again within a tenth of a second is one.
        assert worker.wait_ended()[0] == 0


@pytest.mark.full
@pytest.mark.parametrize("loop", ["trio", "asyncio", "uvloop"])
def test_worker_whose_loop_is_blocked_is_not_live(folder: Path, uri: str, db: Database, loop: str) -> None:
    Monque(db).sync.enqueue("block")
    with run_process(folder, "shop:workers", "--health", "0", "--loop", loop, "--uri", uri) as worker:
        probe = Probe(worker)
        worker.wait_for("blocking")
        assert probe.ask("/livez")[0] == 200
        assert re.fullmatch(r"the event loop has not answered for \d\.\d s\n", probe.wait_for("/livez", 503))
        assert probe.ask("/readyz")[0] == probe.ask("/healthz")[0] == 503
        (folder / "go on").touch()
        assert probe.wait_for("/livez", 200)
        assert probe.wait_for("/readyz", 200)
        worker.send(signal.SIGTERM)
        assert worker.wait_ended()[0] == 0


@pytest.mark.parametrize("options", [["--health"], ["--metrics"], ["--health", "--metrics"]], ids=" ".join)
@pytest.mark.parametrize("more", [(), ("--processes", "2")], ids=["one", "two"])
def test_port_in_use_ends_the_start_in_one_line(
    options: list[str],
    more: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        arguments = [part for option in options for part in (option, f"{port}")]
        assert main(["run", "shop:workers", "--uri", "mongodb://localhost/shop", *arguments, *more]) == 2
    assert capsys.readouterr().err == (
        f"trio-monque: cannot listen at 127.0.0.1:{port} for {' and '.join(options)}: Address already in use; "
        "choose another address\n"
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("9000", Address("127.0.0.1", 9000)),
        (":9000", Address("127.0.0.1", 9000)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),
        ("[::1]:9000", Address("::1", 9000)),
        ("localhost:0", Address("localhost", 0)),
        ("localhost:65535", Address("localhost", 65_535)),
    ],
)
def test_address_without_a_host_is_the_loopback_address(given: str, meant: Address) -> None:
    assert AddressType()(given) == meant
    assert AddressType()(str(meant)) == meant


@pytest.mark.parametrize("given", ["", "localhost", "localhost:", ":65536", "localhost:-1", "localhost:http", ":²"])
def test_address_without_a_port_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter, match="has no port from 0 to 65535: write HOST:PORT"):
        AddressType()(given)


@contextmanager
def health_served(
    caplog: pytest.LogCaptureFixture, host: str = "127.0.0.1", report: HealthReport | None = None
) -> Iterator[str]:
    caplog.set_level(logging.INFO, "trio_monque.cli")
    shown = report or report_of_worker("shop-1", None, 0.0)
    pages = health_pages(lambda: shown)
    with served(pages, Address(host, 0), "--health"):
        (url,) = re.findall(r"http://\S+", caplog.messages[-1])
        yield url


def test_unknown_paths_and_writing_methods_are_refused(caplog: pytest.LogCaptureFixture) -> None:
    with health_served(caplog) as url:
        assert ask(f"{url}/") == (404, "there is /livez, /readyz, /healthz, /health\n")
        assert ask(f"{url}/livez", "POST") == (405, "only GET and HEAD\n")
        assert ask(f"{url}/livez", "HEAD") == (200, "")
        assert ask(f"{url}/livez?verbose") == (200, "live\n")
    with pytest.raises(OSError, match="refused"):
        ask(f"{url}/livez")


def test_client_that_sends_nothing_does_not_delay_others(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with health_served(caplog, "::1") as url:
        port = int(url.rpartition(":")[2])
        with socket.create_connection(("::1", port)), socket.create_connection(("::1", port)) as left:
            left.sendall(b"nonsense\r\n\r\n")
            assert ask(f"{url}/readyz")[0] == 503
    assert capsys.readouterr() == ("", "")


def test_hundreds_of_silent_clients_hold_few_threads_and_do_not_keep_others_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with health_served(caplog) as url, ExitStack() as clients:
        port = int(url.rpartition(":")[2])
        for _ in range(500):
            clients.enter_context(socket.create_connection(("127.0.0.1", port)))
        assert ask(f"{url}/readyz")[0] == 503
        # All that came before the question have been accepted: it had to wait for them.
        serving = [one for one in threading.enumerate() if "process_request_thread" in one.name]
        assert 1 <= len(serving) <= http_server.MOST_CONNECTIONS


def test_clients_wait_in_the_kernel_while_the_server_accepts_none(caplog: pytest.LogCaptureFixture) -> None:
    """Connections beyond the backlog are dropped by the kernel, and tried again by the client after a second."""
    with http_server.PagesServer({}, Address("127.0.0.1", 0)) as server, ExitStack() as clients:
        for _ in range(200):  # Nothing serves: each of these waits in the backlog.
            client = clients.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", server.server_port))
            assert select.select([], [client], [], 10)[1], "the backlog is full"


@pytest.mark.full
def test_byte_now_and_then_does_not_extend_the_time_of_a_request(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "RECEIVED_WITHIN", 0.3)
    with health_served(caplog) as url:
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as client:
            client.settimeout(0.05)
            for _ in range(400):
                try:
                    client.sendall(b"G")
                    if client.recv(1) == b"":
                        break
                except TimeoutError:
                    continue
                except ConnectionError:
                    break
            else:
                pytest.fail("the connection was kept")
        assert ask(f"{url}/readyz")[0] == 503


def test_client_that_finds_all_threads_busy_gets_an_answer_at_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "MOST_CONNECTIONS", 1)
    caplog.set_level(logging.INFO, "trio_monque.cli")
    began, goes_on = threading.Event(), threading.Event()

    def slow() -> http_server.Page:
        began.set()
        goes_on.wait(60)
        return http_server.Page("200 OK", "text/plain", "slow")

    with served({"/slow": http_server.page_of(slow)}, Address("127.0.0.1", 0), "--metrics"):
        (url,) = re.findall(r"http://\S+", caplog.messages[-1])
        with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) as first:
            first.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            assert began.wait(60)
            with socket.create_connection(first.getpeername()) as second:
                assert second.recv(1000).startswith(b"HTTP/1.0 503 ")
            goes_on.set()
            assert b"".join(iter(lambda: first.recv(1000), b"")).endswith(b"slow")


def test_report_of_a_worker() -> None:
    at = datetime(2026, 1, 2, tzinfo=UTC)
    loop = LoopHealth(
        name="claimer",
        healthy=False,
        reason="the claimer failed: mongodb://me:hunter2@db",
        last_progress=at,
        last_progress_age=math.inf,
        last_error=None,
        last_error_at=None,
        lag=0.5,
    )
    health = make_health(reasons=("the claimer failed: mongodb://me:hunter2@db",), loops=(loop,))
    report = report_of_worker("shop-1", health, LIVE_WITHIN)
    assert (report.not_live, report.unhealthy) == ((), ("the claimer failed: mongodb://***@db",))
    assert report.not_ready == report.unhealthy
    shown = report.details["health"]["loops"][0]
    assert (shown["last_progress"], shown["last_progress_age"]) == ("2026-01-02T00:00:00.000+00:00", None)
    assert "hunter2" not in json.dumps(report.details, allow_nan=False)
    draining = report_of_worker("shop-1", make_health(draining=True), LIVE_WITHIN + 0.1)
    silent = "the event loop has not answered for 5.1 s"
    assert (draining.not_live, draining.unhealthy) == ((silent,), (silent,))
    assert draining.not_ready == (silent, "the scheduler is draining")


def test_page_begins_with_the_reasons_and_has_a_line_for_each_loop(caplog: pytest.LogCaptureFixture) -> None:
    moment = datetime(2026, 1, 2, tzinfo=UTC)
    loops = tuple(
        LoopHealth(
            name=name,
            healthy=reason is None,
            reason=reason,
            last_progress=moment,
            last_progress_age=1.5,
            last_error=reason,
            last_error_at=None,
            lag=0.0,
        )
        for name, reason in (("claimer", "no primary\n{"), ("waker", None))
    )
    health = make_health(reasons=("the claimer has failed for 31.2 s",), loops=loops)
    report = report_of_processes(
        [ProcessReport(number, 11, report_of_worker("w", health, 0.0), 0.0) for number in (1, 2)]
    )
    with health_served(caplog, report=report) as url:
        status, text = ask(f"{url}/healthz")
    lines = text.splitlines()
    assert status == 503
    assert lines[:5] == [
        "{",
        '  "healthy": false,',
        '  "reasons": [',
        '    "process 1: the claimer has failed for 31.2 s",',
        '    "process 2: the claimer has failed for 31.2 s"',
    ]
    assert sum('"name": "claimer"' in line and '"last_progress_age": 1.5' in line for line in lines) == 2
    assert len(lines) < 70
    expected = {"healthy": False, "reasons": list(report.unhealthy), "ready": False, "live": True, **report.details}
    assert json.loads(text) == json.loads(json.dumps(expected))


def test_report_of_several_processes_has_the_faults_of_each() -> None:
    good = report_of_worker("shop-1", make_health(), 0.0)
    draining = report_of_worker("shop-2", make_health(draining=True), 0.0)
    report = report_of_processes([ProcessReport(1, 11, good, 0.0), ProcessReport(2, 12, draining, 0.0)])
    assert (report.not_live, report.unhealthy) == ((), ())
    assert report.not_ready == ("process 2: the scheduler is draining",)
    assert [(one["number"], one["pid"], one["instance"], one["ready"]) for one in report.details["processes"]] == [
        (1, 11, "shop-1", True),
        (2, 12, "shop-2", False),
    ]
    blocked = report_of_worker("shop-1", make_health(), LIVE_WITHIN + 1)
    without_answers = [
        ProcessReport(2),
        ProcessReport(3, 13),
        ProcessReport(4, 14, None, 0.8),
        ProcessReport(5, 15, None, 6.0),
        ProcessReport(6, 16, None, LIVE_WITHIN),
    ]
    report = report_of_processes([ProcessReport(1, 11, blocked, 0.0), *without_answers])
    assert report.not_live == (
        "process 1: the event loop has not answered for 6.0 s",
        "process 5: the process has not answered for 6.0 s",
    )
    assert report.unhealthy == report.not_ready
    assert report.not_ready[1:4] == (
        "process 2: the process is not running",
        "process 3: the process is starting",
        "process 4: the process has not answered for 0.8 s",
    )
