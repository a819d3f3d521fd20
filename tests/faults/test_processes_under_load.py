"""Two thousand jobs; of the three processes that run them one is killed, and one frozen for longer than its lease."""

from __future__ import annotations

import pytest

from .scenario import JOBS, RESCUED_WITHIN, Scenario

pytestmark = pytest.mark.timeout(300)

ENOUGH = JOBS // 4
LATER = JOBS // 4


@pytest.mark.full
def test_jobs_of_a_killed_and_of_a_frozen_process_complete_and_nothing_is_done_under_their_old_claims(
    scenario: Scenario,
) -> None:
    enqueuer = scenario.enqueuer()
    enqueuer.declare_schedules()
    # Most of them at once, so that the load is on from the first moment.
    enqueuer.enqueue_at_once(range(JOBS - LATER - 200))
    enqueuer.enqueue(range(JOBS - LATER - 200, JOBS - LATER))
    with scenario.worker("killed") as killed, scenario.worker("frozen") as frozen, scenario.worker("third") as third:
        for worker in (killed, frozen, third):
            worker.open()
        scenario.wait_completed(ENOUGH)
        scenario.kill(killed)
        scenario.wait(lambda: scenario.held_by(frozen) > 10, "it holds some")
        with scenario.frozen(frozen):
            scenario.wait(lambda: scenario.held_by(frozen) == 0, "all is rescued")
            # So that it has something to do when it thaws.
            scenario.enqueuer(1).enqueue_at_once(range(JOBS - LATER, JOBS))
        scenario.wait_over()
        frozen.end()
        third.end()
    evidence = scenario.check(rescued_within=RESCUED_WITHIN)
    rescued = [claim for claim in evidence.claims if claim.ended and claim.ended[0] == "rescued"]
    by = {claim.by for claim in rescued}
    assert by == {"killed", "frozen"} or (evidence.standstills and by > {"killed", "frozen"})
    (thawed_at,) = (record.at for record in evidence.records if record.what == "thawed")
    starts = [record for record in evidence.records if record.what == "start"]
    assert {record.process for record in starts} == {"killed", "frozen", "third"}
    assert [one for one in evidence.records if one.what == "cancelled" and one.process == "frozen"]
    assert [one for one in starts if one.process == "frozen" and one.at > thawed_at]
