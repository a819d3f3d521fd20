"""Jobs under load, and the server's time moves by a minute both ways, at another moment for each process.

With MONQUE_TEST_THOROUGH=1 in the environment, also where dates decide who is dead: so the test can fail.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from .clocked_worker import clock_records, move_server_time
from .mixture import NAME, Enqueuer
from .processes import WorkerProcess
from .promises import Evidence, broken, nothing_is_run_in_vain, renewed_claims_are_kept
from .records import Record, Span, read
from .scenario import JOBS, Scenario

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

MINUTE: Final = 60.0
HOUR: Final = 3600.0

# The last one brings what was put off by a clock that was ahead.
MOVES: Final = (MINUTE, -MINUTE, 0.0, MINUTE + 5)

MOVED: Final = ("one", "two")
STEADY: Final = "steady"
"""The test does not move its time. It is right, although its machine's clock is wrong by an hour."""

LONG: Final = 8
BEATS_OF_A_LEASE: Final = 4
"""And of the look that comes after it."""

# Half of the longest round trip by which the server's time is measured, and what a look at the clock takes.
INACCURACY: Final = 0.3


class Clocks:
    """Processes whose time is moved, under a load that does not end before the moves do."""

    def __init__(self, scenario: Scenario, workers: Mapping[str, WorkerProcess]) -> None:
        self._scenario = scenario
        self._workers = workers
        self._random = Random(scenario.seed)
        self._enqueuer: Enqueuer = scenario.enqueuer()
        self._numbers = iter(range(JOBS))
        self._long_numbers = iter(range(JOBS, 10 * JOBS))
        self._moves = 0

    def start(self) -> None:
        self._enqueuer.declare_schedules()
        self._enqueuer.enqueue_at_once(list(islice(self._numbers, JOBS // 5)))
        for worker in self._workers.values():
            worker.open()

    def move(self, seconds: float) -> None:
        """For one after the other, each in the middle of a run. Returns a lease later, and then lets the runs end."""
        self._moves += 1
        over = self._scenario.folder / f"move {self._moves} is over"
        long: set[str] = set()
        for name in self._random.sample(MOVED, len(MOVED)):
            self._wait_for_a_long_run(name, long, over)
            move_server_time(self._records_of(name), seconds)
            self._enqueue(JOBS // 10)
            if self._random.random() < 0.5:
                self._wait_measured(name, seconds, 1)
        for name in MOVED:
            self._wait_measured(name, seconds, BEATS_OF_A_LEASE)
        over.touch()

    def run_by_the_steady_one(self, count: int) -> Sequence[str]:
        """Jobs that are due in a moment by the server's time, and by that of the others not for a minute."""
        jobs = self._enqueuer.enqueue_later(list(islice(self._numbers, count)), delay=0.5)
        done = {"_id": {"$in": jobs}, "status": "completed"}
        stored = self._scenario.db["monque_jobs"]
        self._scenario.wait(lambda: stored.count_documents(done) == count, "they are run when they are due")
        return [str(job) for job in jobs]

    def enqueue_the_rest(self) -> None:
        self._enqueue(JOBS)

    def _enqueue(self, count: int) -> None:
        numbers = list(islice(self._numbers, count))
        if numbers:
            self._enqueuer.enqueue(range(numbers[0], numbers[-1] + 1))

    def _wait_for_a_long_run(self, name: str, long: set[str], until: Path) -> None:
        """Enqueue such jobs, and add them to `long`, until the process runs one of them."""
        stored = self._scenario.db["monque_jobs"]
        # Some may have been put off by a clock that was ahead.
        due = datetime.now(UTC) - timedelta(minutes=30)
        waiting = {"name": NAME, "data.until": str(until), "status": "pending", "nextRunAt": {"$lt": due}}

        def runs() -> bool:
            begun = {one.job for one in self._workers[name].records("start")}
            if begun & long:
                return True
            if not stored.count_documents(waiting):
                long.update(map(str, self._enqueuer.enqueue_long(list(islice(self._long_numbers, LONG)), until)))
            return False

        self._scenario.wait(runs, f"{name} runs what takes long")

    def _wait_measured(self, name: str, moved: float, count: int) -> None:
        def measured() -> bool:
            latest = [one.detail for one in read(clock_records(self._records_of(name)))][-count:]
            return latest == [str(moved)] * count

        self._scenario.wait(measured, f"{name} has the new time")

    def _records_of(self, name: str) -> Path:
        return self._scenario.records / f"{name}.records"


@contextmanager
def clocked(scenario: Scenario, **options: Any) -> Iterator[Clocks]:
    off = scenario.random.choice([-HOUR, HOUR])
    module = "tests.faults.clocked_worker"
    with (
        scenario.worker("one", module=module, **options) as one,
        scenario.worker("two", module=module, **options) as two,
        scenario.worker(STEADY, module=module, machine_off=off, **options) as steady,
    ):
        yield Clocks(scenario, {"one": one, "two": two, STEADY: steady})
        for worker in (one, two, steady):
            worker.end()


def moments_of_moves(evidence: Evidence) -> Iterator[Record]:
    """When each process had a new time first."""
    for name in MOVED:
        before = str(0.0)
        for one in evidence.records:
            if one.what == "measured" and one.process == name and one.detail != before:
                before = one.detail
                yield one


def is_across(run: Span, move: Record) -> bool:
    return run.process == move.process and run.start < move.at < run.end


def test_no_live_run_is_rescued_although_time_moves_by_a_minute_both_ways(scenario: Scenario) -> None:
    with clocked(scenario) as clocks:
        clocks.start()
        by_steady: Sequence[str] = ()
        for seconds in MOVES:
            clocks.move(seconds)
            if seconds < 0:
                by_steady = clocks.run_by_the_steady_one(JOBS // 20)
        clocks.enqueue_the_rest()
        scenario.wait_over()
    evidence = scenario.check(nothing_is_run_in_vain, renewed_claims_are_kept)

    # On a machine that has no time for a process, this has not renewed its claims: the rule above knows it.
    rescued = [claim for claim in evidence.claims if claim.ended and claim.ended[0] == "rescued"]
    assert sum(int(one.detail) for one in evidence.records if one.what == "reported recovered") == len(rescued)
    assert len([one for one in evidence.records if one.what == "acknowledged"]) >= JOBS

    moves = list(moments_of_moves(evidence))
    assert [float(one.detail) for one in moves] == [*MOVES, *MOVES]
    across = {move.detail for move in moves for run in evidence.runs if is_across(run, move)}
    # A standstill of the machine that cuts an interval short, or delays an answer, is not the clocks' work.
    stood_still = evidence.stood_still(evidence.records[0].at, evidence.records[-1].at)
    assert across == {str(seconds) for seconds in MOVES} or stood_still, "runs last across the moves"

    steady = [claim for claim in evidence.claims if claim.by == STEADY]
    early = [(claim.taken.before or {})["nextRunAt"] - claim.taken.at for claim in steady]
    assert max(early).total_seconds() < INACCURACY + stood_still, "due times are met"
    assert {claim.by for claim in evidence.claims if claim.job in by_steady} == {STEADY}


@pytest.mark.thorough
@pytest.mark.parametrize("mutation", ["rescues", "beats"])
def test_the_checker_finds_live_runs_rescued_where_clocks_decide_who_is_dead(scenario: Scenario, mutation: str) -> None:
    with clocked(scenario, mutation=mutation) as clocks:
        clocks.start()
        clocks.move(MINUTE)
        clocks.move(-MINUTE)
    lines = broken(scenario.evidence(), renewed_claims_are_kept)
    assert [one for one in lines if one.startswith("rescued ") and "after a renewal" in one]
