"""A process that was frozen for longer than its lease: its runs end at their next checkpoint, and change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.store.driver.types import Database

from .processes import OwnServer, frozen, worker_process
from .records import attempts_grow, gaps, read, spans
from .rescuer import rescuing
from .worker import TICK

HEARTBEAT: Final = 0.4

# How a run ends that was frozen, and what becomes of its job meanwhile.
ENDS: Final = ("cancelled", "returns", "raises")

# What the successor itself goes on changing.
ITS_RENEWALS: Final = ("lastHeartbeat", "renewedAt", "updatedAt")


def documents(db: Database) -> Sequence[Mapping[str, Any]]:
    found = list(db["monque_jobs"].find(sort=[("_id", 1)]))
    return [{name: one for name, one in document.items() if name not in ITS_RENEWALS} for document in found]


@pytest.mark.full
def test_frozen_instance_finds_its_runs_cancelled_and_changes_nothing(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    records, now, later = tmp_path / "records", tmp_path, tmp_path / "later"
    options: dict[str, Any] = {
        "concurrency_per_name": 10,
        "heartbeat_interval": HEARTBEAT,
        "poll_interval": 0.02,
        "recover_stale_jobs": False,  # The rescuer of these tests is faster, and independent of the library.
    }
    # Half of the jobs are completed by the time their first holder thaws; half of them run elsewhere.
    data = [{"then": then, "until": str(until)} for then in ENDS for until in (now, later)]
    jobs = own_db["monque_jobs"]
    with (
        worker_process("holder", own_server.uri, own_db.name, records, **options) as holder,
        worker_process("successor", own_server.uri, own_db.name, records, **options) as successor,
    ):
        for one in data:
            Monque(own_db).sync.enqueue("ticks", one)
        holder.open()
        holder.wait_for("passed", 2 * len(data))
        # All have just ticked: that the freeze comes between a checkpoint and its record is as good as impossible.
        holder.wait_for("passed", len(holder.records("passed")) + len(data))
        with rescuing(own_server.uri, own_db.name) as rescuer, frozen(holder.pid):
            frozen_at = holder.records("passed")[-1].at
            successor.open()
            successor.wait_for("start", len(data), attempt=2)
            wait_until(lambda: jobs.count_documents({"status": "completed"}) == len(ENDS), "half are completed")
            rescuer.end()
            before = documents(own_db)
            thawed_at = max(one.at for one in read(records))
        holder.wait_for("end", len(data))
        holder.wait_for("lost", len(data))
        holder.end()
        after = documents(own_db)
        later.touch()
        wait_until(lambda: jobs.count_documents({"status": "completed"}) == len(data), "all are completed")
        successor.end()

    assert before == after
    assert all("saved" not in document for document in jobs.find())
    assert [one.detail for one in holder.records("cancelled")] == ["lost"] * len(data)
    assert len(holder.records("refused")) == len(data)
    assert holder.records("saved") == []
    assert [one for one in holder.records("passed") if one.at > thawed_at] == []
    runs = spans(read(records), ended={"holder": frozen_at})
    assert min(gaps(runs)) > 0
    assert attempts_grow(runs)
    assert frozen_at + TICK < min(one.at for one in holder.records("cancelled"))
