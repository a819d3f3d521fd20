"""A server of these tests' own: it is frozen, and no other test must wait for it."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.haste import hasten
from tests.support.standstills import Witness
from trio_monque.embedded import embedded_mongod
from trio_monque.store.driver.types import Database

from .members import ReplicaSet, replica_set
from .processes import OwnServer
from .scenario import SEED, Scenario

# These tests freeze processes, and look into /proc.
collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]


@pytest.fixture(scope="session")
def own_server() -> Iterator[OwnServer]:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MONQUE_MONGODB_URI", raising=False)
        with embedded_mongod() as server:
            hasten(server)
            yield OwnServer(server.uri, server.members[0].pid)


@pytest.fixture
def own_db(own_server: OwnServer) -> Iterator[Database]:
    """A database there, and a client that no scheduler of the test uses."""
    with MongoClient[dict[str, Any]](own_server.uri, tz_aware=True) as client:
        yield client[f"monque_test_{secrets.token_hex(6)}"]


@pytest.fixture
def scenario(own_server: OwnServer, own_db: Database, tmp_path: Path, witness: Witness) -> Scenario:
    return Scenario(own_server.uri, own_db, tmp_path, SEED, witness)


@pytest.fixture(scope="session")
def three_members() -> Iterator[ReplicaSet]:
    """Whole before each test, and after it."""
    with replica_set() as members:
        yield members


@pytest.fixture
def three_db(three_members: ReplicaSet) -> Iterator[Database]:
    with MongoClient[dict[str, Any]](three_members.uri, tz_aware=True) as client:
        name = f"monque_elections_{secrets.token_hex(6)}"
        yield client[name]
        client.drop_database(name)
