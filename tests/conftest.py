"""Fixtures for every test. The server is one per session: it starts outside any test's event loop."""

from __future__ import annotations

import secrets
import signal
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from trio_monque.embedded import EmbeddedServer, embedded_mongod
from trio_monque.store.types import Collection, Database


def pytest_configure() -> None:
    """Ctrl-C works in the tests and in what they start, also where they were started so that they ignore it.

    A shell without job control lets its background processes, and their children, ignore it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def mongod() -> Iterator[EmbeddedServer]:
    """A server for the whole session: the one of MONQUE_MONGODB_URI, else an embedded one."""
    with embedded_mongod() as server:
        yield server


@pytest.fixture(scope="session")
def client(mongod: EmbeddedServer) -> Iterator[MongoClient[Any]]:
    with MongoClient[Any](mongod.uri, tz_aware=True) as client:
        yield client


@pytest.fixture
def db(client: MongoClient[Any]) -> Iterator[Database]:
    """A fresh database, dropped afterwards."""
    name = f"monque_test_{secrets.token_hex(6)}"
    yield client[name]
    client.drop_database(name)


@pytest.fixture
def jobs(db: Database) -> Collection:
    """The jobs collection, as any program sees it."""
    return db["monque_jobs"]


@pytest.fixture
def unused_port() -> int:
    """A port of this machine where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port
