"""`claim.transaction`: the writes of a function, the update and the end of the lock are committed together or not."""

from __future__ import annotations

from functools import partial
from typing import Any

import pymongo
import pytest
import trio
from pymongo.errors import PyMongoError
from trio.testing import MockClock

from tests.support.documents import fill, lock_of, take_away
from tests.support.transactions import Commits
from trio_monque import Claim, open_claims, run_claims
from trio_monque.claims.locked_document import Cycle
from trio_monque.errors import (
    ClaimLostError,
    FilterStillMatchesError,
    InvalidOptionError,
    InvalidUpdateError,
    MonqueConnectionError,
    MonqueError,
    TransactionTimeoutError,
)
from trio_monque.store.driver.types import ClientSession, Collection, Database
from trio_monque.threads_and_frozen_time import call_run


@pytest.fixture
def effects(db: Database) -> Collection:
    """Made before: two first writes to a new collection would conflict."""
    db.effects.insert_one({"_id": "made before"})
    db.effects.delete_one({"_id": "made before"})
    return db.effects


def note(effects: Collection, document_id: Any, session: ClientSession) -> str:
    effects.insert_one({"of": document_id}, session=session)
    return "noted"


DONE: Any = {"$set": {"state": "done"}}
WANTED: Any = {"state": {"$ne": "done"}}


