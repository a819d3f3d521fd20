"""A rescue beside a document that an open transaction has locked: its holder was killed before the commit."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, later, lock_of
from tests.support.locked import handle
from tests.support.open_transactions import begin_with, is_open
from trio_monque import Claim, run_claims
from trio_monque.locks_and_dead_letters import read_lock
from trio_monque.store.documents import rescuing
from trio_monque.store.documents.rescuing import Takeaway
from trio_monque.store.driver.types import Collection

HELD: Any = {"by": "them", "until": later(-600)}


def held(things: Collection, count: int) -> None:
    fill(things, count)
    things.update_many({}, {"$set": {"lock": HELD}})


@pytest.mark.full
async def test_one_locked_document_does_not_keep_the_others_from_their_rescue(
    things: Collection, autojump_clock: MockClock
) -> None:
    finished: list[Any] = []
    with things.database.client.start_session() as session:
        was_held = False

        async def handle(claim: Claim[Any]) -> None:
            nonlocal was_held
            await claim.finish(DONE)
            finished.append(claim.id)
            if len(finished) == 19:
                was_held = is_open(session, things)
                session.abort_transaction()

        while True:
            things.delete_many({})
            finished.clear()
            held(things, 20)
            begin_with(session, things, 7, {"lock": None})
            with trio.fail_after(1000):
                report = await run_claims(things, OPEN, handle, wait=False, operation_timeout=1.5)
            if was_held:
                break
    assert (report.finished, report.rescued) == (20, 20)
    assert finished[-1] == 7


@pytest.mark.full
def test_rescue_in_parts_recognizes_what_was_taken_before_and_what_another_has_taken(things: Collection) -> None:
    held(things, 4)
    seen = read_lock(lock_of(things))
    assert seen is not None
    locked, becomes = handle(things, OPEN), {"by": None, "until": later(10), "tries": 1}
    dead = [Takeaway(number, seen, becomes) for number in range(4)]
    rescuing.rescue(locked, dead[:1])
    things.update_one({"_id": 1}, {"$set": {"lock.until": later(10)}})
    with things.database.client.start_session() as session:
        begin_with(session, things, 2, {"lock": None})
        answers = rescuing.rescue_in_parts(locked, dead)
        session.abort_transaction()
    assert answers == {locked.key_of(0): True, locked.key_of(1): False, locked.key_of(3): True}
