"""`trio-monque server`, as a process: the address that it prints, how it ends, and what it keeps."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from trio_monque.cli import main, server_command
from trio_monque.embedded.server_start import LaunchOptions
from trio_monque.errors import EmbeddedServerError

from .demo_process import REPOSITORY, environment


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


@contextmanager
def server_process(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "trio_monque", "server", *arguments]
    variables = {**environment(), "MONQUE_MONGODB_URI": "mongodb://127.0.0.1:1"}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    process.stdout.readline()
    return process.stdout.readline().strip()


@pytest.mark.full
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_server_prints_an_address_that_works_and_ends_on_a_signal(port: int, end: signal.Signals) -> None:
    with server_process("--port", str(port)) as process:
        uri = address_of(process)
        assert uri == f"mongodb://127.0.0.1:{port}/shop?replicaSet=rs0"
        assert process.stdout is not None
        process.stdout.readline()
        variable = f'export MONQUE_URI="{uri}"'
        assert process.stdout.readline().strip() == variable
        with MongoClient[dict[str, Any]](uri) as client:
            client["shop"]["jobs"].insert_one({"_id": 1})
            with client["shop"].watch() as stream:
                assert stream.try_next() is None
        process.send_signal(end)
        _, errors = process.communicate()
    assert (process.returncode, errors) == (0, "")
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.full
def test_server_keeps_the_data_of_a_folder_under_its_name(port: int, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for expected in (0, 1):
        with server_process("--port", str(port), "--folder", str(folder), "--replica-set", "shop") as process:
            with MongoClient[dict[str, Any]](address_of(process)) as client:
                assert client["shop"]["jobs"].count_documents({}) == expected
                client["shop"]["jobs"].insert_one({})
            process.terminate()
            process.wait()
    with server_process("--port", str(port), "--folder", str(folder)) as process:
        _, errors = process.communicate()
    assert process.returncode == 2
    assert "holds the replica set 'shop', not 'rs0'" in errors


def test_port_that_is_taken_ends_with_what_to_do(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["server", "--port", str(port)]) == 2
    assert f"port {port} (or the next, for more members) is taken: end what listens there" in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["--port", "0"], ["--port", "x"], ["--replica-set", "a b"]])
def test_server_refuses_arguments_that_cannot_work(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["server", *arguments]) == 2
    assert "Usage: trio-monque server" in capsys.readouterr().err


def test_server_without_options_is_the_one_that_the_first_steps_connect_to(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its port may be taken here, so that the server itself is not started."""
    asked: list[LaunchOptions] = []

    def refuse(options: LaunchOptions) -> None:
        asked.append(options)
        raise EmbeddedServerError("not started")

    monkeypatch.setattr(server_command, "EmbeddedMongod", refuse)
    assert main(["server"]) == 2
    (options,) = asked
    address = f"mongodb://localhost:{options.port}/?replicaSet={options.replica_set}"
    assert address == "mongodb://localhost:27017/?replicaSet=rs0"
    assert address in (REPOSITORY / "docs/tutorial/first-steps.md").read_text(encoding="utf-8")
