"""A cancellation at any step of the start, or of the end: the block ends, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Final

import pytest
import trio

from trio_monque import Monque, RunningJob, Workers, open_claims, open_scheduler
from trio_monque.claims import create_claim_index
from trio_monque.store.driver.types import Database

pytestmark = pytest.mark.timeout(300)  # Each step is a start of its own.

WANTED: Final = {"done": None}

workers = Workers()


@workers.register("mail")
async def mail(job: RunningJob[None]) -> None: ...


Opening = Callable[[Database], AbstractAsyncContextManager[Any]]

OPENINGS: Final[dict[str, Opening]] = {
    "jobs": lambda db: open_scheduler(db, workers),
    "claims": lambda db: open_claims(db["things"], WANTED),
}


class CancelAt(trio.abc.Instrument):
    """Cancels the scope just before the step of that number, of whichever task of the run.

    The task of that step has its result already: it meets the cancellation at its next checkpoint.
    """

    def __init__(self, scope: trio.CancelScope, number: int) -> None:
        self.left = number
        self._scope = scope

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.left -= 1
        if self.left == 0:
            self._scope.cancel()


async def cancelled_at(opening: AbstractAsyncContextManager[Any], number: int) -> bool:
    """Whether that moment came before the end of the block, whose body ends at once."""
    scope = trio.CancelScope()
    instrument = CancelAt(scope, number)
    before = trio.lowlevel.current_statistics().tasks_living
    with scope:
        trio.lowlevel.add_instrument(instrument)
        try:
            async with opening:
                pass
        finally:
            trio.lowlevel.remove_instrument(instrument)
    assert trio.lowlevel.current_statistics().tasks_living == before
    return instrument.left <= 0


@pytest.mark.full
@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
async def test_block_that_is_cancelled_at_any_step_ends(db: Database, opening: Opening) -> None:
    await Monque(db).enqueue("elsewhere")  # The indexes are there: each start has the same steps.
    await create_claim_index(db["things"], WANTED)
    number = 1
    while await cancelled_at(opening(db), number):
        number += 1
    assert number > 20
    assert db["monque_scheduler_instances"].count_documents({}) == 0
