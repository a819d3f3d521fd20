"""`trio-monque show` and `jobs` for job nurseries: a parent, its blocks, and who cancelled a child."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import pytest
import trio

from tests.support.store import PAST
from trio_monque import Discard, Monque, RunningJob, Workers, open_job_nursery, open_scheduler
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.claimable import unstarted_reason
from trio_monque.store.driver.types import Collection, Database

from .command_support import Command, command_of


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


class Flow:
    """A parent with a block "place" that has two children, and waits; a child fails once it is let."""

    def __init__(self) -> None:
        self.workers = Workers()
        self.runs, self.is_to_fail = trio.Event(), trio.Event()
        self.workers.register("order", max_attempts=1)(self.order)
        self.workers.register("charge", max_attempts=1)(self.charge)

    async def order(self, job: RunningJob[Any]) -> None:
        await job.step("price", lambda: 7)
        async with open_job_nursery(job, key="place") as nursery:
            await nursery.start("charge", key="first")
            await nursery.start("pack", delay=3600)

    async def charge(self, job: RunningJob[Any]) -> None:
        self.runs.set()
        await self.is_to_fail.wait()
        raise Discard("expired")


def field(out: str, name: str) -> str:
    (line,) = (line for line in out.splitlines() if line.startswith(f"{name} "))
    return line.removeprefix(name).strip()


async def test_parent_shows_its_blocks_and_a_child_its_parent_and_who_cancelled_it(
    command: Command, db: Database, jobs: Collection
) -> None:
    flow, run = Flow(), partial(trio.to_thread.run_sync, command)
    async with open_scheduler(db, flow.workers, instance_id="web-3") as scheduler:
        await scheduler.pause("pack")
        parent = await scheduler.enqueue("order")
        with trio.fail_after(30):
            await flow.runs.wait()
            while jobs.count_documents({"name": "pack"}) == 0:
                await trio.sleep(0.01)  # The handler starts it next.
        charge, pack = jobs.find_one({"name": "charge"}), jobs.find_one({"name": "pack"})
        assert charge is not None
        assert pack is not None

        shown = await run("show", str(parent.id))
        assert "  block 'place': 1 running on web-3, 1 pending (pack, which is paused)" in shown.lines
        await scheduler.resume("pack")
        shown = await run("show", str(parent.id))
        due = f"{pack['nextRunAt']:%Y-%m-%d %H:%M:%S}Z"
        line = rf"  block 'place': 1 running on web-3, 1 pending \(pack, due {due} \(in [^)]+\)\)\n"
        assert re.search(line, shown.out), shown.out
        assert '    "price": 7' in (line for line in shown.out[shown.out.index("steps") :].splitlines())
        as_json = (await run("show", str(parent.id), "--json")).json
        block = {"block": "place", "running": [str(charge["_id"])], "pending": [str(pack["_id"])], "failed_by": []}
        assert (as_json["blocks"], as_json["steps"]) == ([block], {"price": 7})
        shown = await run("show", str(charge["_id"]))
        assert [field(shown.out, one) for one in ("parent", "block", "child key")] == [str(parent.id), "place", "first"]
        listed = await run("jobs", "--parent", str(parent.id), "--json")
        assert sorted(one["name"] for one in listed.json["jobs"]) == ["charge", "pack"]
        assert {one["parent"]["$oid"] for one in listed.json["jobs"]} == {str(parent.id)}
        running = await run("jobs", "--parent", str(parent.id), "--status", "processing", "--json")
        assert [one["name"] for one in running.json["jobs"]] == ["charge"]

        flow.is_to_fail.set()
        with trio.fail_after(30), pytest.raises(Exception, match="expired"):
            await scheduler.wait_job(parent)

    shown = await run("show", str(parent.id))
    assert f"  block 'place': failed by {charge['_id']}" in shown.lines
    shown = await run("show", str(pack["_id"]))
    assert field(shown.out, "cancelled") == f"by the failure of job {charge['_id']} in its block"
    assert (
        f"  all that it has started: trio-monque jobs --parent {parent.id}" in (await run("show", str(parent.id))).lines
    )
    ended = (await run("jobs", "--parent", str(parent.id), "--json")).json
    assert {one["name"]: one["status"] for one in ended["jobs"]} == {"charge": "failed", "pack": "cancelled"}
    failed = (await run("jobs", "--parent", str(parent.id), "--status", "failed", "--json")).json
    assert [one["name"] for one in failed["jobs"]] == ["charge"]


def test_child_that_an_operator_cancels_and_one_whose_parent_is_gone(
    command: Command, db: Database, jobs: Collection
) -> None:
    async def program() -> None:
        monque = Monque(db)
        async with open_job_nursery(monque, fail="keep") as nursery:
            by_caller, _ = await nursery.map("later", [1, 2], delay=3600)
            await monque.cancel_job(by_caller.id)
            nursery.cancel_scope.cancel()

    trio.run(program)
    said = {field(command("show", str(one["_id"])).out, "cancelled") for one in jobs.find({"name": "later"})}
    assert said == {"by a caller", "by run 1 of its parent, or by the end of that run"}
    unstarted = {"startBy": PAST, "failReason": unstarted_reason(PAST)}
    jobs.update_one({"scopeCancel": {"$exists": False}, "scope": {"$exists": True}}, {"$set": unstarted})
    said = {field(command("show", str(one["_id"])).out, "cancelled") for one in jobs.find(unstarted)}
    assert said == {"by its start_by: no run had begun by 2026-01-01 00:00:00Z"}
    jobs.update_many({"scopeCancel": 1}, {"$set": {"scopeCancel": 2**53 - 1}})
    (deleted,) = jobs.find({"scopeCancel": {"$exists": True}})
    assert field(command("show", str(deleted["_id"])).out, "cancelled") == "by the deletion of its parent"


def test_invalid_parents_are_named_as_they_were_spelled(command: Command) -> None:
    ended = command("jobs", "--parent", "nonsense")
    assert (ended.status, "--parent" in ended.err) == (2, True)
    ended = command("jobs", "--parent", "0" * 24, "--held-by", "one")
    assert (ended.status, "takes no other selection" in ended.err) == (2, True)


async def test_children_of_a_parent_that_has_completed_are_listed(command: Command, db: Database) -> None:
    workers = Workers()

    @workers.register("order")
    async def order(job: RunningJob[Any]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.map("part", [1, 2])

    @workers.register("part")
    async def part(_: RunningJob[Any]) -> None: ...

    async with open_scheduler(db, workers) as scheduler:
        parent = await scheduler.enqueue("order")
        with trio.fail_after(30):
            await scheduler.wait_job(parent)
    shown = await trio.to_thread.run_sync(command, "show", str(parent.id))
    assert f"  all that it has started: trio-monque jobs --parent {parent.id}" in shown.lines
    listed = await trio.to_thread.run_sync(command, "jobs", "--parent", str(parent.id), "--json")
    assert [(one["name"], one["status"]) for one in listed.json["jobs"]] == [("part", "completed")] * 2
