"""Tests of the order in virtual time, against a real database: minutes of retries take milliseconds.

Why it exists: it shows that a workflow is tested as any other handler. Run it:
`python -m pytest examples/workflows/test_order.py`.
"""

import pytest
import trio
from order import Order, place_order, workers
from trio.testing import MockClock

from trio_monque import Monque
from trio_monque.testing import SchedulerOpener, advance, crash


async def test_order_is_sent(open_test_scheduler: SchedulerOpener, autojump_clock: MockClock) -> None:
    async with open_test_scheduler(workers) as scheduler:
        began = trio.current_time()
        job = await scheduler.enqueue(place_order, Order(1, "valid"))
        assert (await scheduler.wait_job(job)).result == "parcel 1 from shelf 1, payment 1"
    assert trio.current_time() - began == pytest.approx(1.0, abs=0.01)  # Half a second each: charge and pack overlap.


async def test_order_with_an_expired_card_is_undone_although_its_process_dies(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    job = await monque.enqueue(place_order, Order(2, "expired"))
    async with open_test_scheduler(workers) as dying:
        await advance(0.75)  # The block has failed, and the order is being undone.
        await crash(dying)
    async with open_test_scheduler(workers):
        assert (await monque.wait_job(job)).result == "refused: the card has expired"
    jobs = await monque.get_jobs(limit=100)
    assert sorted((one.name, one.status.value) for one in jobs) == [
        ("charge", "failed"),
        ("order", "completed"),
        ("pack", "cancelled"),
        ("reserve", "completed"),
        ("undo", "completed"),
    ]
