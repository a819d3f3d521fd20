"""A document that the server refuses to have locked or changed is left alone; all others are worked on."""

from __future__ import annotations

from typing import Any

import pytest
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN, fill, lock_of, states
from tests.support.full_documents import put_full
from tests.support.thoroughly import one_in
from trio_monque import run_claims
from trio_monque.claims import dead_letters
from trio_monque.locks_and_dead_letters import NEVER
from trio_monque.store.driver.types import Collection


async def done(claim: Any) -> None:
    await claim.finish(DONE)


async def test_documents_without_room_for_a_lock_are_passed_over_and_all_others_are_done(
    things: Collection, autojump_clock: MockClock
) -> None:
    for room in (0, 50):
        put_full(things, room, state="new")
    fill(things, 7)
    for _ in range(2):
        report = await run_claims(things, OPEN, done, wait=False)
        assert report.crashed == ()
    assert sorted(states(things)) == ["done"] * 7 + ["new"] * 2


async def test_more_documents_than_a_validator_lets_be_locked_end_nothing(
    things: Collection, autojump_clock: MockClock
) -> None:
    fill(things, 300, fixed=True)
    things.insert_many([{"_id": number, "state": "new"} for number in range(300, 307)])
    things.database.command("collMod", things.name, validator={"$or": [{"fixed": None}, {"lock": None}]})
    report = await run_claims(things, OPEN, done, wait=False, concurrency=20)
    assert (report.finished, report.crashed) == (7, ())


@pytest.mark.full
@pytest.mark.parametrize("room", one_in(4, [130, 170, 250, 400]))
async def test_full_document_whose_tries_are_used_up_is_set_aside_with_what_fits(
    things: Collection, autojump_clock: MockClock, room: int
) -> None:
    full = put_full(things, room, state="new")

    async def handler(claim: Any) -> None:
        raise ValueError("n" * 500)

    report = await run_claims(things, OPEN, handler, wait=False, max_attempts=1, instance_id="an-instance")
    assert (report.failed, report.dead_lettered, report.lost) == (1, 1, 0)
    (listed,) = await dead_letters(things)
    assert listed.id == full
    assert listed.error is not None
    assert listed.error.startswith("ValueError: nnnn")
    assert lock_of(things, full)["until"] == NEVER
