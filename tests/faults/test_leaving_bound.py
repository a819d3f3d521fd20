"""Leaving ends no later than it says, with a server that answers nothing; and no job is lost by that."""

from __future__ import annotations

import math
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tests.support.standstills import Witness
from tests.support.waiting import wait_until
from trio_monque import Monque, open_scheduler
from trio_monque.scheduler.events_and_report import SchedulerReport
from trio_monque.store.driver.types import Database

from .processes import OwnServer, frozen, worker_process
from .records import attempts_grow, gaps, read, spans
from .rescuer import CLAIM, rescuing
from .troubles import TROUBLES, Trouble

SHUTDOWN_TIMEOUT: Final = 0.3
CLEANUP_TIMEOUT: Final = 0.2
FIXED: Final = 2.0
# The bound is the promise, and is measured. This is on top, for a machine that has other things to do.
LOADED_MACHINE: Final = 1.5
# For the end of a process after that: at its exit the driver waits for its own threads, half a second each.
DRIVERS_EXIT: Final = 1.0

BOUNDS: Final = {"drain": SHUTDOWN_TIMEOUT + CLEANUP_TIMEOUT + FIXED, "cut": CLEANUP_TIMEOUT + FIXED}


class Leaving:
    """One scheduler that is left in one way, while it is in one trouble.

    Attributes:
        what, how: For the reader.
        left_at, ended_at: When leaving began, and when it was over, by time.monotonic().
    """

    def __init__(self, what: str, how: str, trouble: Trouble) -> None:
        self.what = what
        self.how = how
        self.trouble = trouble
        self.left_at = self.ended_at = math.inf
        self.report: SchedulerReport | None = None
        self._db = trouble.client[f"monque_test_{secrets.token_hex(6)}"]

    def __repr__(self) -> str:
        return f"{self.how} with {self.what}"

    async def run(self, reported: trio.Event, *, task_status: trio.TaskStatus[None]) -> None:
        with trio.CancelScope() as scope:
            async with open_scheduler(
                self._db,
                self.trouble.workers,
                shutdown_timeout=SHUTDOWN_TIMEOUT,
                cleanup_timeout=CLEANUP_TIMEOUT,
                poll_interval=1000,  # Nothing is in flight but what the trouble is about.
                skip_index_creation=True,
            ) as scheduler:
                await self.trouble.arrange(scheduler)
                task_status.started()
                await reported.wait()
                self.left_at = time.monotonic()
                if self.how == "cut":
                    scope.cancel()
        self.ended_at = time.monotonic()
        self.report = scheduler.report

    @property
    def documents(self) -> Mapping[str, Mapping[str, Any]]:
        """By their names; there is one each."""
        return {one["name"]: one for one in self._db["monque_jobs"].find()}

    def is_done(self) -> bool:
        """Whether all that was under way has arrived, and has left its job as it should be."""
        documents = self.documents
        return all(OUTCOMES[name](documents[name]) or self._waited(documents[name]) for name in self.trouble.jobs)

    def _waited(self, document: Mapping[str, Any]) -> bool:
        """Whether its release was never sent, behind a batch that was never answered: then its lease ends it."""
        return "quick" in self.trouble.jobs and document["name"] in CUT_SHORT and is_rescuable(document)


def is_given_back(document: Mapping[str, Any]) -> bool:
    return document["status"] == "pending" and document.get("attempts") == 1 and not document.keys() & set(CLAIM)


def is_untouched(document: Mapping[str, Any]) -> bool:
    return document["status"] == "pending" and "attempts" not in document


def is_rescuable(document: Mapping[str, Any]) -> bool:
    """Whether a rescuer can take it, as soon as its lease is over: it is under a claim of ours, and dated."""
    if document["status"] != "processing":
        return False
    prefix = f"{document['claimedBy']}:{round(document['lockedAt'].timestamp() * 1000)}:"
    return document["claimToken"].startswith(prefix) and set(CLAIM) <= {*document}


# Once the server answers again. The claim that was in flight is applied then, and given back at once; or its time was
# over before.
OUTCOMES: Final[Mapping[str, Callable[[Mapping[str, Any]], bool]]] = {
    "claimed": lambda document: is_given_back(document) or is_untouched(document),
    "quick": lambda document: document["status"] == "completed",
    "thread": is_rescuable,
    "lingering": is_given_back,
    "enqueuing": is_given_back,
    "saving": is_given_back,
}


