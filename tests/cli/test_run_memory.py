"""`trio-monque run` sets the garbage collector once the program is loaded, and the allocator, unless they are set."""

from __future__ import annotations

import platform
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli.run.memory_tuning import GARBAGE_THRESHOLDS
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .run_process import run_process

PROGRAM = """
import gc

from trio_monque import Workers

workers, at_first = Workers(), gc.get_threshold()


@workers.register("look")
async def look(job):
    found = "as at first" if gc.get_threshold() == at_first else " ".join(map(str, gc.get_threshold()))
    print(found, "frozen" if gc.get_freeze_count() else "", flush=True)


def with_thresholds():
    gc.set_threshold(100, 5, 5)
    return workers
"""


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


@pytest.mark.full
@pytest.mark.parametrize(
    ("attribute", "options", "found"),
    [
        ("workers", (), f"{' '.join(map(str, GARBAGE_THRESHOLDS))} frozen"),
        ("workers", ("--no-memory-tuning",), "as at first "),
        ("with_thresholds", (), "100 5 5 "),
    ],
    ids=["by default", "not wanted", "set by the program"],
)
def test_garbage_collector_is_set_once_the_program_is_loaded(
    tmp_path: Path, uri: str, db: Database, attribute: str, options: tuple[str, ...], found: str
) -> None:
    (tmp_path / "collected.py").write_text(PROGRAM, encoding="utf-8")
    Monque(db).sync.enqueue("look")
    with run_process(tmp_path, f"collected:{attribute}", *options, "--uri", uri) as worker:
        worker.wait_for(found)
        worker.send(signal.SIGTERM)
        status, _ = worker.wait_ended()
    assert status == 0


POOLS = """
import ctypes
import tempfile
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from trio_monque import Workers

workers, together = Workers(), Barrier(8)
libc = ctypes.CDLL(None)
libc.fopen.restype, libc.malloc.restype = ctypes.c_void_p, ctypes.c_void_p


def allocate():
    together.wait()
    libc.malloc(1000)
    together.wait()


@workers.register("look")
async def look(job):
    with ThreadPoolExecutor(8) as pool:
        for _ in range(8):
            pool.submit(allocate)
    with tempfile.NamedTemporaryFile() as there:
        file = ctypes.c_void_p(libc.fopen(there.name.encode(), b"w"))
        libc.malloc_info(0, file)
        libc.fclose(file)
        pools = there.read().count(b"<heap nr=")
    print("one pool" if pools == 1 else "many pools", flush=True)
"""


@pytest.mark.full
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has a pool for each thread")
@pytest.mark.parametrize(
    ("options", "environment", "found"),
    [
        ((), {}, "one pool"),
        (("--no-memory-tuning",), {}, "many pools"),
        ((), {"MALLOC_ARENA_MAX": "6"}, "many pools"),
        ((), {"GLIBC_TUNABLES": "glibc.malloc.arena_max=6"}, "many pools"),
    ],
    ids=["by default", "not wanted", "set by a variable", "set by a tunable"],
)
def test_threads_share_one_pool_of_memory(
    tmp_path: Path,
    uri: str,
    db: Database,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    environment: Mapping[str, str],
    found: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "pools.py").write_text(POOLS, encoding="utf-8")
    Monque(db).sync.enqueue("look")
    with run_process(tmp_path, "pools:workers", *options, "--uri", uri) as worker:
        worker.wait_for(found)
        worker.send(signal.SIGTERM)
        status, _ = worker.wait_ended()
    assert status == 0
