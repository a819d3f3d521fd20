"""assert_enqueued: what counts as the job that was meant, and what the answer tells where there is none."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import ANY

import pytest
from trio.testing import MockClock

from trio_monque import JobStatus, Monque, NewJob, RunningJob, Workers
from trio_monque.errors import InvalidJobIdentifierError, InvalidOptionError
from trio_monque.testing import SchedulerOpener, assert_enqueued, assert_not_enqueued, drain

TOMORROW = datetime(2126, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)


@dataclass
class Address:
    city: str


@dataclass
class Mail:
    to: str
    lines: tuple[str, ...] = ()
    address: Address = field(default_factory=lambda: Address("Berlin"))


async def test_job_that_meets_all_criteria_is_returned(monque: Monque) -> None:
    await monque.enqueue("mail", {"to": "b"})
    job = await monque.enqueue("mail", {"to": "a"}, unique_key="k", run_at=TOMORROW)
    found = await assert_enqueued(
        monque, name="mail", data={"to": "a"}, unique_key="k", run_at=TOMORROW, status="pending"
    )
    assert found == job


@pytest.mark.parametrize(
    ("criterion", "line"),
    [
        ({"name": "other"}, "name: 'mail' instead of 'other'"),
        ({"data": {"to": "c"}}, "data['to']: 'a' instead of 'c'"),
        ({"data": None}, "data: {'to': 'a'} instead of None"),
        ({"unique_key": None}, "unique_key: 'k' instead of None"),
        ({"status": ["failed", JobStatus.COMPLETED]}, "status: 'pending' instead of 'failed' or 'completed'"),
        ({"run_at": TOMORROW + timedelta(milliseconds=1)}, "run_at: datetime.datetime(2126"),
    ],
)
async def test_each_criterion_alone_can_fail(monque: Monque, criterion: Any, line: str) -> None:
    await monque.enqueue("mail", {"to": "a"}, unique_key="k", run_at=TOMORROW)
    with pytest.raises(AssertionError, match="there is one job") as caught:
        await assert_enqueued(monque, **criterion)
    assert line in str(caught.value)
    await assert_not_enqueued(monque, **criterion)


async def test_failure_tells_each_place_of_the_data_that_differs_and_the_most_similar_job_first(monque: Monque) -> None:
    await monque.enqueue_many([NewJob(name="noise", data={"to": "a"}) for _ in range(5)])
    await monque.enqueue("mail", "nothing alike")
    await monque.enqueue("mail", {"to": "a", "lines": ["x", "y"], "address": {"city": "Bonn", "zip": 1}})
    with pytest.raises(AssertionError) as caught:
        await assert_enqueued(monque, name="mail", data=Mail("a", ("x", "z", "w")))
    first, second, *rest = str(caught.value).splitlines()
    assert first.startswith("no job with name='mail', data={'")
    assert first.endswith("was enqueued: there are 7 jobs, the most similar first:")
    assert second.startswith("  mail ")
    assert "(pending, attempt 0), due 20" in second
    assert [line.strip() for line in rest[:4]] == [
        "data['lines'][1]: 'y' instead of 'z'",
        "data['lines'][2]: nothing instead of 'w'",
        "data['address']['city']: 'Bonn' instead of 'Berlin'",
        "data['address']['zip']: 1 instead of nothing",
    ]
    assert rest[4].startswith("  mail ")
    assert rest[5].strip().startswith("data: 'nothing alike' instead of {'")
    assert rest[-1] == "  and 4 others: 4 noise"


async def test_assertion_error_names_an_empty_queue(monque: Monque) -> None:
    with pytest.raises(AssertionError, match=r"^no job with name='mail' was enqueued: there is no job at all$"):
        await assert_enqueued(monque, name="mail")


async def test_data_is_compared_as_it_is_stored(monque: Monque) -> None:
    await monque.enqueue("mail", Mail("a", ("x",)))
    await assert_enqueued(monque, data=Mail("a", ("x",)))
    await assert_enqueued(monque, data={"to": "a", "lines": ("x",), "address": {"city": "Berlin"}})
    await assert_enqueued(monque, data={"to": ANY, "lines": ["x"], "address": ANY})
    await monque.enqueue("at", {"at": TOMORROW})  # BSON keeps milliseconds.
    await assert_enqueued(monque, name="at", data={"at": TOMORROW})


async def test_job_that_has_run_was_enqueued(
    open_test_scheduler: SchedulerOpener, monque: Monque, autojump_clock: MockClock
) -> None:
    workers = Workers()

    @workers.register("greet")
    async def greet(job: RunningJob[str]) -> None: ...

    async with open_test_scheduler(workers) as scheduler:
        await scheduler.enqueue(greet, "world")
        await drain(scheduler)
        job = await assert_enqueued(scheduler, name=greet, data="world")
    assert job.status is JobStatus.COMPLETED
    await assert_not_enqueued(monque, name=greet, status=["pending", "processing"])
    with pytest.raises(AssertionError, match=r"1 jobs with name='greet' were enqueued:\n  greet .*data='world'"):
        await assert_not_enqueued(monque, name=greet)


async def test_count_is_exact_and_gives_all_in_the_order_of_enqueuing(monque: Monque) -> None:
    later = await monque.enqueue("mail", 1, delay=60)
    sooner = await monque.enqueue("mail", 2)
    await monque.enqueue("other")
    assert await assert_enqueued(monque, name="mail", count=2) == [later, sooner]
    assert await assert_enqueued(monque, name="mail") == later
    assert await assert_enqueued(monque, name="none", count=0) == []
    with pytest.raises(AssertionError, match=r"^2 jobs with name='mail' were enqueued, not 1\n  mail .*\n  mail .*$"):
        await assert_enqueued(monque, name="mail", count=1)
    with pytest.raises(
        AssertionError, match="enqueued, not 3\n(.*\n)+Beside them there is one job:\n  other"
    ) as caught:
        await assert_enqueued(monque, name="mail", count=3)
    assert "name: 'other' instead of 'mail'" in str(caught.value)


async def test_no_job_at_all_can_be_asserted(monque: Monque) -> None:
    await assert_not_enqueued(monque)
    await monque.enqueue("mail")
    with pytest.raises(AssertionError, match="1 jobs at all were enqueued"):
        await assert_not_enqueued(monque)


async def test_criteria_that_no_job_could_meet_are_refused(monque: Monque) -> None:
    with pytest.raises(InvalidOptionError, match="timezone-aware"):
        await assert_enqueued(monque, run_at=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(InvalidOptionError, match="status='waiting'"):
        await assert_not_enqueued(monque, status="waiting")
    with pytest.raises(InvalidJobIdentifierError):
        await assert_enqueued(monque, name=7)  # type: ignore[call-overload]
    with pytest.raises(InvalidOptionError, match="count"):
        await assert_enqueued(monque, count=-1)
