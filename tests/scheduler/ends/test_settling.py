"""Ends of runs that are decided again: by the source itself, with settlements that a test made."""

from __future__ import annotations

import pytest
from bson import ObjectId
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.internals import sources_of
from tests.support.store import claim, handle
from trio_monque.errors import MonqueConnectionError
from trio_monque.exponential_backoff import Backoff
from trio_monque.jobs.job_parts import NurseryScope
from trio_monque.jobs.nursery_scopes import with_scope
from trio_monque.jobs.outcomes import Succeeded
from trio_monque.jobs.retries_and_next_occurrences import RetryPolicy
from trio_monque.scheduler.settlement import JobSettlement
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs.settling import Fate
from trio_monque.testing import SchedulerOpener, fail_next

POLICY = RetryPolicy(max_attempts=3, backoff=Backoff(base=1, cap=10, jitter=0))


async def test_outage_in_the_middle_of_a_decision_repeats_none_of_it(
    open_test_scheduler: SchedulerOpener, db: Database, jobs: Collection, autojump_clock: MockClock
) -> None:
    """Of two ends that must be decided again, the outage hits the second. The refusal of the first counts once."""
    changed, refused = claim(handle(db), 2)
    jobs.update_one({"_id": changed.id}, {"$set": {"repeatInterval": "0 * * * *"}})
    db.command("collMod", jobs.name, validator={"result": {"$ne": "forbidden"}})
    # The last one is decided first.
    ends = [
        JobSettlement(changed, Succeeded(), POLICY, 1.0),
        JobSettlement(refused, Succeeded("forbidden"), POLICY, 1.0),
    ]
    async with open_test_scheduler(recover_stale_jobs=False) as scheduler:
        settlements = sources_of(scheduler).settlements
        batch = await settlements.prepare(ends)
        with fail_next(scheduler, AutoReconnect("gone"), command="^read the schedule"):
            with pytest.raises(MonqueConnectionError):
                await settlements.settle(batch)
        db.command("collMod", jobs.name, validator={})
        assert await settlements.settle(batch) == [True, True]
    assert [one.refusals for one in ends] == [0, 1]
    assert [one.fate for one in ends] == [Fate.WRITTEN] * 2


@pytest.mark.parametrize("parent_is_first", [True, False])
async def test_parent_of_a_job_nursery_shares_no_statement_with_other_completed_jobs(
    open_test_scheduler: SchedulerOpener,
    db: Database,
    jobs: Collection,
    autojump_clock: MockClock,
    parent_is_first: bool,
) -> None:
    """The first job of a shared statement decides what is removed: a scope would stay, or others would name it."""
    parent, plain = claim(handle(db), 2)
    parent = with_scope(parent, NurseryScope(id=ObjectId(), since_attempt=1))
    jobs.update_one({"_id": parent.id}, {"$set": {"ownScope": ObjectId(), "scopeTry": 1}})
    ends = [JobSettlement(job, Succeeded(), POLICY, 1.0) for job in (parent, plain)]
    async with open_test_scheduler(recover_stale_jobs=False) as scheduler:
        settlements = sources_of(scheduler).settlements
        batch = await settlements.prepare(ends if parent_is_first else ends[::-1])
        assert await settlements.settle(batch) == [True, True]
    assert jobs.count_documents({"status": "completed", "ownScope": {"$exists": False}}) == 2
    assert [one.transition is not None and "nursery" in one.transition.cleared for one in ends] == [True, False]
