"""Three processes, and the wall clocks of two of them step back and forth by minutes to days, several times a second.

Delayed jobs, retries and schedules, judged by the server's time, as its log of operations has it. It takes
seconds; with MONQUE_TEST_THOROUGH=1 in the environment it takes minutes, in which schedules reach occurrences of their
own, and is run once more where due times go by the wall clock: so the test can fail.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, Final

import pytest

from tests.support.thoroughly import THOROUGH
from trio_monque import Monque
from trio_monque.errors import JobStateError
from trio_monque.store.driver.types import ObjectId

from .history import Claim
from .mixture import NAME
from .promises import Evidence, nothing_is_run_in_vain
from .scenario import Scenario

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

ROUNDS: Final = 30 if THOROUGH else 2
JOBS_A_ROUND: Final = 20
LATEST: Final = 3.0
"""Seconds from a call until the last of its jobs is due."""

SCHEDULES: Final = 3
EVERY_MINUTE: Final = "* * * * *"
MINUTE: Final = 60.0

RETRY_AFTER: Final = 1.0
JITTER: Final = 0.25

# No measurement of the server's time for long, unless a clock steps.
OPTIONS: Final[dict[str, Any]] = {"heartbeat_interval": 10.0, "base_retry_interval": RETRY_AFTER / 2}

INACCURACY: Final = 0.3
"""Half of the longest round trip by which the server's time is measured, and what a look at the clock takes."""

RESOLUTION: Final = 0.005
SOON: Final = 2.0
"""Seconds in which a job starts that is due, on a machine that has much else to do."""


class Producer:
    """Enqueues from a process whose clock is right, beside workers whose clocks are not."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._enqueuer = scenario.enqueuer()
        self._calls = Monque(scenario.db).sync
        self._numbers = count()
        self._schedules: list[ObjectId] = []
        self.jobs: list[ObjectId] = []

    def declare_schedules(self) -> None:
        for number in range(SCHEDULES):
            data = {"n": -1 - number, "steps": 1, "step": 0.005, "fails": 0, "snoozes": False}
            job = self._calls.schedule(EVERY_MINUTE, NAME, data, unique_key=f"schedule {number}")
            self._scenario.recorder.write("acknowledged", str(job.id))
            self._schedules.append(job.id)

    def play(self) -> None:
        """One round, until its jobs have completed."""
        self.enqueue()
        done = {"_id": {"$in": self.jobs}, "status": "completed"}
        stored = self._scenario.db["monque_jobs"]
        self._scenario.wait(lambda: stored.count_documents(done) == len(self.jobs), "the jobs of a round are completed")

    def enqueue(self) -> None:
        """Delayed jobs, and another occurrence of each schedule."""
        for _ in range(JOBS_A_ROUND):
            delay = self._scenario.random.uniform(0.0, LATEST)
            self.jobs += self._enqueuer.enqueue_later([next(self._numbers)], delay)
        self._bring_schedules_forward()

    def _bring_schedules_forward(self) -> None:
        """The test need not wait for a full minute to see an occurrence."""
        for job_id in self._schedules:
            moment = datetime.now(UTC) + timedelta(seconds=self._scenario.random.uniform(0.5, LATEST))
            with suppress(JobStateError):  # It runs.
                self._calls.reschedule_job(job_id, moment)


@contextmanager
def stepped(scenario: Scenario, *, alone: int = 0, **options: Any) -> Iterator[Producer]:
    """Three workers, and the clocks of two of them step; these two play that many rounds alone first."""
    module, producer = "tests.faults.clocked_worker", Producer(scenario)
    with (
        scenario.worker("one", module=module, steps=True, **OPTIONS, **options) as one,
        scenario.worker("two", module=module, steps=True, **OPTIONS, **options) as two,
        scenario.worker("right", module=module, **OPTIONS, **options) as right,
    ):
        producer.declare_schedules()
        for worker in (one, two):
            worker.open()
        # Without it at first: it would win most claims.
        for _ in range(alone):
            producer.play()
        right.open()
        yield producer
        for worker in (one, two, right):
            worker.end()


class Outcome:
    """What there is to judge: by how many seconds each claim came late, by the server's time."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._claims = evidence.claims
        self.late = [(claim.taken.at - _due(claim)).total_seconds() for claim in self._claims]

    def broken(self) -> Iterator[str]:
        stood_still = self._evidence.stood_still(-math.inf, math.inf)
        for claim, seconds in zip(self._claims, self.late, strict=True):
            if not -INACCURACY - stood_still < seconds < SOON + stood_still:
                yield f"{seconds} s late: {claim}"
        for claim in self._claims:
            if claim.ended is not None and not self._is_next_moment_right(claim, stood_still):
                yield f"due at a wrong moment after its end: {claim}"
        for (job, slot), times in self.slots.items():
            if times > 1:
                yield f"{times} completions of one slot, {slot}, of job {job}"

    @property
    def slots(self) -> Counter[tuple[str, datetime]]:
        """How often each occurrence of each schedule was completed."""
        return Counter(
            (claim.job, _due(claim))
            for claim in self._claims
            if "repeatInterval" in (claim.taken.before or {}) and claim.ended and claim.ended[0] == "completed"
        )

    def _is_next_moment_right(self, claim: Claim, stood_still: float) -> bool:
        assert claim.ended is not None
        how, change = claim.ended
        after = change.after or {}
        due: datetime = after.get("nextRunAt", change.at)
        until = (due - change.at).total_seconds()
        if how == "completed" and "repeatInterval" in after:
            is_full = due == due.replace(second=0, microsecond=0)
            return is_full and -INACCURACY - stood_still < until < MINUTE + INACCURACY
        if how == "failed":
            slack = RETRY_AFTER * JITTER + INACCURACY
            return RETRY_AFTER - slack - stood_still < until < RETRY_AFTER + slack
        return True


def _due(claim: Claim) -> datetime:
    moment = (claim.taken.before or {})["nextRunAt"]
    assert isinstance(moment, datetime)
    return moment


def test_every_job_starts_when_the_server_says_although_two_of_three_wall_clocks_step(scenario: Scenario) -> None:
    with stepped(scenario, alone=ROUNDS // 2) as producer:
        for _ in range(ROUNDS - ROUNDS // 2):
            producer.play()
    evidence = scenario.check(nothing_is_run_in_vain)
    outcome = Outcome(evidence)
    assert list(outcome.broken()) == []
    assert statistics.median(outcome.late) > -RESOLUTION

    # Without these the test would prove nothing.
    by = Counter(claim.by for claim in evidence.claims)
    assert by["one"] + by["two"] >= len(producer.jobs) / 3
    assert len(outcome.slots) >= SCHEDULES
    assert any(claim.ended and claim.ended[0] == "failed" for claim in evidence.claims)


@pytest.mark.thorough
def test_the_checker_finds_wrong_moments_where_due_times_go_by_the_wall_clock(scenario: Scenario) -> None:
    with stepped(scenario, mutation="due times") as producer:
        producer.enqueue()
        scenario.wait(lambda: list(Outcome(scenario.evidence()).broken()), "the checker finds a wrong moment")
