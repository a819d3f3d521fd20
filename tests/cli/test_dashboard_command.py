"""`trio-monque dashboard`, as a process: its link, what it refuses, and its end."""

from __future__ import annotations

import re
import signal
import socket

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli.program import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .dashboard_browser import Browser
from .dashboard_process import served


@pytest.mark.full
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_link_opens_the_dashboard_and_a_signal_ends_it_beside_an_open_stream(
    mongod: EmbeddedServer, db: Database, end: signal.Signals
) -> None:
    job = Monque(db).sync.enqueue("mail", {"to": "dana"})
    with served(mongod, db) as (process, link):
        browser = Browser(link)
        assert browser.ask("GET", "/")[0] == 401
        assert browser.ask("GET", "/", host=f"evil.test:{browser.link.port}")[0] == 421
        assert browser.ask("GET", f"/?{browser.link.query}")[0] == 200
        assert browser.sign_in() == 303
        assert "mail" in browser.ask("GET", "/")[1]
        assert browser.ask("POST", "/act", f"do=cancel&id={job.id}")[0] == 303
        stream = socket.create_connection((browser.link.hostname or "", browser.link.port or 0), timeout=30)
        head = f"GET /api/v1/events HTTP/1.1\r\nHost: {browser.link.netloc}\r\nCookie: {browser.cookie}\r\n\r\n"
        stream.sendall(head.encode())
        assert b"200" in stream.recv(100)
        process.send_signal(end)
        out, err = process.communicate(timeout=30)
        assert process.returncode == 0
        token = browser.link.query.removeprefix("token=")
        assert token not in out + err, "it was printed once, before"
        assert re.search(rf"trio_monque.web.audit: cancel by \S+ from 127.0.0.1: {job.id}, answered 200", err)
        stream.close()
    found = db["monque_jobs"].find_one()
    assert found is not None
    assert found["status"] == "cancelled"


@pytest.mark.full
def test_without_a_token_it_only_shows(mongod: EmbeddedServer, db: Database) -> None:
    job = Monque(db).sync.enqueue("mail")
    with served(mongod, db, "--no-token", "--read-only", "--environment", "staging") as (_, link):
        assert link.endswith("/")
        browser = Browser(link)
        status, text = browser.ask("GET", "/")
        assert (status, "staging" in text) == (200, True)
        assert browser.ask("POST", "/act", f"do=cancel&id={job.id}")[0] == 403


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--no-token"], "--no-token lets in anyone who can reach the address: it needs --read-only"),
        (["--listen", "0.0.0.0:8713"], "other machines may reach 0.0.0.0:8713"),
        (["--listen", "127.0.0.1"], "has no port"),
        (["--filter", "payload.x"], "filter"),
        (
            ["--uri", "mongodb://127.0.0.1:1/shop?serverSelectionTimeoutMS=50", "--operation-timeout", "0.2"],
            "127.0.0.1:1",
        ),
    ],
)
def test_what_cannot_be_served_is_an_error_that_says_what_to_do(
    mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str], options: list[str], problem: str
) -> None:
    given = options if "--uri" in options else ["--uri", uri_of_database(mongod.uri, db.name), *options]
    assert run_program(["dashboard", *given]) == 2
    assert problem in capsys.readouterr().err


def test_first_line_says_where_it_connects_to_without_the_password(capsys: pytest.CaptureFixture[str]) -> None:
    uri = "mongodb://dana:s3cret@127.0.0.1:1/shop?serverSelectionTimeoutMS=50"
    assert run_program(["dashboard", "--uri", uri, "--operation-timeout", "0.2"]) == 2
    first = capsys.readouterr().err.splitlines()[0]
    assert re.search(r" INFO trio_monque\.cli: connecting to mongodb://\S+@127\.0\.0\.1:1/shop\?", first)
    assert "s3cret" not in first


def test_an_address_in_use_is_named(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert run_program(["dashboard", "--uri", uri_of_database(mongod.uri, db.name), "--listen", address]) == 2
    assert f"cannot listen at {address}" in capsys.readouterr().err
