"""Runs stop by themselves when their claims cannot be renewed, before anybody may take their jobs.

The handlers run until the test ends them, and write down by themselves when they start and end. A rescuer
takes each job at the first moment that the design allows, and a pending job is claimed at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo.uri_parser import parse_uri

from tests.support.standstills import Witness, witnessed
from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.store.driver.types import Database

from .processes import OwnServer, WorkerProcess, frozen, worker_process
from .records import Span, attempts_grow, gaps, read, spans
from .relay import Relay, relay
from .rescuer import Rescuer, rescuing

HEARTBEAT: Final = 0.4
LEASE: Final = 3 * HEARTBEAT
JOBS: Final = 8


@dataclass(frozen=True)
class Fleet:
    """A process that holds all the jobs, one that takes what becomes free, and a rescuer between them."""

    db: Database
    records: Path
    holder: WorkerProcess
    successor: WorkerProcess
    rescuer: Rescuer | None
    relay: Relay
    over: Path
    witness: Witness
    began: float

    @property
    def runs(self) -> list[Span]:
        return list(spans(read(self.records)))

    def wait_ended(self) -> None:
        """All jobs, on request, then the processes, in order."""
        self.over.touch()
        jobs = self.db["monque_jobs"]
        wait_until(lambda: jobs.count_documents({"status": "completed"}) == JOBS, "all jobs are completed")
        self.holder.end()
        self.successor.end()


@contextmanager
def fleet(
    server: OwnServer, db: Database, records: Path, *, unfenced: bool = False, by_the_library: bool = False
) -> Iterator[Fleet]:
    """The holder sees the server through a relay, and runs all the jobs. No other client is cut off with it.

    The rescuer of these tests is faster than the library's own, and independent of it.
    """
    options: dict[str, Any] = {
        "concurrency_per_name": JOBS,
        "heartbeat_interval": HEARTBEAT,
        "poll_interval": 0.02,
        "recover_stale_jobs": by_the_library,
        "max_rescues": 20,  # A machine that stands still is one more outage.
    }
    over = records.with_name("over")
    with ExitStack() as stack:
        witness, began = stack.enter_context(witnessed()), time.monotonic()
        passing = stack.enter_context(relay(parse_uri(server.uri)["nodelist"][0]))
        start = stack.enter_context
        holder = start(worker_process("holder", passing.uri, db.name, records, unfenced=unfenced, **options))
        successor = start(worker_process("successor", server.uri, db.name, records, unfenced=unfenced, **options))
        holder.open()
        for number in range(JOBS):
            # One after another: each is a claim of its own, which is renewed and lost by itself.
            Monque(db).sync.enqueue("lasts", {"until": str(over)})
            wait_started(holder, number + 1)
        successor.open()
        rescuer = None if by_the_library else start(rescuing(server.uri, db.name))
        yield Fleet(db, records, holder, successor, rescuer, passing, over, witness, began)


def wait_started(worker: WorkerProcess, jobs: int) -> None:
    """Returns when the worker has begun to run this many jobs."""
    wait_until(lambda: len({one.job for one in worker.records("start")}) >= jobs, f"{worker.name} runs {jobs} jobs")


def freeze(server: OwnServer) -> None:
    """For longer than a lease: all that runs has fenced itself by then, and the rescuer's writes lie in wait."""
    with frozen(server.pid):
        # The time is the outage. Were it waited for that the runs have stopped, they would stop before the thaw
        # however late that is, and nothing would overlap that must.
        time.sleep(LEASE + 0.15)


def freeze_and_hear_the_holder_last(server: OwnServer, all_of_them: Fleet) -> None:
    """What the holder sent meanwhile, its renewals, arrives after the rescuer's writes: each job is taken."""
    with all_of_them.relay.cut_off():
        freeze(server)
        wait_started(all_of_them.successor, JOBS)


def cut_off(_: OwnServer, all_of_them: Fleet) -> None:
    """The server answers all others: the jobs are taken at the very first moment, and not when it thaws."""
    with all_of_them.relay.cut_off():
        wait_started(all_of_them.successor, JOBS)


def assert_nothing_overlaps(all_of_them: Fleet) -> None:
    runs = all_of_them.runs
    assert {one.detail for one in all_of_them.holder.records("cancelled")} == {"lost"}
    stood_still = all_of_them.witness.seconds(all_of_them.began, time.monotonic())
    assert all_of_them.holder.records("cleaning") or stood_still, "the clean-ups had their time, too"
    assert all(run.end < time.monotonic() for run in runs), "each run has ended"
    assert len({run.job for run in runs}) == JOBS
    assert min(gaps(runs)) > 0
    assert attempts_grow(runs)


@pytest.mark.full
def test_no_two_runs_of_a_job_overlap_although_the_server_is_frozen(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    with fleet(own_server, own_db, tmp_path / "records") as all_of_them:
        freeze_and_hear_the_holder_last(own_server, all_of_them)
        assert all_of_them.rescuer is not None
        taken = len(all_of_them.rescuer.taken)
        started = len(all_of_them.runs)
        # Now it is chance what the server sees first: renewals, releases of what fenced itself, or the rescuer.
        freeze(own_server)
        wait_until(lambda: len(all_of_them.runs) > started, "jobs are run again")
        all_of_them.wait_ended()
    assert taken >= JOBS
    assert len(all_of_them.runs) >= started + JOBS, "all of them were run again"
    assert_nothing_overlaps(all_of_them)


@pytest.mark.full
def test_no_two_runs_of_a_job_overlap_although_their_process_is_cut_off(
    own_server: OwnServer, own_db: Database, tmp_path: Path
) -> None:
    with fleet(own_server, own_db, tmp_path / "records") as all_of_them:
        cut_off(own_server, all_of_them)
        all_of_them.wait_ended()
    assert all_of_them.rescuer is not None
    assert len(all_of_them.rescuer.taken) >= JOBS
    assert_nothing_overlaps(all_of_them)


@pytest.mark.full
@pytest.mark.parametrize("outage", [freeze_and_hear_the_holder_last, cut_off])
def test_no_two_runs_of_a_job_overlap_where_the_library_itself_rescues(
    own_server: OwnServer, own_db: Database, tmp_path: Path, outage: Callable[[OwnServer, Fleet], None]
) -> None:
    with fleet(own_server, own_db, tmp_path / "records", by_the_library=True) as all_of_them:
        outage(own_server, all_of_them)
        rescued = own_db["monque_jobs"].count_documents({"rescues": {"$gte": 1}})
        all_of_them.wait_ended()
    assert rescued == JOBS
    assert_nothing_overlaps(all_of_them)


@pytest.mark.full
@pytest.mark.parametrize("outage", [pytest.param(freeze_and_hear_the_holder_last, marks=pytest.mark.thorough), cut_off])
def test_the_checker_finds_overlaps_where_runs_do_not_fence_themselves(
    own_server: OwnServer, own_db: Database, tmp_path: Path, outage: Callable[[OwnServer, Fleet], None]
) -> None:
    """The same without the lease arithmetic: so these tests can fail. Of both outages with MONQUE_TEST_THOROUGH=1."""
    with fleet(own_server, own_db, tmp_path / "records", unfenced=True) as all_of_them:
        outage(own_server, all_of_them)
    assert len([gap for gap in gaps(all_of_them.runs) if gap < 0]) >= JOBS
