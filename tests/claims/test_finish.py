"""`claim.finish`: what it may be given, what the server refuses, and what of it is written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from bson import Int64, ObjectId
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, finish, listened, lock_of, states
from tests.support.internals import interferences_of_claims, run_of, sources_of_claim
from tests.support.locked import recorded
from tests.support.thoroughly import one_in
from trio_monque import Monque, open_claims, run_claims
from trio_monque.claims.locked_document import Cycle
from trio_monque.engine import pauses
from trio_monque.errors import InvalidOptionError, InvalidPayloadError, InvalidUpdateError, MonqueConnectionError
from trio_monque.events import DocumentFailed
from trio_monque.store.driver.types import Collection, Database

STRANGE: list[Any] = [
    {"state": "done"},
    {"$set": {"a": 1}, "b": 2},
    "done",
    5,
    ["$set"],
    [{"state": "done"}],
    {"$unset": "state"},
    {"$unset": ["state"]},
    {"$set": 5},
    {"$set": None},
    {"$push": [1]},
    {1: {"a": 2}},
]
AT_THE_LOCK: list[Any] = [
    {"$set": {"lock": None}},
    {"$set": {"lock.by": "me"}},
    {"$unset": {"lock": ""}},
    {"$inc": {"lock.tries": 1}},
    {"$rename": {"n": "lock"}},
    {"$rename": {"lock": "n"}},
    {"$set": {"a": 1}, "$currentDate": {"lock.until": True}},
    [{"$set": {"lock": 1}}],
    [{"$set": {"a": 1}}, {"$unset": "lock"}],
    [{"$unset": ["a", "lock"]}],
    [{"$project": {"lock": 1}}],
    [{"$addFields": {"lock.by": 1}}],
]


@pytest.mark.full
async def test_handler_that_goes_on_beyond_its_lease_may_enqueue_jobs(
    db: Database, jobs: Collection, things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        await claim.finish(DONE)
        await trio.sleep(500)  # Some leases.
        await Monque(db).enqueue("mail", {"n": claim.id})

    report = await run_claims(things, OPEN, handler, wait=False)
    assert report.finished == 1
    assert jobs.count_documents({"name": "mail"}) == 1


@pytest.mark.full
@pytest.mark.parametrize("update", one_in(2, STRANGE + AT_THE_LOCK), ids=str)
async def test_finish_refuses_an_invalid_update_at_once_and_keeps_the_claim(
    things: Collection, autojump_clock: MockClock, update: Any
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        before = things.find_one()
        with pytest.raises(InvalidOptionError) as caught:
            await claim.finish(update)
        if update in AT_THE_LOCK:
            assert "'lock'" in str(caught.value)
        assert things.find_one() == before
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert (report.finished, report.crashed) == (1, ())
    assert states(things) == ["done"]


@pytest.mark.parametrize("value", [object(), {1, 2}, 1 << 80, "\ud800", {"a": {1: 2}}, "x" * (17 << 20)])
async def test_what_cannot_be_encoded_is_refused_at_once_and_the_claim_is_held(
    things: Collection, autojump_clock: MockClock, value: object
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        for update in ({"$set": {"a": value}}, [{"$set": {"a": value}}]):
            with pytest.raises(InvalidPayloadError):
                await claim.finish(update)
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert (report.finished, report.crashed) == (1, ())


async def test_update_is_what_it_was_at_the_call(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    update: Any = {"$set": {"state": "done", "result": {"a": [1]}}}

    async def handler(claim: Any) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim.finish, update)
            await trio.lowlevel.checkpoint()
            while not run_of(claim).is_settling_early:
                await trio.lowlevel.checkpoint()
            update["$set"]["result"]["a"].append(2)
            update["$set"]["lock"] = 1

    await run_claims(things, OPEN, handler, wait=False)
    assert (things.find_one() or {})["result"] == {"a": [1]}


async def test_pipelines_operators_and_nothing(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 5)
    updates: list[Any] = [
        {"$set": {"state": "done", "z": 1}, "$unset": {"n": ""}, "$push": {"log": 1}},
        [{"$set": {"state": "done"}}, {"$unset": ["n"]}, {"$set": {"twice": {"$concat": ["$state", "$state"]}}}],
        [{"$replaceWith": {"_id": "$_id", "state": "done"}}],
        ({"$set": {"state": "done"}},),
        {"$set": {"state": "done", "lockx": 1, "a.lock": 2}},
    ]

    async def handler(claim: Any) -> None:
        await claim.finish(updates[claim.id])

    report = await run_claims(things, OPEN, handler, wait=False)
    assert report.finished == 5
    assert list(things.find({}, sort=[("_id", 1)])) == [
        {"_id": 0, "state": "done", "z": 1, "log": [1]},
        {"_id": 1, "state": "done", "twice": "donedone"},
        {"_id": 2, "state": "done"},
        {"_id": 3, "state": "done", "n": {"x": [3]}},
        {"_id": 4, "state": "done", "n": {"x": [4]}, "lockx": 1, "a": {"lock": 2}},
    ]


@pytest.mark.parametrize("update", [None, {}, []])
async def test_finish_without_a_result(things: Collection, autojump_clock: MockClock, update: Any) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        things.update_one({"_id": 0}, DONE)
        await claim.finish(update)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert report.finished == 1
    assert things.find_one() == {"_id": 0, "state": "done", "n": {"x": [0]}}


REFUSED: list[Any] = [
    {"$inc": {"n": 1}},
    {"$set": {"unique": "taken"}},
    {"$set": {"_id": 99}},
    {"$nonsense": {"a": 1}},
    {"$set": {"a": 1}, "$inc": {"a": 1}},
    {"$push": {"state": 1}},
    {"$set": {"a.$": 1}},
    [{"$set": {"a": {"$divide": [1, 0]}}}],
    [{"$nonsense": {"a": 1}}],
    [{"$set": {"a": {"$nonsense": 1}}}],
    [{"$match": {"a": 1}}],
    [{"$set": 5}],
    [{"$set": {"a": 1}, "$unset": "b"}],
    {"$set": {"large": "x" * 16_300_000}},
]


@pytest.mark.full
@pytest.mark.parametrize("update", one_in(4, REFUSED), ids=lambda update: str(update)[:40])
async def test_update_that_the_server_refuses_leaves_the_claim_held_and_neighbours_settled(
    things: Collection, autojump_clock: MockClock, update: Any
) -> None:
    fill(things, 6, ballast="y" * 900_000 if "large" in str(update) else "")
    things.create_index("unique", unique=True, partialFilterExpression={"unique": {"$exists": True}})
    things.insert_one({"_id": "other", "unique": "taken", "state": "old"})
    held: list[Any] = []
    reported: list[Any] = []
    all_here = trio.Event()
    here = 0

    async def handler(claim: Any) -> None:
        nonlocal here
        here += 1
        if here == 6:
            all_here.set()
        await all_here.wait()
        if claim.id % 2:
            await claim.finish(DONE)
            return
        with pytest.raises(InvalidUpdateError, match=str(claim.id)):
            await claim.finish(update)
        held.append(lock_of(things, claim.id)["by"])
        await trio.sleep(70)  # It is renewed as before.
        await claim.finish({"$set": {"state": "mended"}})

    report = await run_claims(
        things, OPEN, handler, wait=False, concurrency=6, instance_id="us", listeners=listened(reported)
    )
    assert held == ["us"] * 3
    assert states(things)[:6] == ["mended", "done"] * 3
    assert (report.finished, report.failed, report.lost, reported) == (6, 0, 0, [])


@pytest.mark.parametrize("is_sure", [True, False], ids=["within the lease", "after the lease"])
async def test_results_beside_a_refused_one_of_their_statement_count_as_written_within_the_lease_only(
    things: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_sure: bool
) -> None:
    """The server does not report which of them it wrote before it stopped, and their locks are gone either way."""
    things.insert_many([{"_id": number, "state": "new", "n": "text" if number == 1 else 1} for number in range(3)])
    monkeypatch.setattr(Cycle, "is_sure", lambda *_: is_sure)
    all_here, here = trio.Event(), []
    outcomes: dict[Any, str] = {}

    async def handler(claim: Any) -> None:
        here.append(claim.id)
        if len(here) == 3:
            all_here.set()
        await all_here.wait()
        try:
            await claim.finish({"$set": {"state": "done"}, "$inc": {"n": 1}})
            outcomes[claim.id] = "written"
        except InvalidUpdateError:
            outcomes[claim.id] = "refused"
            await claim.finish(DONE)
        except MonqueConnectionError as error:
            outcomes[claim.id] = "unknown" if error.unknown_outcome else "failed"

    await run_claims(things, OPEN, handler, wait=False, concurrency=3)
    neighbour = "written" if is_sure else "unknown"
    assert outcomes == {0: neighbour, 1: "refused", 2: neighbour}
    assert states(things) == ["done"] * 3


async def test_refused_update_that_is_not_caught_is_a_failed_try(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    reported: list[Any] = []

    async def handler(claim: Any) -> None:
        await claim.finish({"$inc": {"n": 1}} if claim.attempt == 1 else DONE)

    report = await run_claims(things, OPEN, handler, wait=False, listeners=listened(reported))
    assert [(type(one), type(one.error)) for one in reported] == [(DocumentFailed, InvalidUpdateError)]
    assert (report.finished, report.failed) == (1, 1)


async def test_refused_update_of_a_block_is_a_failed_try(things: Collection, autojump_clock: MockClock) -> None:
    fill(things, 1)
    async with open_claims(things, OPEN, wait=False) as claims:
        async for claim in claims:
            with pytest.raises(InvalidUpdateError) if claim.attempt == 1 else trio.CancelScope():
                async with claim:
                    await claim.finish({"$inc": {"n": 1}} if claim.attempt == 1 else DONE)
    assert claims.report is not None
    assert (claims.report.finished, claims.report.failed) == (1, 1)


async def test_refused_update_of_a_cancelled_caller_counts_as_failed(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    reported: list[Any] = []

    async def handler(claim: Any) -> None:
        if claim.attempt > 1:
            await claim.finish(DONE)
            return
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(claim.finish, {"$inc": {"n": 1}})
                while not run_of(claim).is_settling_early:
                    await trio.lowlevel.checkpoint()
                scope.cancel()

    report = await run_claims(things, OPEN, handler, wait=False, listeners=listened(reported))
    assert (report.finished, report.failed) == (1, 1)
    assert [type(one) for one in reported] == [DocumentFailed]


class Outage:
    """No end of a claim is answered, until the outage is over."""

    def __init__(self, claim: Any) -> None:
        self.is_over = False
        for interference in interferences_of_claims(sources_of_claim(claim)):
            interference.append(self)

    def takes(self, purpose: str) -> bool:
        return purpose == "settle documents" and not self.is_over

    def inject(self, call: Callable[[], object]) -> Any:
        raise AutoReconnect("nothing is answered")


async def is_answered(claim: Any) -> None:
    while run_of(claim).is_settling_early:
        await trio.sleep(1)


BAD: Any = {"$inc": {"n": 1}}


@pytest.fixture
def virtual_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses after faults freeze virtual time for some real seconds: in these tests clean-ups run out meanwhile."""
    monkeypatch.setattr(pauses, "REAL_TIME_BUDGET", 0.0)


