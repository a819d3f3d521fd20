"""Handlers alone, and days of retries and schedules in no time, against a real MongoDB.

Why it exists: with the fixtures of `trio_monque.testing` a test needs no mocks of the job
system and no real sleeps. Run it: `pytest examples/testing_jobs`.
"""

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import trio
from orders import CardRefusedError, Charge, charge, workers
from pymongo.database import Database
from pymongo.errors import AutoReconnect
from trio.testing import MockClock

from trio_monque import JobStatus, Monque, NewJob, RunningJob, Workers
from trio_monque.events import JobCompleted
from trio_monque.testing import (
    Discarded,
    Failed,
    SchedulerOpener,
    Succeeded,
    advance,
    assert_enqueued,
    assert_not_enqueued,
    crash,
    drain,
    fail_next,
    now,
    run_job,
    run_virtual,
    start_virtual_time,
)

BERLIN = ZoneInfo("Europe/Berlin")


class FakeBank:
    """Raises the errors that it was given, one per charge, and then takes the money."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.charged: dict[str, int] = {}
        self.asked_at: list[float] = []

    async def charge(self, cents: int, *, reference: str) -> None:
        self.asked_at.append(trio.current_time())
        if self.errors:
            raise self.errors.pop(0)
        self.charged[reference] = cents

    async def total(self) -> int:
        return sum(self.charged.values())


# --- The handler alone, without any database ---


async def test_charge_thanks_the_customer() -> None:
    bank = FakeBank()
    ran = await run_job(charge, Charge(order=7, cents=100), resources=bank)
    assert ran.outcome == Succeeded()
    assert bank.charged == {"order-7": 100}
    assert ran.enqueued == (NewJob(name="mail", data={"order": 7, "text": "Thank you!"}, delay=60),)


async def test_refused_card_is_not_tried_again() -> None:
    ran = await run_job(charge, Charge(7, 100), resources=FakeBank(CardRefusedError("expired")))
    assert isinstance(ran.outcome, Discarded)
    assert ran.job.fail_reason == "expired"
    assert [new.data for new in ran.enqueued] == [{"order": 7, "text": "expired"}]


async def test_bank_that_cannot_be_reached_is_asked_again_in_an_hour() -> None:
    ran = await run_job(charge, Charge(7, 100), resources=FakeBank(ConnectionError("closed")), fail_count=2)
    assert isinstance(ran.outcome, Failed)
    assert ran.job.next_run_at - ran.job.updated_at == timedelta(hours=1)


async def test_slow_bank_is_given_up(autojump_clock: MockClock) -> None:
    class SlowBank(FakeBank):
        async def charge(self, cents: int, *, reference: str) -> None:
            await trio.sleep(3600)

    ran = await run_job(charge, Charge(7, 100), resources=SlowBank())
    assert (ran.cancel_reason, ran.duration) == ("timeout", 60)


# --- What the rest of the program enqueues ---


async def test_order_is_charged_once_although_the_answer_was_lost(monque: Monque) -> None:
    with fail_next(monque, AutoReconnect("connection closed"), when="after", command="enqueue"):
        await monque.enqueue(charge, Charge(7, 100), unique_key="order-7")
    await assert_enqueued(monque, name=charge, data=Charge(7, 100), status="pending", count=1)
    await assert_not_enqueued(monque, name="mail")


# --- The whole: a scheduler, a real database, and time that passes by itself ---


async def test_bank_holiday_is_waited_for(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    bank = FakeBank(*[ConnectionError("closed")] * 3)
    async with open_test_scheduler(workers, resources=bank) as scheduler:
        await scheduler.enqueue(charge, Charge(order=7, cents=100))
        drained = await drain(scheduler)
        assert (drained.completed, drained.failed) == (0, 1)
        await advance(2 * 3600)
        assert bank.charged == {}
        await advance(3600)
    assert bank.asked_at == [0, 3600, 7200, 10800]
    job = await assert_enqueued(monque, name=charge)
    assert (job.status, job.fail_count, bank.charged) == (JobStatus.COMPLETED, 3, {"order-7": 100})
    await assert_enqueued(monque, name="mail", data={"order": 7, "text": "Thank you!"}, status="pending")


async def test_report_is_made_every_night_at_three_also_when_summer_time_begins(
    open_test_scheduler: SchedulerOpener, autojump_clock: MockClock
) -> None:
    start_virtual_time(datetime(2026, 3, 28, tzinfo=BERLIN))
    nights: list[datetime] = []

    async def note(event: JobCompleted) -> None:
        nights.append(now().astimezone(BERLIN))

    async with open_test_scheduler(workers, resources=FakeBank(), listeners={JobCompleted: note}) as scheduler:
        await drain(scheduler, until=datetime(2026, 3, 31, tzinfo=BERLIN))
    assert nights == [datetime(2026, 3, day, 3, tzinfo=BERLIN) for day in (28, 29, 30)]


async def test_charge_survives_a_crash_of_the_process(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    class HangingBank(FakeBank):
        async def charge(self, cents: int, *, reference: str) -> None:
            await trio.sleep_forever()

    async with open_test_scheduler(workers, resources=HangingBank()) as scheduler:
        await scheduler.enqueue(charge, Charge(7, 100))
        await advance(10)
        await crash(scheduler)
    # As after a kill: the job was not released, and it is not lost.
    await assert_enqueued(monque, name=charge, status="processing", count=1)


def test_the_same_seed_makes_the_same_order_of_everything(monque_db: Database[Any]) -> None:
    async def mails() -> list[Any]:
        order: list[Any] = []
        sending = Workers()

        @sending.register("mail", concurrency=3)
        async def mail(job: RunningJob[Any]) -> None:
            order.append(job.data)

        async with SchedulerOpener(monque_db)(sending) as scheduler, trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(scheduler.enqueue, "mail", number)
            await drain(scheduler)
        return order

    first, second = (run_virtual(mails, deterministic=True, seed=42) for _ in range(2))
    assert first == second
