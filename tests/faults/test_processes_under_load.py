"""Two thousand jobs, and one of the two processes that run them is killed, or frozen for longer than its lease."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from trio_monque.store.types import Database

from .processes import OwnServer
from .scenario import JOBS, RESCUED_WITHIN, SEED, Scenario

pytestmark = pytest.mark.timeout(120)

ENOUGH: Final = JOBS // 4
LATER: Final = JOBS // 4


@pytest.fixture
def scenario(own_server: OwnServer, own_db: Database, tmp_path: Path) -> Scenario:
    return Scenario(own_server, own_db, tmp_path, SEED)


def enqueue(scenario: Scenario, count: int) -> None:
    """Most of them at once, so that the load is on from the first moment."""
    enqueuer = scenario.enqueuer()
    enqueuer.declare_schedules()
    enqueuer.enqueue_at_once(range(count - 200))
    enqueuer.enqueue(range(count - 200, count))


def test_jobs_of_a_killed_process_complete_and_none_fails_for_it(scenario: Scenario) -> None:
    enqueue(scenario, JOBS)
    with scenario.worker("one") as one, scenario.worker("two") as two:
        one.open()
        two.open()
        scenario.wait_completed(ENOUGH)
        scenario.kill(one)
        scenario.wait_over()
        two.end()
    evidence = scenario.check(rescued_within=RESCUED_WITHIN)
    rescued = [claim for claim in evidence.claims if claim.ended and claim.ended[0] == "rescued"]
    assert rescued
    assert {claim.by for claim in rescued} == {"one"}
    assert {record.process for record in evidence.records if record.what == "start"} == {"one", "two"}


def test_process_that_was_frozen_beyond_its_lease_does_nothing_more_under_its_old_claims(scenario: Scenario) -> None:
    enqueue(scenario, JOBS - LATER)
    with scenario.worker("one") as one, scenario.worker("two") as two:
        one.open()
        two.open()
        scenario.wait_completed(ENOUGH)
        scenario.wait(lambda: scenario.held_by(one) > 10, "it holds some")
        with scenario.frozen(one):
            scenario.wait(lambda: scenario.held_by(one) == 0, "all is rescued")
            # So that it has something to do when it thaws.
            scenario.enqueuer(1).enqueue_at_once(range(JOBS - LATER, JOBS))
        scenario.wait_over()
        one.end()
        two.end()
    evidence = scenario.check(rescued_within=RESCUED_WITHIN)
    (thawed_at,) = (record.at for record in evidence.records if record.what == "thawed")
    assert [one.detail for one in evidence.records if one.what == "cancelled" and one.process == "one"]
    assert [one for one in evidence.records if one.what == "start" and one.process == "one" and one.at > thawed_at]
