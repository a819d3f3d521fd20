"""Fixtures for the tests in a browser. Each test ends without a message, a failed request or a request to others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from pymongo import MongoClient

from tests.browser.places import MOST_EXAMINED, MOST_IN_A_BATCH, PREFIX
from tests.support.browser import Visits, chromium
from tests.support.web_servers import WebServer
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SERVED: Final = Path(__file__).parent / "served_dashboard.py"
IS_WRITING: Final = "MONQUE_SCREENSHOTS" in os.environ
DATABASE: Final = "shop" if IS_WRITING else f"browser_{os.getpid()}"
LOWERED: Final = {} if IS_WRITING else {"examined": MOST_EXAMINED, "batch": MOST_IN_A_BATCH}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser, for the tests of one module."""
    with chromium() as running:
        yield running


@pytest.fixture(scope="session")
def dashboard(mongod: EmbeddedServer) -> Iterator[str]:
    """Where the dashboard is: a process of its own serves it until the last test has ended."""
    environment = "production" if IS_WRITING else "testing"
    order = {"uri": mongod.uri, "database": DATABASE, "environment": environment, **LOWERED}
    with WebServer("uvicorn", SERVED, {"ORDER": json.dumps(order)}) as server:
        server.wait_until_it_serves()
        yield server.url + PREFIX


@pytest.fixture
def jobs(client: MongoClient[Any]) -> Collection:
    """The jobs that the dashboard shows: none yet."""
    for name in client[DATABASE].list_collection_names(filter={"type": "collection"}):
        client[DATABASE][name].delete_many({})
    return client[DATABASE]["monque_jobs"]


@pytest.fixture
def visit(browser: Browser, dashboard: str, jobs: Collection) -> Iterator[Visits]:
    """Opens pages. What goes wrong in one of them fails the test, unless it was expected."""
    visits = Visits(browser, dashboard)
    try:
        yield visits
        assert [one.unexpected for one in visits.opened] == [[] for _ in visits.opened]
    finally:
        visits.close()
