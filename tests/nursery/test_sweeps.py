"""The sweeper: which scopes it takes for abandoned, when it looks, and that it ends whole trees of children."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
import trio
from bson import ObjectId
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.nursery.flows import AT, Flow, live, only, statuses, stored
from tests.support.rescues import LEASE, PASS
from trio_monque import JobFailedError, Monque, RunningJob, Workers, open_job_nursery
from trio_monque.client.monque import context_of
from trio_monque.jobs.nursery_scopes import OF_A_DELETED_PARENT, PROGRAM
from trio_monque.store.driver.types import Collection
from trio_monque.store.jobs import indexes, parents_of_children
from trio_monque.testing import SchedulerOpener, advance, crash, fail_next, quiesce

RESCUED = LEASE + 2 * PASS
NEXT = AT + timedelta(hours=1)
RECURRING = {"repeatInterval": "0 * * * *", "uniqueKey": "k"}


def inserted(jobs: Collection, status: str, name: str = "job", **fields: Any) -> ObjectId:
    return stored(jobs, status, name, **{"attempts": 3, **fields})


@pytest.mark.parametrize(
    ("parent", "epoch"),
    [
        (None, OF_A_DELETED_PARENT),
        *(({"status": status}, 3) for status in ("completed", "failed", "cancelled")),
        *(({"status": status}, None) for status in ("pending", "processing")),
        # The parent has gone on to other work.
        ({"status": "pending", "ownScope": ObjectId()}, 3),
        ({"status": "processing", "ownScope": None}, 3),
        ({"status": "pending", "ownScopeFor": AT, **RECURRING}, None),
        ({"status": "pending", "ownScopeFor": AT, "nextRunAt": NEXT, **RECURRING}, 3),
        # A job that stands for a program runs, and is never pending while the program lives.
        ({"status": "processing", "name": PROGRAM}, None),
        ({"status": "pending", "name": PROGRAM}, 3),
        # The document does not show whether the parent has ended.
        ({"status": "failed", "failCount": "broken"}, None),
    ],
)
def test_scope_is_abandoned_if_no_parent_waits_for_it(
    monque: Monque, jobs: Collection, parent: Mapping[str, Any] | None, epoch: int | None
) -> None:
    """N22, and N10: the pass has the epoch of the last run."""
    context, scope, parent_id = context_of(monque), ObjectId(), ObjectId()
    context.ensure_indexes(indexes.SCOPES)
    if parent is not None:
        inserted(jobs, **{"_id": parent_id, "ownScope": scope, **parent})
    inserted(jobs, "pending", scope=scope, parent=parent_id, block="0", scopeRun=1)
    inserted(jobs, "completed", scope=ObjectId(), parent=parent_id, block="0", scopeRun=1)
    found, after = parents_of_children.abandoned(context.jobs)
    assert after is None
    assert [(one.scope, one.epoch) for one in found] == ([] if epoch is None else [(scope, epoch)])


def test_look_begins_where_the_last_one_has_ended(
    monque: Monque, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for most in ("MOST_SCOPES", "MOST_IN_A_QUERY"):
        monkeypatch.setattr(parents_of_children, most, 2)
    context = context_of(monque)
    context.ensure_indexes(indexes.SCOPES)
    scopes = sorted(ObjectId() for _ in range(5))
    for scope in scopes:
        for _ in range(3):
            inserted(jobs, "processing", scope=scope, parent=ObjectId(), block="0", scopeRun=1)
    seen: list[ObjectId] = []
    after = None
    for _ in range(3):
        found, after = parents_of_children.abandoned(context.jobs, after)
        seen += [one.scope for one in found]
    assert seen == scopes
    assert after is None


async def test_scheduler_ends_children_of_ended_parents_at_its_start(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    """N22: only the index shows it that there are children."""
    context_of(monque).ensure_indexes(indexes.SCOPES)
    await advance(0)
    inserted(jobs, "pending", scope=ObjectId(), parent=ObjectId(), block="0", scopeRun=1)
    async with open_test_scheduler(Flow(partial(trio.sleep, 0)).workers) as scheduler:
        await scheduler.enqueue("child", "any end")
        await advance(60)
        await scheduler.enqueue("child", "another one")
        await advance(60)
        assert live(jobs) == 0


@pytest.mark.full
async def test_child_that_outlived_the_clean_up_of_its_parent_is_ended_at_once(
    open_test_scheduler: SchedulerOpener, jobs: Collection
) -> None:
    """N22: in real time, and long before the next look."""

    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("child", "late", delay=5000)

    flow = Flow(body, timeout=0.5, max_attempts=1)
    async with open_test_scheduler(flow.workers, heartbeat_interval=120, cleanup_timeout=0.2) as scheduler:
        with fail_next(scheduler, AutoReconnect("away"), command="^cancel children$", times=None):
            parent = await scheduler.enqueue("parent")
            with pytest.raises(JobFailedError):
                await scheduler.wait_job(parent)
            assert live(jobs) == 1
        with trio.fail_after(50):
            while live(jobs):
                await trio.sleep(0.05)
    assert only(jobs, "child")["scopeCancel"] == 1


@pytest.mark.parametrize("foreign", [None, "a text", 7])
def test_field_of_another_program_does_not_stop_a_sweep(monque: Monque, jobs: Collection, foreign: Any) -> None:
    context = context_of(monque)
    context.ensure_indexes(indexes.SCOPES)
    inserted(jobs, "pending", scope=foreign)
    scope = ObjectId()
    inserted(jobs, "pending", scope=scope, parent=ObjectId(), block="0", scopeRun=1)
    found, _ = parents_of_children.abandoned(context.jobs)
    assert [one.scope for one in found] == [scope]


async def test_sweeper_looks_less_and_less_often_for_a_child_that_does_not_end(
    open_test_scheduler: SchedulerOpener, monque: Monque, jobs: Collection, autojump_clock: MockClock
) -> None:
    looks, runs = 0, threading.Event()
    abandoned = parents_of_children.abandoned

    def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        assert runs.wait(30)  # A look before the claim would cancel the child, and it would never run.
        return abandoned(*args)

    async def body(job: RunningJob[Any]) -> None:
        runs.set()
        with trio.CancelScope(shield=True):
            await trio.sleep(2000)

    context_of(monque).ensure_indexes(indexes.SCOPES)
    await advance(0)
    workers = Workers()
    workers.register("child", body)
    inserted(jobs, "pending", "child", scope=ObjectId(), parent=ObjectId(), block="0", scopeRun=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parents_of_children, "abandoned", counted)
        async with open_test_scheduler(workers, heartbeat_interval=100) as scheduler:
            await advance(1500)
            assert 15 <= looks <= 40
            await advance(1500)
            assert live(jobs) == 0
            assert scheduler.statistics().running == 0


@pytest.mark.full
@pytest.mark.parametrize("ends", ["cancel", "delete", "bulk cancel", "bulk delete"])
async def test_tree_of_an_ended_parent_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock, ends: str
) -> None:
    """The tree has two levels: the middle jobs are parents, too."""
    workers = Workers()

    @workers.register("leaf", concurrency=50)
    async def leaf(job: RunningJob[Any]) -> None:
        await trio.sleep_forever()

    @workers.register("middle", concurrency=50)
    async def middle(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map(leaf, [None] * 3)

    @workers.register("parent")
    async def parent(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map(middle, [None] * 3)

    async with open_test_scheduler(workers) as scheduler:
        top = await scheduler.enqueue(parent)
        await trio.sleep(10)
        await quiesce()
        assert statuses(jobs, "leaf") == {"processing": 9}
        match ends:
            case "cancel":
                await scheduler.cancel_job(top.id)
            case "delete":
                await scheduler.delete_job(top.id)
            case "bulk delete":
                await scheduler.delete_jobs(name="parent")
            case "bulk cancel":
                # A bulk cancellation cancels only pending jobs: the children go on.
                await scheduler.cancel_jobs(name="parent")
                await scheduler.cancel_job(top.id)
        await advance(2 * LEASE + 2 * PASS)
        assert live(jobs) == 0
    assert statuses(jobs, "leaf") == {"cancelled": 9}


async def test_tree_of_a_parent_that_died_too_often_ends(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    async def body(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("child", [5000, 6000])
            await trio.sleep_forever()  # Not a wait of the nursery: its deaths count.

    flow = Flow(body, max_attempts=1)
    async with open_test_scheduler(flow.only_children, max_rescues=0):
        async with open_test_scheduler(flow.workers) as killed:
            await killed.enqueue("parent")
            await trio.sleep(10)
            await quiesce()
            await crash(killed)
            await advance(2 * RESCUED)
        await advance(LEASE)
        assert only(jobs)["status"] == "failed"
        assert live(jobs) == 0
