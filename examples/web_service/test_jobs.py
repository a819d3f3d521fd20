"""Tests of the handlers, on asyncio and on trio, with the plugin for pytest that anyio brings.

Why it exists: handlers run on the event loop of the test, as they do in production. Run it:
`pytest examples/web_service/test_jobs.py`.
"""

from datetime import timedelta

import pytest
from jobs import Report, render, workers
from trio.testing import MockClock

from trio_monque import Monque, RunningJob, Workers
from trio_monque.testing import SchedulerOpener, drain, now, run_job

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def test_report_that_was_interrupted_continues_with_the_next_page() -> None:
    ran = await run_job(render, Report(title="Sales", pages=3, seconds_per_page=0), saved=2)
    assert ran.progress == ({"done": 3, "pages": 3},)


async def test_report_is_rendered(open_test_scheduler: SchedulerOpener, monque: Monque) -> None:
    async with open_test_scheduler(workers) as scheduler:
        await monque.enqueue(render, Report(title="Sales", pages=2, seconds_per_page=0.01))
        assert (await drain(scheduler)).completed == 1


async def test_report_is_tried_again_after_an_hour(open_test_scheduler: SchedulerOpener, monque: Monque) -> None:
    pages = iter([ConnectionError("the printer is off"), None])

    async def print_page(job: RunningJob[None]) -> None:
        if (error := next(pages)) is not None:
            raise error

    printing = Workers()
    printing.register("print", print_page, backoff=3600)
    async with open_test_scheduler(printing) as scheduler:
        await monque.enqueue("print")
        assert (await drain(scheduler)).failed == 1
        # Milliseconds later: the due dates move, and no sleep, timeout or lease does.
        drained = await drain(scheduler, until=now() + timedelta(hours=1))
        assert (drained.completed, drained.failed) == (1, 0)


@pytest.mark.parametrize("anyio_backend", [("trio", {"clock": MockClock(autojump_threshold=0)})])
async def test_ten_minutes_pass_at_once() -> None:
    ran = await run_job(render, Report(title="Sales", pages=600))
    assert ran.duration == 600
