"""The doctor beside real processes that stand still or end: a frozen worker, and members of a replica set."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.faults.processes import frozen
from tests.support.programs import uri_of_database
from tests.support.standstills import Witness
from tests.support.store import handle
from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer, embedded_mongod
from trio_monque.options_and_defaults import LEASE_IN_BEATS
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads.diagnosis.server import members_ahead

from .doctor_support import Doctor
from .run_process import run_process, write_program

BEAT = 1.0
OPTIONS = ("--heartbeat-interval", str(BEAT), "--poll-interval", "0.05", "--only", "wait")


@pytest.mark.full
def test_frozen_worker_is_named_within_a_lease_and_its_job_no_more_after_the_rescue(
    mongod: EmbeddedServer, db: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str], witness: Witness
) -> None:
    write_program(tmp_path)
    uri = uri_of_database(mongod.uri, db.name)
    doctor = Doctor(uri, capsys)
    job = Monque(db).sync.enqueue("wait", "for ever")
    with run_process(tmp_path, "shop:workers", "--uri", uri, "--instance-id", "shop-1", *OPTIONS) as worker:
        worker.wait_for("waiting")
        assert doctor.looks().findings == []
        with frozen(worker.pid):
            frozen_at = time.monotonic()
            wait_until(lambda: "stuck-jobs" in doctor.looks().kinds, "the job counts as stuck", pause=0.05)
            assert witness.undisturbed(frozen_at, time.monotonic()) < LEASE_IN_BEATS * BEAT
            found = doctor.looks()
            (sentence,) = found.sentences("stuck-jobs")
            assert sentence.startswith(f"Jobs stuck in `processing`: 1 (for example job {job.id}). Their holder shop-1")
            assert f"process {worker.pid} on " in sentence
            assert len(found.sentences("dead-instance")) == 1
            with run_process(tmp_path, "shop:workers", "--uri", uri, "--instance-id", "shop-2", *OPTIONS) as other:
                other.wait_for("waiting")
                found = doctor.looks()
                assert "stuck-jobs" not in found.kinds
                assert len(found.sentences("rescued-jobs")) == 1


@pytest.mark.full
@pytest.mark.timeout(120)
def test_members_of_a_replica_set_that_end_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    with embedded_mongod(members=3) as server:
        doctor = Doctor(uri_of_database(server.uri, "x"), capsys)
        with MongoClient[Any](server.uri) as client:
            indexes.ensure(handle(client["x"]))
            primary = client.primary
        assert doctor.looks().findings == []
        offsets = members_ahead(server.uri, [("127.0.0.1", member.port) for member in server.members])
        assert len(offsets) == 3
        assert all(abs(ahead) < 0.5 for ahead in offsets.values())
        others = [member for member in server.members if ("127.0.0.1", member.port) != primary]
        os.kill(others[0].pid, signal.SIGKILL)
        wait_until(lambda: "member-down" in doctor.looks().kinds, "a member is missed", pause=0.1)
        os.kill(others[1].pid, signal.SIGKILL)
        wait_until(lambda: "no-primary" in doctor.looks().kinds, "there is no primary", 60, pause=0.1)
        found = doctor.looks()
        assert len(found.sentences("member-down")) == 2
        assert found.findings[0]["kind"] == "no-primary"
