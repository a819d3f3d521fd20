"""`trio-monque run --reload`: the worker process is restarted when its program changes."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from tests.support.programs import uri_of_database
from trio_monque import Monque
from trio_monque.cli.run.reloader import folders_of
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .probe import Probe
from .run_process import run_process

PROGRAM = """
import trio

from trio_monque import Workers

from . import version

workers = Workers()


@workers.register("show")
async def show(job):
    print("version", version.VERSION, flush=True)
    if job.data == "for ever":
        await trio.sleep_forever()
"""


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


@pytest.mark.full
def test_process_is_restarted_when_a_file_changes(tmp_path: Path, uri: str, db: Database) -> None:
    shop = tmp_path / "shop"
    shop.mkdir()
    (shop / "__init__.py").touch()
    (shop / "jobs.py").write_text(PROGRAM, encoding="utf-8")
    version = shop / "version.py"
    version.write_text("VERSION = 'one'\n", encoding="utf-8")
    Monque(db).sync.enqueue("show", "for ever")
    options = ("--reload", "--health", "0", "--instance-id", "shop", "--uri", uri)
    with run_process(tmp_path, "shop.jobs:workers", *options) as parent:
        probe = Probe(parent)
        parent.wait_for_log(f"watching the Python files in {tmp_path}")
        parent.wait_for("version one")
        version.write_text("VERSION = 'second'\n", encoding="utf-8")
        parent.wait_for_log("version.py changed; restarting the worker process")
        parent.wait_for("version second")  # The running job was cut short, and runs again.
        version.write_text("VERSION = \n", encoding="utf-8")
        parent.wait_for_log("SyntaxError: invalid syntax")
        parent.wait_for_log("the worker process ended with status 2; starting the next one when a file changes")
        assert probe.ask("/readyz") == (503, "process 1: the process is not running\n")
        (shop / "notes.txt").write_text("not Python", encoding="utf-8")
        version.write_text("VERSION = 'the third'\n", encoding="utf-8")
        parent.wait_for("version the third")
        assert "shop-1-4" in probe.wait_for("/healthz", 200)
        parent.send(signal.SIGINT)
        parent.wait_for_log("SIGINT was received: draining")
        parent.send(signal.SIGTERM)  # Not SIGINT: the same signal again within a tenth of a second is one.
        status, errors = parent.wait_ended()
    assert (status, [job["status"] for job in db["monque_jobs"].find()]) == (0, ["pending"])
    assert "Traceback" not in errors


def test_watched_folders_are_the_current_one_and_those_of_packages_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for package in (here / "near", elsewhere / "far" / "deep"):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    (elsewhere / "far" / "__init__.py").write_text("raise RuntimeError('imported')", encoding="utf-8")
    (elsewhere / "single.py").touch()
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", [*sys.path, str(elsewhere)])
    targets = ["near:workers", "far.deep:workers", "far:workers", "single:workers", "missing:workers"]
    assert folders_of(targets) == [here, elsewhere / "far", elsewhere / "single.py"]