CUT_SHORT: Final = ("lingering", "enqueuing", "saving")


async def until(condition: Callable[[], bool]) -> None:
    with trio.move_on_after(100):
        while not condition():
            await trio.sleep(0.01)


@pytest.mark.full
async def test_shutdown_ends_in_time_with_any_call_in_flight_and_loses_no_job(
    own_server: OwnServer, witness: Witness
) -> None:
    began, server_is_frozen, reported = time.monotonic(), threading.Event(), trio.Event()
    leavings = [
        Leaving(what, how, Trouble(jobs, own_server.uri, server_is_frozen))
        for how in BOUNDS
        for what, jobs in TROUBLES.items()
    ]
    try:
        async with trio.open_nursery() as nursery:
            for one in leavings:
                await nursery.start(one.run, reported)
            with frozen(own_server.pid):
                server_is_frozen.set()
                for one in leavings:
                    one.trouble.is_frozen.set()
                await wait_all_tasks_blocked()
                reported.set()
                await until(lambda: all(one.ended_at < math.inf for one in leavings))
            for one in leavings:
                one.trouble.may_end.set()
        await until(lambda: all(one.is_done() for one in leavings))
        assert [(one, one.documents) for one in leavings if not one.is_done()] == []
        claimed = [one.documents["claimed"] for one in leavings if "claimed" in one.trouble.jobs]
        assert all(map(is_given_back, claimed)) or witness.seconds(began, time.monotonic()), "claims arrive in time"
    finally:
        for one in leavings:
            one.trouble.may_end.set()
            one.trouble.client.close()
    took = {one: witness.undisturbed(one.left_at, one.ended_at) for one in leavings}
    assert [(one, took[one]) for one in leavings if took[one] > BOUNDS[one.how] + LOADED_MACHINE] == []
    for one in leavings:
        assert one.report is not None
        unfinished = {job.name for job in one.report.unfinished}
        assert ("thread" in one.trouble.jobs) == ("thread" in unfinished), "what runs on is named"


@pytest.mark.full
def test_process_that_is_signalled_ends_in_time(
    own_server: OwnServer, own_db: Database, tmp_path: Path, witness: Witness
) -> None:
    """The first signal drains, the second cuts."""
    records, began = tmp_path / "records", time.monotonic()
    start = partial(
        worker_process,
        uri=own_server.uri,
        database=own_db.name,
        records=records,
        is_fresh=True,
        heartbeat_interval=1.2,  # Its lease outlasts a machine that stands still for a moment.
        cleanup_timeout=CLEANUP_TIMEOUT,
        poll_interval=0.02,
    )
    jobs = own_db["monque_jobs"]
    ended: dict[str, float] = {}
    with (
        start("drained", shutdown_timeout=SHUTDOWN_TIMEOUT, concurrency_per_name=2) as drained,
        start("cut", shutdown_timeout=600, concurrency_per_name=2) as cut,
        start("successor", concurrency_per_name=4) as successor,
    ):
        for process in (drained, cut):
            process.open()
            for name in ("works", "works", "blocks", "blocks"):
                Monque(own_db).sync.enqueue(name, {"first": 600, "later": 0})
            process.wait_for("start", 4)
        with frozen(own_server.pid):
            cut.process.send_signal(signal.SIGTERM)
            cut.wait_for("draining")
            reported = time.monotonic()
            drained.process.send_signal(signal.SIGTERM)
            cut.process.send_signal(signal.SIGINT)  # A second SIGTERM so soon would count as the same one.
            for process in (cut, drained):  # In the order of their bounds.
                assert process.process.wait(20) == 0
                ended[process.name] = time.monotonic()
        with rescuing(own_server.uri, own_db.name) as rescuer:
            successor.open()
            wait_until(lambda: jobs.count_documents({"status": "completed"}) == 8, "no job is lost")
        successor.end()
    for process, how in ((cut, "cut"), (drained, "drain")):
        left_at, bound = process.records("left")[0].at, BOUNDS[how] + LOADED_MACHINE
        assert witness.undisturbed(reported, left_at) < bound
        assert witness.undisturbed(reported, ended[process.name]) < bound + DRIVERS_EXIT
    # But for those whose leases ran out before, while the machine stood still.
    assert len(rescuer.taken) >= 4 or witness.seconds(began, reported), "the threads that did not end kept their claims"
    runs = spans(read(records), ended)
    assert min(gaps(runs)) > 0
    assert attempts_grow(runs)