async def test_effects_and_result_are_committed_and_the_work_goes_on(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    seen: list[Any] = []

    async def handle(claim: Claim[Any]) -> None:
        seen.append(await claim.transaction(partial(note, effects, claim.id), DONE))
        seen.append(things.find_one())
        await trio.sleep(500)  # Longer than any lease.
        seen.append(claim.cancel_reason)

    report = await run_claims(things, WANTED, handle, wait=False)
    assert seen[0] == "noted"
    assert seen[1]["state"] == "done"
    assert "lock" not in seen[1]
    assert seen[2] is None
    assert (report.finished, effects.count_documents({})) == (1, 1)


async def test_error_of_the_function_commits_nothing_and_the_claim_is_held(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)

    async def handle(claim: Claim[Any]) -> None:
        def fail(session: ClientSession) -> None:
            note(effects, claim.id, session)
            raise ValueError("not yet")

        with pytest.raises(ValueError, match="not yet"):
            await claim.transaction(fail, DONE)
        assert lock_of(things)["by"]
        await trio.sleep(200)
        await claim.transaction(partial(note, effects, claim.id), DONE)

    report = await run_claims(things, WANTED, handle, wait=False)
    assert (report.finished, report.failed, effects.count_documents({})) == (1, 0, 1)


async def test_claim_that_another_program_took_commits_nothing(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)

    def lose(claim: Claim[Any], session: ClientSession) -> None:
        take_away(things)
        note(effects, claim.id, session)

    async with open_claims(things, WANTED) as claims:
        async for claim in claims:
            with pytest.raises(ClaimLostError):
                async with claim:
                    await claim.transaction(partial(lose, claim), DONE)
            break
    assert effects.count_documents({}) == 0
    assert lock_of(things)["by"] == "another"


async def test_commit_that_nothing_shows_any_more_is_unknown_to_the_handler_and_ends_its_claim(
    things: Collection, effects: Collection, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock is gone, and by the time at which that is found, another program may have taken and removed it."""
    fill(things, 1)
    Commits(monkeypatch, 2, applied=True)
    monkeypatch.setattr(Cycle, "is_sure", lambda *_: False)
    errors: list[MonqueConnectionError] = []

    async def handle(claim: Claim[Any]) -> None:
        try:
            await claim.transaction(partial(note, effects, claim.id), DONE)
        except MonqueConnectionError as error:
            errors.append(error)
            with trio.CancelScope(shield=True), pytest.raises(MonqueError, match="has ended"):
                await claim.release()
            raise

    report = await run_claims(things, WANTED, handle, wait=False)
    (error,) = errors
    assert error.unknown_outcome
    assert "document 0 was committed: its lock is gone" in str(error)
    assert (report.finished, report.failed, report.lost, effects.count_documents({})) == (0, 0, 1, 1)
    assert things.count_documents({"state": "done", "lock": None}) == 1


async def test_block_of_a_claim_ends_with_its_transaction(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    async with open_claims(things, WANTED, wait=False) as claims:
        async for claim in claims:
            async with claim:
                await claim.transaction(partial(note, effects, claim.id), DONE)
                with pytest.raises(MonqueError, match="has ended"):
                    await claim.finish()
                with pytest.raises(MonqueError, match="has ended"):
                    await claim.transaction(partial(note, effects, claim.id))
    assert effects.count_documents({}) == 1
    assert things.count_documents({"state": "done", "lock": None}) == 1


async def test_slot_of_a_claim_is_free_after_its_transaction_while_its_block_goes_on(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 2)
    async with open_claims(things, WANTED, wait=False, concurrency=1) as claims:
        async with await anext(claims) as first:
            await first.transaction(partial(note, effects, first.id), DONE)
            with trio.fail_after(60):
                second = await anext(claims)
            assert second.id != first.id


async def test_filter_that_still_matches_after_a_transaction_is_noticed(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 3)

    async def handle(claim: Claim[Any]) -> None:
        await claim.transaction(partial(note, effects, claim.id), {"$set": {"seen": True}})

    with pytest.raises(FilterStillMatchesError):
        await run_claims(things, WANTED, handle, wait=False)
    assert effects.count_documents({}) <= 3


async def test_update_that_is_invalid_or_refused_commits_nothing(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    things.database.command("collMod", things.name, validator={"state": {"$ne": "forbidden"}})

    async def handle(claim: Claim[Any]) -> None:
        with pytest.raises(InvalidOptionError):
            await claim.transaction(partial(note, effects, claim.id), {"state": "done"})
        with pytest.raises(InvalidUpdateError):
            await claim.transaction(partial(note, effects, claim.id), {"$set": {"state": "forbidden"}})
        assert effects.count_documents({}) == 0
        await claim.transaction(partial(note, effects, claim.id), DONE)

    report = await run_claims(things, WANTED, handle, wait=False)
    assert (report.finished, report.failed, effects.count_documents({})) == (1, 0, 1)


async def test_neighbours_of_one_cycle_keep_their_locks_and_so_does_a_transaction_that_failed(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    """The renewals of the others leave one lock out: its dates must stay in the fence."""
    fill(things, 5)
    reasons: list[Any] = []

    async def handle(claim: Claim[Any]) -> None:
        def slow(session: ClientSession) -> None:
            note(effects, claim.id, session)
            call_run(goes_on.wait)
            raise ValueError("not yet")

        if claim.id == 2:
            await trio.sleep(20)
            with pytest.raises(ValueError, match="not yet"):
                await claim.transaction(slow, DONE)
            await trio.sleep(200)
            await claim.transaction(partial(note, effects, claim.id), DONE)
        else:
            await trio.sleep(65)
            goes_on.set()
            await trio.sleep(300)
            await claim.finish(DONE)
        reasons.append(claim.cancel_reason)

    goes_on = trio.Event()
    report = await run_claims(things, WANTED, handle, wait=False, concurrency=5)
    assert (report.finished, report.lost, reasons) == (5, 0, [None] * 5)
    assert effects.count_documents({}) == 1


@pytest.mark.full
async def test_function_that_takes_too_long_is_a_failed_attempt_of_its_document(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    most = now = 0
    told: list[BaseException] = []

    async def handle(claim: Claim[Any]) -> None:
        def slow(session: ClientSession) -> None:
            nonlocal most, now
            note(effects, claim.id, session)
            now += 1
            most = max(most, now)
            call_run(trio.sleep, 300)  # Cannot be stopped, as code cannot.
            now -= 1

        try:
            await claim.transaction(slow, DONE)
        except TransactionTimeoutError as error:
            told.append(error)
            raise

    report = await run_claims(things, WANTED, handle, wait=False, max_attempts=2)
    assert (report.finished, report.lost, len(told), most) == (0, 0, 2, 1)
    assert "of document 0" in str(told[0])
    assert effects.count_documents({}) == 0


async def test_steady_updates_of_its_document_do_not_keep_a_transaction_from_its_commit(
    things: Collection, effects: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 1)
    changed: list[bool] = []

    async def handle(claim: Claim[Any]) -> None:
        def disturbed(session: ClientSession) -> None:
            note(effects, claim.id, session)
            if len(changed) == 5:
                return
            try:
                with pymongo.timeout(0.3):
                    things.update_one({"_id": claim.id}, {"$inc": {"seen": 1}})
            except PyMongoError:
                changed.append(False)
            else:
                changed.append(True)

        await claim.transaction(disturbed, DONE)

    report = await run_claims(things, WANTED, handle, wait=False)
    # The second call has locked the document first.
    assert (report.finished, changed, effects.count_documents({})) == (1, [True, False], 1)
