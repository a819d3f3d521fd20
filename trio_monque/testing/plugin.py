"""Fixtures for pytest. All are synchronous: they serve pytest-trio, anyio's plugin and plain tests alike.

Loaded in every session of pytest where the library is installed.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ..client.monque import Monque
    from ..embedded import EmbeddedServer
    from ..store.driver.types import Database, MongoClient
    from .schedulers import SchedulerOpener


@pytest.fixture(scope="session")
def mongod() -> Iterator[EmbeddedServer]:
    """A MongoDB server for the whole session: the one that MONQUE_MONGODB_URI names, else an embedded one."""
    from ..embedded import embedded_mongod

    with embedded_mongod() as server:
        yield server


@pytest.fixture(scope="session")
def monque_client(mongod: EmbeddedServer) -> Iterator[MongoClient]:
    """A client of that server for the whole session. It reads datetimes as timezone-aware ones."""
    from ..store.driver.types import MongoClient

    with MongoClient(mongod.uri, tz_aware=True) as client:
        yield client


@pytest.fixture
def monque_db(monque_client: MongoClient) -> Iterator[Database]:
    """A database of the test's own, dropped afterwards."""
    name = f"monque_test_{secrets.token_hex(6)}"
    database: Database = monque_client[name]
    yield database
    # A drop waits for a majority and for the journal, also where there is nothing to drop.
    if any(monque_client.list_databases(filter={"name": name}, nameOnly=True)):
        monque_client.drop_database(name)


@pytest.fixture
def monque(monque_db: Database) -> Monque:
    """A client for the jobs of that database, on trio, asyncio, or neither (`monque.sync`)."""
    from ..client.monque import Monque

    return Monque(monque_db, stats_cache_ttl=0)  # A test counts what is there now.


@pytest.fixture
def open_test_scheduler(monque_db: Database, pytestconfig: pytest.Config) -> SchedulerOpener:
    """`async with open_test_scheduler(workers, **options) as scheduler:` runs the jobs of that database."""
    from .schedulers import SchedulerOpener

    return SchedulerOpener(monque_db, seed=pytestconfig.getoption("monque_seed"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("trio_monque").addoption(
        "--monque-seed",
        type=int,
        metavar="SEED",
        help="seed for the order of deterministic test schedulers, as the report of a failed test shows it",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed of its order to the report of a failed test."""
    report = yield
    opener = getattr(item, "funcargs", {}).get("open_test_scheduler")
    if report.failed and opener is not None and opener.seeds and opener.first_seed is not None:
        report.sections.append(("trio_monque", f"to repeat this order: pytest --monque-seed={opener.first_seed}"))
    return report
