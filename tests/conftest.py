"""Fixtures for every test, beside those of the library's own plugin: `mongod`, `monque_db`, `monque` and the others."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import settings
from pymongo import MongoClient

from tests.support.bytecode import import_in_an_order_of_its_own, keep_bytecode
from tests.support.ci_timeouts import is_ci, lengthen, timeout_of
from tests.support.haste import hasten
from tests.support.run_record import record_if_asked
from tests.support.standstills import Witness, witnessed
from tests.support.thoroughly import FULL, THOROUGH
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

pytest_plugins = ["pytester"]  # For the tests of the plugin; pytest wants it said here.

MEMORY: Final = Path("/dev/shm")  # Where Linux has files in memory.
ENOUGH_MEMORY: Final = 8 << 30


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C works in the tests and in what they start, also where they were started so that they ignore it.

    A shell without job control lets its background processes, and their children, ignore it.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # How long an example takes depends on what else the machine does.
    settings.register_profile("without deadlines", deadline=None)
    settings.load_profile("without deadlines")
    _keep_servers_off_the_disk()
    keep_bytecode()
    record_if_asked(config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    import_in_an_order_of_its_own(session.config)


def _keep_servers_off_the_disk() -> None:
    """The data of these servers is not needed afterwards, and a shared disk makes them pause now and then.

    What pytest itself keeps stays where it was: in memory, nothing may be executed in some places.
    """
    if "TMPDIR" in os.environ or not os.access(MEMORY, os.W_OK):
        return
    if shutil.disk_usage(MEMORY).free >= ENOUGH_MEMORY:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked as `full` or `thorough` unless the environment asks for it, and put long tests first.

    Those are the ones that have a timeout of their own, the longest first. At the end, all other processes would wait
    for them.
    """
    unwanted = [name for name, is_wanted in (("full", FULL), ("thorough", THOROUGH)) if not is_wanted]
    left_out = {item for item in items if any(item.get_closest_marker(name) for name in unwanted)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=timeout_of, reverse=True)
    if is_ci():
        lengthen(config, items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    # Without pytest-xdist there is no worker to ask.
    from tests.support.scheduling import GroupedScheduling

    return GroupedScheduling(config, log)


@pytest.fixture(scope="session")
def mongod(mongod: EmbeddedServer) -> EmbeddedServer:
    """The one of the library's plugin, hastened."""
    hasten(mongod)
    return mongod


@pytest.fixture(scope="session")
def client(monque_client: MongoClient[Any]) -> MongoClient[Any]:
    return monque_client


@pytest.fixture
def db(monque_db: Database) -> Database:
    return monque_db


@pytest.fixture
def jobs(db: Database) -> Collection:
    """The jobs collection, as any program sees it."""
    return db["monque_jobs"]


@pytest.fixture
def unused_port() -> int:
    """A port of this machine without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


@pytest.fixture(scope="session")
def witness() -> Iterator[Witness]:
    """A witness of the moments in which the whole machine stood still, for tests that judge times of processes."""
    with witnessed() as one:
        yield one
