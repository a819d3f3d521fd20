"""A replica set loses its primary under load, in four ways in turn: nothing is lost or reported wrongly.

With MONQUE_TEST_THOROUGH=1 in the environment, also in each way thrice, without the other members, and without
majorities, where jobs are lost. What takes most of the time are the elections.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.support.standstills import Witness
from tests.support.waiting import wait_until
from trio_monque import Monque
from trio_monque.store.driver.types import Database

from .members import ReplicaSet
from .mixture import MANY, in_threads
from .promises import broken
from .scenario import JOBS, SEED, Scenario
from .torments import IN_TURN, UNAIDED, Torment, cut_off, stop_the_others

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

ENQUEUERS: Final = 6
AFTER_ENOUGH: Final = 100
"""Jobs that are acknowledged before each torment begins."""
MEANWHILE: Final = 100
"""And in the course of it, where there is a primary."""

TIMEOUT: Final = {"operation_timeout": 3.0}
OPTIONS: Final[dict[str, Any]] = {**TIMEOUT, "heartbeat_interval": 0.8, "max_rescues": 20}

THOROUGH: Final = pytest.mark.thorough


@pytest.fixture
def scenario(three_members: ReplicaSet, three_db: Database, tmp_path: Path, witness: Witness) -> Scenario:
    return Scenario(three_members.uri, three_db, tmp_path, SEED, witness)


@contextmanager
def enqueuing(scenario: Scenario, at_least: int, **client_options: Any) -> Iterator[Callable[[], int]]:
    """Callers that enqueue as long as the block lasts, and until `at_least` jobs are acknowledged: gives how many.

    For half of them the driver repeats nothing: what it would hide, the library has to find out by itself.
    """
    ended = threading.Event()
    with MongoClient[dict[str, Any]](scenario.uri + UNAIDED, tz_aware=True) as unaided:
        databases = (scenario.db, unaided[scenario.db.name])
        options = {**TIMEOUT, **client_options}
        # A run that saves something, and meets a fault there, has failed.
        enqueuers = [
            scenario.enqueuer(number, databases[number % 2], options, max_attempts=100) for number in range(ENQUEUERS)
        ]

        def acknowledged() -> int:
            return sum(one.acknowledged for one in enqueuers)

        def is_enough() -> bool:
            # Both: how many of the few that are managed meet an outage is chance.
            return acknowledged() >= at_least and sum(one.managed for one in enqueuers) >= at_least / 100

        def work(number: int) -> None:
            for first in itertools.count(number * MANY, ENQUEUERS * MANY):
                if ended.is_set() and is_enough():
                    return
                enqueuers[number].enqueue(range(first, first + MANY))

        with in_threads(work, ENQUEUERS):
            try:
                yield acknowledged
            finally:
                ended.set()


def run_under(torments: Sequence[Torment], members: ReplicaSet, scenario: Scenario, **client_options: Any) -> None:
    """Two worker processes and six enqueuers while they last."""
    with (
        scenario.worker("one", **OPTIONS) as one,
        scenario.worker("two", scenario.uri + UNAIDED, **OPTIONS) as two,
    ):
        # The indexes are there before it begins: on three members, that takes its time.
        Monque(scenario.db, operation_timeout=60.0).sync.enqueue("elsewhere")
        scenario.enqueuer(ENQUEUERS, max_attempts=100).declare_schedules()
        one.open()
        two.open()
        at_least = JOBS if not client_options else 0
        with enqueuing(scenario, at_least, **client_options) as acknowledged:

            def goes_on(by: int = MEANWHILE) -> None:
                enough = acknowledged() + by
                wait_until(lambda: acknowledged() >= enough, "the load goes on", seconds=90)

            for torment in torments:
                goes_on(AFTER_ENOUGH)
                torment(members, scenario.db.name, goes_on)
        scenario.wait_over()
        one.end()
        two.end()


@pytest.mark.parametrize(
    "torments",
    [
        pytest.param(IN_TURN, id="in turn"),
        *(pytest.param([one] * 3, id=one.__name__, marks=THOROUGH) for one in (*IN_TURN, stop_the_others)),
    ],
)
def test_no_promise_is_broken_although_the_primary_changes_under_load(
    torments: Sequence[Torment], three_members: ReplicaSet, scenario: Scenario
) -> None:
    run_under(torments, three_members, scenario)
    evidence = scenario.check()
    reported = [one.what for one in evidence.records]
    assert reported.count("acknowledged") >= JOBS
    assert reported.count("managed") >= JOBS / 100
    starts = [one.process for one in evidence.records if one.what == "start"]
    assert min(starts.count("one"), starts.count("two")) > JOBS / 10, "both worked"


@THOROUGH
def test_the_checker_finds_lost_jobs_where_one_member_may_acknowledge_them(
    three_members: ReplicaSet, scenario: Scenario
) -> None:
    """The same without majorities: so the test above can fail."""
    run_under([cut_off], three_members, scenario, write_concern=1)
    assert any(one.startswith("acknowledged and lost: job") for one in broken(scenario.evidence()))
