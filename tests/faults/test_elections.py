"""A replica set that loses its primary under load, in four ways, one after the other: nothing is lost or told wrongly.

With MONQUE_TEST_THOROUGH=1 in the environment, also in each way thrice, without the other members, and without
majorities, where jobs are lost. What takes most of the time are the elections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient
from pymongo.write_concern import WriteConcern

from trio_monque import Monque
from trio_monque.store.types import Database

from .checker import violations
from .load import Ledger, enqueuing
from .members import ELECTION_TIMEOUT, ReplicaSet, pause
from .processes import wait_until, worker_process
from .records import read

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("three members")]

JOBS: Final = 2000
SEED: Final = 17
AFTER_ENOUGH: Final = 300
"""Jobs that are acknowledged before each torment begins."""

OPTIONS: Final[dict[str, Any]] = {
    "worker_concurrency": 20,
    "heartbeat_interval": 1.0,
    "operation_timeout": 3.0,
    "poll_interval": 0.05,
    "base_retry_interval": 0.05,
}

UNAIDED: Final = "&retryWrites=false&retryReads=false"

Torment = Callable[[ReplicaSet, str], None]
"""Begins and ends with a set that is whole. Given the name of the database as well."""


def step_down(members: ReplicaSet, _: str) -> None:
    with members.stepped_down() as old:
        members.wait_primary_other_than(old)


def kill(members: ReplicaSet, _: str) -> None:
    with members.killed() as old:
        members.wait_primary_other_than(old)
        pause(1.0)  # Two members work on, and then the third comes back.


def freeze(members: ReplicaSet, _: str) -> None:
    with members.stopped() as old:
        members.wait_primary_other_than(old)
        # What was sent to the old primary lies there until it thaws; its clients go on with the other one.
        pause(2 * ELECTION_TIMEOUT)


def stop_the_others(members: ReplicaSet, _: str) -> None:
    with members.without_majority() as old:
        wait_until(lambda: not members.is_primary(old), "the primary notices that it is alone")
        pause(1.0)


def cut_off(members: ReplicaSet, database: str) -> None:
    with members.cut_off() as old:
        with members.direct(old) as client:
            # It takes writes still, which nobody else will ever see.
            ghosts = client[database].get_collection("ghosts", write_concern=WriteConcern(1))
            ghosts.insert_one({})
        members.wait_primary_other_than(old)
        pause(1.0)
    with members.direct(members.primary()) as client:
        assert client[database]["ghosts"].count_documents({}) == 0, "it was rolled back"


IN_TURN: Final = (step_down, kill, freeze, cut_off)
THOROUGH: Final = pytest.mark.thorough


@pytest.fixture
def three_db(three_members: ReplicaSet) -> Iterator[Database]:
    with MongoClient[dict[str, Any]](three_members.uri, tz_aware=True) as client:
        yield client["monque_elections"]
        client.drop_database("monque_elections")


def is_over(db: Database) -> bool:
    live = {"name": "counts", "status": {"$in": ["pending", "processing"]}}
    return not db["monque_jobs"].count_documents(live, limit=1)


def run_under(
    torments: Sequence[Torment],
    members: ReplicaSet,
    db: Database,
    records: Path,
    *,
    at_most: float = math.inf,
    **client_options: Any,
) -> tuple[Ledger, list[str]]:
    """Two worker processes and six enqueuers while it lasts; what was told, and the promises that were broken.

    For half of them the driver repeats nothing: what it would hide, the library has to find out by itself.
    """
    with (
        MongoClient[dict[str, Any]](members.uri + UNAIDED, tz_aware=True) as unaided,
        worker_process("one", members.uri, db.name, records, **OPTIONS) as one,
        worker_process("two", members.uri + UNAIDED, db.name, records, **OPTIONS) as two,
    ):
        clients = [Monque(of, operation_timeout=3.0, **client_options) for of in (db, unaided[db.name])]
        # The indexes are there before it begins: on three members, that takes its time.
        Monque(db, operation_timeout=60.0).sync.enqueue("elsewhere")
        one.open()
        two.open()
        with enqueuing(clients, SEED, min(JOBS, at_most), at_most) as ledger:
            for torment in torments:
                enough = ledger.done + AFTER_ENOUGH
                wait_until(lambda: ledger.done >= enough, "the load is on", seconds=30)  # noqa: B023  # Called here.
                torment(members, db.name)
        wait_until(lambda: is_over(db), "all jobs have ended", seconds=60)
        one.end()
        two.end()
    found = violations(ledger, read(records), list(db["monque_jobs"].find()))
    return ledger, list(found)


@pytest.mark.parametrize(
    "torments",
    [
        pytest.param(IN_TURN, id="in turn"),
        *(pytest.param([one] * 3, id=one.__name__, marks=THOROUGH) for one in (*IN_TURN, stop_the_others)),
    ],
)
def test_no_promise_is_broken_although_the_primary_changes_under_load(
    torments: Sequence[Torment], three_members: ReplicaSet, three_db: Database, tmp_path: Path
) -> None:
    ledger, broken = run_under(torments, three_members, three_db, tmp_path / "records")
    assert broken == []
    assert ledger.done >= JOBS
    runs = [one.process for one in read(tmp_path / "records") if one.what == "start"]
    assert min(runs.count("one"), runs.count("two")) > JOBS / 10, "both worked"
    assert len(ledger.managed) > JOBS / 100
    assert ledger.keyed


@THOROUGH
def test_the_checker_finds_lost_jobs_where_one_member_may_acknowledge_them(
    three_members: ReplicaSet, three_db: Database, tmp_path: Path
) -> None:
    """The same without majorities: so the test above can fail."""
    _, broken = run_under([cut_off], three_members, three_db, tmp_path / "records", at_most=1000, write_concern=1)
    assert any(one.startswith("acknowledged and lost: number") for one in broken)
