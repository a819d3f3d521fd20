"""`trio-monque cancel`, `retry`, `delete` and `reschedule` on jobs by their ids."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from tests.support.bulk_calls import put, statuses
from tests.support.jobs_in_memory import flat
from tests.support.store import claim, handle
from trio_monque import Monque, SyncMonque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes
from trio_monque.testing import fail_next

from .command_support import Command, command_of
from .doctor_support import now


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


UNKNOWN = "6" * 24
"""An id that no job has."""


def test_each_id_is_tried_and_errors_are_one_line_each(command: Command, db: Database, jobs: Collection) -> None:
    pending, completed, cancelled = (put(jobs, one) for one in ("pending", "completed", "cancelled"))
    broken = jobs.insert_one({"name": "greet", "status": "pending"}).inserted_id
    ended = command("cancel", str(completed), UNKNOWN, "greet", str(broken), str(pending), str(pending), str(cancelled))
    assert ended.status == 1
    assert ended.lines == [f"cancelled greet {pending}", f"cancelled greet {cancelled}"]
    first, second, third, fourth = ended.err.splitlines()
    assert first == f"trio-monque: cannot cancel job {completed}: its status is 'completed'"
    assert second == f"trio-monque: cannot cancel job {UNKNOWN}: {db.name}.monque_jobs has no job with this id"
    assert third.endswith(
        "cannot cancel job greet: an id has 24 hexadecimal digits; by a name they are selected with --name greet"
    )
    assert fourth.startswith(f"trio-monque: document {broken} is not a job")
    assert statuses(jobs) == {"completed": 1, "cancelled": 2, "pending": 1}


def test_run_is_asked_to_end(command: Command, db: Database, jobs: Collection) -> None:
    (job,) = claim(handle(db), 1)
    ended = command("cancel", str(job.id))
    assert (ended.status, ended.out) == (
        0,
        f"asked the run of greet {job.id} to end: `trio-monque show` has how far it is\n",
    )
    found = Monque(db).sync.get_job(job.id)
    assert found is not None
    assert flat(found).cancel_requested_at is not None


def test_retry_and_delete_and_reschedule_by_id(command: Command, db: Database, jobs: Collection) -> None:
    job_id = put(jobs, "failed", failCount=10)
    assert command("retry", str(job_id)).lines == [f"requeued greet {job_id}"]
    ended = command("reschedule", str(job_id), "2031-01-31T12:00+01:00")
    assert ended.status == 0
    assert ended.out.startswith(f"greet {job_id} is due 2031-01-31 11:00:00Z (in ")
    assert command("reschedule", str(job_id), "2h").out.endswith("(in 2h)\n")
    found = Monque(db).sync.get_job(job_id)
    assert found is not None
    assert (found.status, found.fail_count) == ("pending", 0)
    assert timedelta(hours=1.9) < found.next_run_at - now() < timedelta(hours=2.1)
    assert command("reschedule", str(job_id), "now").status == 0
    found = Monque(db).sync.get_job(job_id)
    assert found is not None
    assert abs(found.next_run_at - now()) < timedelta(minutes=1)
    ended = command("delete", str(job_id), str(job_id))
    assert (ended.status, ended.lines, ended.err) == (0, [f"deleted {job_id}"], "")
    assert jobs.count_documents({}) == 0
    for again in (("delete", str(job_id)), ("reschedule", str(job_id), "2h")):
        ended = command(*again)
        assert (ended.status, ended.out) == (1, "")
        assert "has no job with this id" in ended.err


def test_id_that_is_not_utf_8_is_printed_escaped(command: Command) -> None:
    ended = command("cancel", "--json", "\udcff")  # As Python reads an argument that is not UTF-8.
    assert (ended.status, ended.json["errors"][0]["id"]) == (1, r"\udcff")
    assert r"cannot cancel job \udcff: an id has 24" in ended.err


def test_json_has_the_jobs_and_the_errors(command: Command, jobs: Collection) -> None:
    job_id = put(jobs, "failed", name="grüße")
    found = command("retry", "--json", str(job_id), UNKNOWN).json
    assert (found["action"], found["count"]) == ("retry", 1)
    assert [(one["id"], one["name"], one["status"]) for one in found["jobs"]] == [(str(job_id), "grüße", "pending")]
    assert [one["id"] for one in found["errors"]] == [UNKNOWN]
    assert command("delete", "--json", str(job_id)).json["jobs"] == [{"id": str(job_id)}]


def test_key_in_use_refuses_one_and_not_the_others(command: Command, db: Database, jobs: Collection) -> None:
    indexes.ensure(handle(db))
    Monque(db).sync.enqueue("greet", unique_key="k")
    refused, other = put(jobs, "failed", uniqueKey="k"), put(jobs, "failed")
    ended = command("retry", str(refused), str(other))
    assert (ended.status, ended.lines) == (1, [f"requeued greet {other}"])
    assert "has its unique key" in ended.err
    ended = command("retry", "--status", "failed", "--yes")
    assert (ended.status, ended.lines) == (1, [f"requeued 0 jobs of {db.name}.monque_jobs"])
    assert f"cannot retry {refused}: another pending or processing job has its unique key" in ended.err


def test_lost_connection_ends_the_ids_after_what_is_done_was_printed(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(put(jobs, "pending")) for _ in range(3)]
    cancel = SyncMonque.cancel_job

    def losing(self: SyncMonque, job_id: Any) -> Any:
        if job_id == ids[1]:
            with fail_next(self, AutoReconnect("gone"), times=None):
                return cancel(self, job_id)
        return cancel(self, job_id)

    monkeypatch.setattr(SyncMonque, "cancel_job", losing)
    ended = command("cancel", *ids)
    assert (ended.status, ended.lines) == (2, [f"cancelled greet {ids[0]}"])
    assert "gone" in ended.err
    assert statuses(jobs) == {"cancelled": 1, "pending": 2}

    def interrupted(self: SyncMonque, job_id: Any) -> Any:
        if job_id == ids[2]:
            raise KeyboardInterrupt
        return cancel(self, job_id)

    monkeypatch.setattr(SyncMonque, "cancel_job", interrupted)
    ended = command("cancel", *ids)
    assert (ended.status, ended.lines) == (130, [f"cancelled greet {one}" for one in ids[:2]])
    assert ended.err == f"interrupted at {ids[2]}, which may be done too\n"
