"""What an operator asks about the jobs: which run, which recur, and why others have failed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import process_time
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.support.examined import examined, profiling
from trio_monque import Monque
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs.failure_groups import error_kind
from trio_monque.store.driver.types import Collection, Database

BEGIN: Final = datetime(2026, 1, 1, tzinfo=UTC)


def document(number: int, status: str = "pending", **fields: Any) -> dict[str, Any]:
    at = BEGIN + timedelta(minutes=number)
    dates = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), at)
    return {"name": "mail", "data": number, "status": status, "failCount": 0, **dates, **fields}


def running(number: int, instance: str = "worker-1") -> dict[str, Any]:
    return document(number, "processing", claimedBy=instance, lockedAt=BEGIN + timedelta(minutes=number))


@pytest.fixture
def monque(db: Database) -> Monque:
    found = Monque(db)
    found.sync.schedule("0 0 1 1 *", "yearly", unique_key="yearly")  # So that all indexes are there.
    found.sync.delete_jobs(everything=True)
    return found


def numbers(found: Any) -> list[Any]:
    return [job.data for job in found.jobs]


# --- Running jobs ---


async def test_running_jobs_begin_with_those_that_run_longest(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([running(number, f"worker-{number % 2}") for number in (3, 1, 4, 2)])
    jobs.insert_many([document(9, status) for status in ("pending", "completed", "failed")])
    everything = await monque.get_running()
    assert (numbers(everything), everything.is_capped) == ([1, 2, 3, 4], False)
    first = await monque.get_running(limit=3)
    assert (numbers(first), first.is_capped) == ([1, 2, 3], True)
    assert numbers(await monque.get_running(instance="worker-1")) == [1, 3]
    assert numbers(await monque.get_running(instance="worker-9")) == []


async def test_running_jobs_cost_as_much_as_run(db: Database, monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([document(number, "completed") for number in range(500)])
    jobs.insert_many([running(number, f"worker-{number % 4}") for number in range(200)])
    found, cost = examined(db, lambda: monque.sync_in_loop.get_running(limit=10))
    assert numbers(found) == list(range(10))
    assert cost.keys <= 201
    assert cost.documents <= 11  # The keys are sorted, and only the first ones are read.
    found, cost = examined(db, lambda: monque.sync_in_loop.get_running(instance="worker-1", limit=10))
    assert numbers(found) == [1 + 4 * number for number in range(10)]
    assert (cost.keys, cost.documents) <= (12, 11)


async def test_running_document_that_is_no_job_is_left_out(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([running(1), {**running(2), "failCount": "many"}, {**running(3), "createdAt": 7}])
    assert numbers(await monque.get_running()) == [1]


# --- Schedules ---


async def test_schedules_are_in_the_order_of_their_next_runs(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([document(number, repeatInterval="0 * * * *") for number in (3, 1, 2)])
    jobs.insert_many([document(number) for number in range(5)])
    jobs.insert_one(document(4, "failed", repeatInterval="0 * * * *"))
    found = await monque.get_schedules()
    assert (numbers(found), found.is_capped) == ([1, 2, 3, 4], False)
    first = await monque.get_schedules(limit=2)
    assert (numbers(first), first.is_capped, first.is_without_index) == ([1, 2], True, False)


async def test_schedules_cost_nothing_for_other_jobs(db: Database, monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([document(number) for number in range(500)])
    jobs.insert_many([document(number, repeatInterval="0 * * * *") for number in range(20)])
    found, cost = examined(db, lambda: monque.sync_in_loop.get_schedules())
    assert len(found.jobs) == 20
    assert (cost.keys, cost.documents) == (20, 20)
    assert not cost.sorted


async def test_index_of_schedules_is_made_with_the_first_one(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    await monque.enqueue("mail")
    assert "trio_monque_schedules" not in jobs.index_information()
    await monque.schedule("0 * * * *", "hourly", unique_key="hourly")
    assert "trio_monque_schedules" in jobs.index_information()


async def test_without_their_index_schedules_with_a_key_are_found_and_the_answer_is_capped(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)
    await monque.enqueue("mail")
    jobs.insert_many([document(number, repeatInterval="0 * * * *", uniqueKey=str(number)) for number in (3, 1, 2)])
    jobs.insert_many([document(number, uniqueKey=f"other {number}") for number in range(5)])
    found, cost = examined(db, lambda: monque.sync_in_loop.get_schedules(limit=2))
    assert (numbers(found), found.is_capped, found.is_without_index) == ([1, 2], True, True)
    assert cost.documents <= 8


# --- Errors ---


def failed(number: int, reason: str | None, name: str = "mail") -> dict[str, Any]:
    return document(number, "failed", name=name, **({} if reason is None else {"failReason": reason}))


async def test_errors_that_differ_in_numbers_are_one_group_of_any_names(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([failed(number, f"SMTP: 550 no mailbox {number}") for number in range(3)])
    jobs.insert_one(failed(7, "SMTP: 550 no mailbox 7", name="letter"))
    jobs.insert_one(failed(5, "gone"))
    jobs.insert_one(failed(6, None))
    last = jobs.find_one({"name": "letter"}) or {}
    found = await monque.get_error_groups()
    assert (found.looked_at, found.is_capped) == (6, False)
    first, *others = found.groups
    assert (first.error, first.prefix, first.count) == ("SMTP: … no mailbox …", "SMTP: 550 no mailbox ", 4)
    assert first.names == {"mail": 3, "letter": 1}
    assert (first.example, first.first, first.last) == (last["_id"], BEGIN, BEGIN + timedelta(minutes=7))
    assert {(one.error, one.prefix) for one in others} == {("gone", "gone"), ("an unknown error", "")}
    assert [one.error for one in (await monque.get_error_groups(limit=1)).groups] == ["SMTP: … no mailbox …"]
    assert (await monque.get_error_groups(limit=1)).is_capped


async def test_errors_that_differ_in_addresses_and_in_long_ids_are_one_group(monque: Monque, jobs: Collection) -> None:
    ids = [f"{number:08x}-0000-4000-8000-{number:012x}" for number in range(24)]
    several = [f"no answer from https://a.example/{'/'.join(ids[place : place + 6])}: timed out" for place in range(4)]
    jobs.insert_many([failed(number, reason) for number, reason in enumerate(several)])
    jobs.insert_many([failed(9, f"550 unknown: {name}@mail.example.com") for name in ("j.lind", "ann+x", "bob")])
    found = (await monque.get_error_groups()).groups
    assert [(one.error, one.count) for one in found] == [
        ("no answer from https://a.example/…/…/…/…/…/…: timed out", 4),
        ("… unknown: …", 3),
    ]


async def test_errors_that_differ_late_are_two_groups(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([failed(number, f"{'context ' * 40}: {cause}") for number, cause in enumerate(("gone", "full"))])
    found = (await monque.get_error_groups()).groups
    assert [one.count for one in found] == [1, 1]
    assert all(len(one.error) <= 160 for one in found)


@pytest.mark.parametrize("part", ["x", "a-", "aaaaaaaa-", "a@", "a.b@c."])
def test_a_long_line_without_spaces_is_read_in_a_moment(part: str) -> None:
    began = process_time()
    assert error_kind(f"{100_000 * part} 7")
    assert process_time() - began < 1.0  # It takes under a millisecond, and minutes if each letter were a begin.


async def test_group_has_its_jobs_by_name(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([failed(number, f"gone {number}", name) for number, name in enumerate(("mail", "letter", "mail"))])
    (found,) = (await monque.get_error_groups()).groups
    mail, letter = found.by_name
    assert (mail.name, mail.count, mail.first, mail.last) == ("mail", 2, BEGIN, BEGIN + timedelta(minutes=2))
    assert (letter.name, letter.count, letter.error) == ("letter", 1, "gone …")


async def test_broken_document_does_not_hide_that_more_jobs_run(monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([{**running(1), "failCount": "many"}, running(2), running(3)])
    found = await monque.get_running(limit=2)
    assert (numbers(found), found.is_capped) == ([2, 3], True)
    found = await monque.get_running(limit=1)
    assert (numbers(found), found.is_capped) == ([2], True)


async def test_errors_of_a_name_and_since_a_moment(db: Database, monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([failed(number, "gone", name=name) for number in range(300) for name in ("mail", "letter")])
    since = BEGIN + timedelta(minutes=290)
    of_all, cost = examined(db, lambda: monque.sync_in_loop.get_error_groups(since=since))
    assert [(one.count, one.first) for one in of_all.groups] == [(20, since)]
    assert cost.documents <= 21
    of_name = await monque.get_error_groups(since=since, name="letter")
    assert [(one.count, one.names) for one in of_name.groups] == [(10, {"letter": 10})]


async def test_errors_of_the_last_hour_are_counted_by_minute(monque: Monque, jobs: Collection) -> None:
    now = jobs.database.command("hello")["localTime"].replace(tzinfo=UTC)
    for minutes, count in ((0, 2), (10, 3), (59, 1), (61, 4)):
        moment = now - timedelta(minutes=minutes, seconds=-1 if minutes else 0)
        jobs.insert_many([{**failed(0, "gone"), "updatedAt": moment} for _ in range(count)])
    (found,) = (await monque.get_error_groups()).groups
    assert found.count == 10
    assert sum(found.by_minute) == 6
    assert (found.by_minute[-1], found.by_minute[-10], found.by_minute[1]) == (2, 3, 1)


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ("get_running", {"limit": 0}),
        ("get_running", {"limit": 1001}),
        ("get_running", {"instance": 7}),
        ("get_schedules", {"limit": True}),
        ("get_error_groups", {"limit": -1}),
        ("get_error_groups", {"since": datetime(2026, 1, 1)}),  # noqa: DTZ001
        ("get_error_groups", {"since": "1h"}),
        ("get_error_groups", {"name": 7}),
        ("get_queue_depths", {"most_pending": -1}),
        ("count_jobs", {"up_to": 0}),
    ],
)
async def test_invalid_arguments_are_named(monque: Monque, question: str, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(arguments))):
        await getattr(monque, question)(**arguments)


async def test_count_stops_where_it_is_asked_to(db: Database, monque: Monque, jobs: Collection) -> None:
    jobs.insert_many([document(number) for number in range(50)])
    counted, cost = examined(db, lambda: monque.sync_in_loop.count_jobs(name="mail", up_to=10))
    assert (counted.number, counted.is_capped) == (10, True)
    assert cost.keys <= 12


# --- Reasons ---


async def test_reasons_are_asked_for_by_a_job_or_its_id(monque: Monque, jobs: Collection) -> None:
    job = await monque.enqueue("mail")
    await monque.pause("mail")
    expected = await monque.why_not_now(job)
    assert [one.kind for one in expected] == ["paused", "no_instances"]
    assert await monque.why_not_now(job.id) == await monque.why_not_now(str(job.id)) == expected
    jobs.update_one({"_id": job.id}, {"$set": {"status": "failed"}})
    assert [one.kind for one in await monque.why_not_now(job.id)] == ["failed"]
    assert [one.kind for one in await monque.why_not_now(job)] == ["paused", "no_instances"]  # As it was read.


async def test_job_that_is_not_there_has_no_reasons(monque: Monque) -> None:
    assert await monque.why_not_now(ObjectId()) == ()
    assert await monque.why_not_now("mail") == ()
    with pytest.raises(InvalidOptionError, match="job"):
        await monque.why_not_now(7)  # type: ignore[arg-type]


async def test_reasons_of_a_pending_job_need_two_commands_beside_the_job(db: Database, monque: Monque) -> None:
    job = await monque.enqueue("mail")
    commands = []
    for collection in ("monque_jobs", "monque_jobs.instances"):
        with profiling(db, collection=collection) as reported:
            await monque.why_not_now(job)
        commands.append(len([*reported()]))
    assert commands == [1, 1]
