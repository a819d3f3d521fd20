"""What becomes of the demo, its jobs and its server when it is interrupted or killed."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.support.waiting import becomes_readable
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection

from .demo_process import DemoProcess, demo_process

EVERY_SLOT_BUSY = r" 32 running "


def statuses(jobs: Collection) -> Counter[str]:
    return Counter(job["status"] for job in jobs.find({"name": "digest-file"}))


def kept_jobs(demo: DemoProcess, client: MongoClient[Any]) -> Collection:
    found = demo.wait_for_line(r"using .*collections (\w+)_\* of database (\w+)")
    return client[found[2]][f"{found[1]}_jobs"]


@pytest.mark.full
def test_the_first_interrupt_drains(mongod: EmbeddedServer, client: MongoClient[Any]) -> None:
    with demo_process("--files", "100", "--job-seconds", "1", "--uri", mongod.uri, "--keep") as demo:
        jobs = kept_jobs(demo, client)
        demo.wait_for_line(EVERY_SLOT_BUSY)
        demo.interrupt()
        demo.wait_for_line("^draining")
        status, errors = demo.wait_ended()
    found, results = statuses(jobs), jobs.count_documents({"result.digest": {"$exists": True}})
    jobs.drop()
    assert (status, errors) == (130, "")
    assert found["processing"] == 0
    assert found["completed"] == results > 0, "what ran was finished, and settled"
    assert found["pending"] > 0, "and nothing else was begun"
    assert demo.lines[-1].startswith(
        f"interrupted: {found['completed']} of 100 files are done; {found['pending']} jobs are pending, 0 processing"
    )


@pytest.mark.full
def test_the_second_interrupt_cuts(mongod: EmbeddedServer, client: MongoClient[Any]) -> None:
    with demo_process("--files", "40", "--job-seconds", "600", "--uri", mongod.uri, "--keep") as demo:
        jobs = kept_jobs(demo, client)
        demo.wait_for_line(EVERY_SLOT_BUSY)
        demo.interrupt()
        demo.wait_for_line("^draining")
        demo.interrupt()
        status, errors = demo.wait_ended()
    found, results = statuses(jobs), jobs.count_documents({"result": {"$exists": True}})
    jobs.drop()
    assert (status, errors) == (130, "")
    assert found == {"pending": 40}
    assert results == 0, "what was cut short has stored nothing"
    assert demo.lines[-1].startswith("interrupted: 0 of 40 files are done; 40 jobs are pending")


@pytest.mark.full
def test_an_interrupt_before_the_work_begins_ends_at_once() -> None:
    with demo_process("--files", "1", "--uri", "mongodb://127.0.0.1:1") as demo:
        demo.wait_for_line("1 files of")
        demo.interrupt()
        status, errors = demo.wait_ended()
    assert (status, errors) == (130, "")
    assert demo.lines[-1] == "interrupted: nothing was started"


@pytest.mark.full
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="another process can be awaited on Linux only")
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_no_server_outlives_the_demo(ending: signal.Signals, tmp_path: Path) -> None:
    with demo_process("--files", "40", "--job-seconds", "1", TMPDIR=str(tmp_path)) as demo:
        server = os.pidfd_open(int(demo.wait_for_line(r"server: pid (\d+)")[1]))
        demo.wait_for_line(EVERY_SLOT_BUSY)
        demo.process.send_signal(ending)
        ended = becomes_readable(server, 20.0)
        os.close(server)
        assert ended
        status, _ = demo.wait_ended()
    assert status == (130 if ending is signal.SIGTERM else -signal.SIGKILL)