@pytest.mark.usefixtures("virtual_pauses")
@pytest.mark.parametrize("goes_on", [False, True], ids=["handler ended before", "handler goes on"])
@pytest.mark.parametrize("max_attempts", [2, 1], ids=["retried", "dead letter"])
async def test_end_that_is_refused_after_its_caller_gave_up_waiting_is_a_failed_attempt(
    things: Collection, autojump_clock: MockClock, max_attempts: int, goes_on: bool
) -> None:
    """Otherwise the handler would count as successful: its result would be lost, and no error would show that."""
    fill(things, 1)
    reported: list[Any] = []

    async with trio.open_nursery() as nursery:

        async def end(outage: Outage) -> None:
            await trio.sleep(10)
            outage.is_over = True

        async def handler(claim: Any) -> None:
            if claim.attempt > 1:
                await claim.finish(DONE)
                return
            outage = Outage(claim)
            with trio.move_on_after(1) as scope:
                await claim.finish(BAD)
            assert scope.cancelled_caught
            assert run_of(claim).is_settling_early
            nursery.start_soon(end, outage)
            if goes_on:
                await is_answered(claim)

        report = await run_claims(
            things,
            OPEN,
            handler,
            wait=False,
            cleanup_timeout=1.0,
            max_attempts=max_attempts,
            listeners=listened(reported),
        )
    (failed,) = [one for one in reported if isinstance(one, DocumentFailed)]
    assert isinstance(failed.error, InvalidUpdateError)
    assert failed.will_retry is (max_attempts > 1)
    assert report.failed == 1
    assert (report.finished, report.dead_lettered) == ((1, 0) if max_attempts > 1 else (0, 1))
    assert states(things) == (["done"] if max_attempts > 1 else ["new"])


