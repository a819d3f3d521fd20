"""A test of a workflow on asyncio and on trio: a child is tried again after an hour, which takes milliseconds.

Why it exists: virtual time belongs to trio, but due dates can be skipped on any event loop.
Run it: `python -m pytest examples/workflows/test_on_asyncio.py`. In this checkout, add `-o trio_mode=false`.
"""

from datetime import timedelta

import pytest

from trio_monque import Monque, RunningJob, Workers, open_job_nursery
from trio_monque.testing import SchedulerOpener, drain, now

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_order_waits_for_its_charge_which_is_tried_again(
    open_test_scheduler: SchedulerOpener, monque: Monque
) -> None:
    answers = iter([ConnectionError("the bank is closed"), None])

    async def place_order(job: RunningJob[None]) -> None:
        async with open_job_nursery(job) as nursery:
            await nursery.start("charge")

    async def charge(job: RunningJob[None]) -> None:
        if (error := next(answers)) is not None:
            raise error

    shop = Workers()
    shop.register("order", place_order)
    shop.register("charge", charge, backoff=3600)
    async with open_test_scheduler(shop) as scheduler:
        order = await monque.enqueue("order")
        assert (await drain(scheduler)).failed == 1  # The order waits, and its charge is due in an hour.
        assert (await drain(scheduler, until=now() + timedelta(hours=1))).completed == 2
        assert (await monque.wait_job(order)).fail_count == 0
