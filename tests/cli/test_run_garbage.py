"""`trio-monque run` sets the garbage collector once the program is loaded, unless the program has set it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli.run.worker_process import GARBAGE_THRESHOLDS
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


@pytest.mark.parametrize(
    ("attribute", "options", "found"),
    [
        ("workers", (), f"{' '.join(map(str, GARBAGE_THRESHOLDS))} frozen"),
        ("workers", ("--no-gc-tuning",), "as at first "),
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