@pytest.mark.usefixtures("virtual_pauses")
async def test_end_of_a_block_that_is_refused_after_it_was_cancelled_is_a_failed_attempt(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    reported: list[Any] = []
    async with open_claims(things, OPEN, wait=False, cleanup_timeout=1.0, listeners=listened(reported)) as claims:
        async for claim in claims:
            if claim.attempt > 1:
                async with claim:
                    await claim.finish(DONE)
                continue
            outage = Outage(claim)
            with trio.move_on_after(1) as scope:
                async with claim:
                    await claim.finish(BAD)
            assert scope.cancelled_caught
            assert run_of(claim).is_settling_early
            outage.is_over = True
    assert [(type(one), type(one.error)) for one in reported] == [(DocumentFailed, InvalidUpdateError)]
    assert claims.report is not None
    assert (claims.report.finished, claims.report.failed) == (1, 1)


@pytest.mark.usefixtures("virtual_pauses")
async def test_release_that_is_refused_after_its_caller_gave_up_waiting_is_a_failed_attempt(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    reported: list[Any] = []

    async def handler(claim: Any) -> None:
        if claim.attempt > 1:
            await claim.finish(DONE)
            return
        # It refuses the lock of a release, and allows that of a failed attempt.
        things.database.command("collMod", things.name, validator={"$nor": [{"lock.tries": 0}]})
        outage = Outage(claim)
        with trio.move_on_after(1):
            await claim.release()
        outage.is_over = True

    report = await run_claims(things, OPEN, handler, wait=False, cleanup_timeout=1.0, listeners=listened(reported))
    assert [(type(one), type(one.error)) for one in reported] == [(DocumentFailed, InvalidUpdateError)]
    assert (report.finished, report.failed, report.released) == (1, 1, 0)


async def test_finish_that_is_cancelled_before_it_is_sent_writes_nothing(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)

    async def handler(claim: Any) -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            await claim.finish({"$set": {"state": "no"}})
        assert scope.cancelled_caught
        assert states(things) == ["new"]
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False)
    assert report.finished == 1
    assert states(things) == ["done"]


async def test_finish_that_is_cancelled_once_it_is_sent_is_written_and_no_error(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    steps = []

    async def handler(claim: Any) -> None:
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(finish, claim)
                while not run_of(claim).is_settling_early:
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        steps.append(states(things))

    report = await run_claims(things, OPEN, handler, wait=False)
    assert steps == [["done"]]
    assert (report.finished, report.released) == (1, 0)


@pytest.mark.parametrize("lock_field", ["lock", "held", "sperre mit ü", "_lock"])
async def test_any_top_level_field_may_hold_the_lock(
    things: Collection, autojump_clock: MockClock, lock_field: str
) -> None:
    fill(things, 3)

    async def handler(claim: Any) -> None:
        assert lock_of(things, claim.id, lock_field)["by"] == "us"
        with pytest.raises(InvalidOptionError):
            await claim.finish({"$set": {f"{lock_field}.by": 1}})
        await claim.finish(DONE)

    report = await run_claims(things, OPEN, handler, wait=False, lock_field=lock_field, instance_id="us")
    assert report.finished == 3
    assert things.count_documents({lock_field: {"$exists": True}}) == 0


async def test_equal_results_of_many_are_each_written(things: Collection, autojump_clock: MockClock) -> None:
    things.insert_many([{"_id": ObjectId(), "state": "new", "n": Int64(number)} for number in range(700)])
    report = await run_claims(things, OPEN, finish, wait=False, concurrency=300)
    assert report.finished == 700
    assert things.count_documents({"state": "done", "lock": {"$exists": False}}) == 700


async def test_results_that_differ_are_one_statement_where_the_documents_are_not_tiny(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 20, text="x" * 100)
    started, all_started = [], trio.Event()

    async def handler(claim: Any) -> None:
        started.append(claim.id)
        if len(started) == 20:
            all_started.set()
        await all_started.wait()
        await claim.finish({"$set": {"state": "done", "result": {"of": claim.id}}})

    with recorded(things) as (theirs, recorder):
        report = await run_claims(theirs, OPEN, handler, wait=False, concurrency=20)
        sent = [one["u"] for name, command in recorder.commands if name == "update" for one in command["updates"]]
    assert report.finished == 20
    joined = [one for one in sent if isinstance(one, list) and "$replaceWith" in one[0]]
    assert joined
    assert len(sent) < 10
    assert [(one["state"], one["result"]) for one in things.find(sort=[("_id", 1)])] == [
        ("done", {"of": number}) for number in range(20)
    ]
