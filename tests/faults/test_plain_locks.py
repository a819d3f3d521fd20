"""Programs that know only `lock: {by, until}` work beside ours, are killed, and frozen for longer than their locks."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.support.programs import ROOT, uri_of_database
from tests.support.standstills import Witness
from trio_monque import Claim, run_claims
from trio_monque.claims import dead_letters, readmit
from trio_monque.events import DocumentFailed
from trio_monque.store.driver.types import Database

from .document_scenario import DocumentScenario
from .documents import COLLECTION, document, documents
from .lock_history import LOCK, lock_of
from .processes import OwnServer, frozen
from .records import Recorder
from .scenario import HEARTBEAT, SEED

pytestmark = [pytest.mark.timeout(120), pytest.mark.full]

DOCUMENTS: Final = 1500
TRIALS: Final = 20
LATER: Final = 3.0
"""Seconds of a first back-off: it ends while the plain programs work."""

PLAIN: Final = ("plain one", "plain two")


@pytest.fixture
def scenario(own_server: OwnServer, own_db: Database, tmp_path: Path, witness: Witness) -> DocumentScenario:
    return DocumentScenario(own_server.uri, own_db, tmp_path, SEED, witness)


@contextmanager
def plain_program(scenario: DocumentScenario, name: str) -> Iterator[subprocess.Popen[bytes]]:
    environment = {
        **os.environ,
        "MONQUE_MONGODB_URI": uri_of_database(scenario.uri, scenario.db.name),
        "PYTHONPATH": str(ROOT),
    }
    with subprocess.Popen(
        [sys.executable, "examples/plain_locks.py", name], cwd=ROOT, env=environment, stdout=subprocess.DEVNULL
    ) as program:
        try:
            yield program
        finally:
            program.kill()


async def fail_all(scenario: DocumentScenario, trial: str, **options: Any) -> None:
    """Each document of this trial fails once."""
    recorder, failed, all_failed = Recorder(scenario.records / f"{trial}.records", trial), [0], trio.Event()

    async def fail(claim: Claim[Any]) -> None:
        for what in ("start", "failed", "end"):
            recorder.write(what, str(claim.id), detail=claim.document[LOCK]["token"])
        raise RuntimeError("no such street")

    async def count(_: DocumentFailed) -> None:
        failed[0] += 1
        if failed[0] == TRIALS:
            all_failed.set()

    wanted = {"state": "new", "trial": trial}
    run = partial(run_claims, scenario.db[COLLECTION], wanted, fail, listeners={DocumentFailed: count}, **options)
    async with trio.open_nursery() as nursery:
        claims = await nursery.start(partial(run, instance_id=trial, heartbeat_interval=HEARTBEAT))
        with trio.fail_after(20):
            await all_failed.wait()
        claims.drain()


def trials(scenario: DocumentScenario, number: int, trial: str) -> list[dict[str, Any]]:
    """Documents for `fail_all`, numbered from that on."""
    return [document(scenario.random, number + one, trial=trial) for one in range(TRIALS)]


def results_of(scenario: DocumentScenario, name: str) -> int:
    return scenario.db[COLLECTION].count_documents({"written_by.by": name})


def gets_on(scenario: DocumentScenario, name: str) -> bool:
    return results_of(scenario, name) >= TRIALS


def held_by_plain_programs(scenario: DocumentScenario) -> dict[str, Any]:
    """The document that each of them holds, if any."""
    return {one[LOCK]["by"]: one["_id"] for one in scenario.db[COLLECTION].find({f"{LOCK}.by": {"$in": PLAIN}})}


def are_over(scenario: DocumentScenario) -> bool:
    """Whether what they hold is free by their own locks."""
    held = {f"{LOCK}.by": {"$in": PLAIN}, f"{LOCK}.until": {"$gte": datetime.now(UTC)}}
    return scenario.db[COLLECTION].find_one(held) is None


@contextmanager
def stopped(scenario: DocumentScenario, programs: Sequence[subprocess.Popen[bytes]]) -> Iterator[Sequence[Any]]:
    """From when their locks are over, while each of the plain programs still holds a document.

    A program may have sent the result when it is frozen. What the server has not done until the lock is over, it has
    not got.
    """
    with ExitStack() as until_thawed:
        left = list[Any]()

        def are_stopped() -> bool:
            with ExitStack() as perhaps:
                for program in programs:
                    perhaps.enter_context(frozen(program.pid))
                held = held_by_plain_programs(scenario)

                def is_known() -> bool:
                    return held_by_plain_programs(scenario) != held or are_over(scenario)

                if is_holding := held.keys() == set(PLAIN):
                    scenario.wait(is_known, "their locks are over")
                    is_holding = held_by_plain_programs(scenario) == held
                if is_holding:
                    left.extend(held.values())
                    until_thawed.push(perhaps.pop_all())
            return is_holding

        scenario.wait(are_stopped, "each of the plain programs holds a document")
        yield left


def test_programs_that_know_only_plain_locks_and_ours_take_nothing_that_the_other_holds(
    scenario: DocumentScenario,
) -> None:
    aside, later = (trials(scenario, 10 * DOCUMENTS, "aside"), trials(scenario, 20 * DOCUMENTS, "later"))
    collection = scenario.db[COLLECTION]
    # The plain programs come by these first, as they take what comes first.
    scenario.fill(aside)
    trio.run(partial(fail_all, scenario, "aside", max_attempts=1))
    scenario.fill([document(scenario.random, 30 * DOCUMENTS + number) for number in range(TRIALS)])
    scenario.make_index()
    with ExitStack() as stack:
        start = stack.enter_context
        one, two, last, helper = (start(scenario.worker(name)) for name in ("one", "two", "last", "helper"))
        programs = [start(plain_program(scenario, name)) for name in PLAIN]
        scenario.wait_completed(TRIALS)
        with frozen(programs[0].pid), frozen(programs[1].pid):
            scenario.fill(later)
            scenario.fill(documents(scenario.random, DOCUMENTS))
            # Last: the plain programs must go on within the back-off.
            trio.run(partial(fail_all, scenario, "later", base_retry_interval=LATER))
        for worker in (one, two):
            worker.open()
        for name in (*PLAIN, "one", "two"):
            scenario.wait(partial(gets_on, scenario, name), f"{name} gets on")
        with stopped(scenario, programs) as left:
            programs[0].kill()
            # The earlier holders may be gone: there is no need to wait for live locks of plain programs.
            last.open()
            done = {"_id": {"$in": left}, "state": "done"}
            scenario.wait(lambda: collection.count_documents(done) == len(left), "what they held is done by others")
        scenario.wait_left(one, two, last)
        before = results_of(scenario, PLAIN[1])
        scenario.fill([document(scenario.random, 40 * DOCUMENTS + number) for number in range(TRIALS)])
        scenario.wait(lambda: results_of(scenario, PLAIN[1]) == before + TRIALS, "the thawed one goes on")
        found = trio.run(dead_letters, collection)
        assert {one.id for one in found} == {one["_id"] for one in aside}
        assert {(one.attempts, one.error) for one in found} == {(1, "RuntimeError: no such street")}
        assert trio.run(readmit, collection, *(one["_id"] for one in aside)) == TRIALS
        helper.open()
        scenario.wait_left(helper)
        scenario.wait_completed(len(scenario.originals))
    evidence = scenario.judge(plain=PLAIN)
    left_behind = [hold for hold in evidence.holds if hold.by in PLAIN and evidence.is_rescue(hold)]
    assert {hold.by for hold in left_behind} == set(PLAIN)
    assert {hold.how for hold in left_behind} == {"counted"}
    for hold in left_behind:
        assert hold.ended is not None
        assert lock_of(hold.ended.after)["tries"] == hold.tries + 1
        assert evidence.documents[hold.document]["written_by"]["attempt"] > hold.tries + 1
    # While these wait for their next attempts, the plain programs go on, and take others.
    failures = [hold.ended for hold in evidence.holds if hold.by == "later" and hold.ended is not None]
    waits = [(change.at, lock_of(change.after)["until"]) for change in failures]
    taken = [hold.taken.at for hold in evidence.holds if hold.by in PLAIN]
    assert [at for at in taken if any(since < at < until for since, until in waits)]
