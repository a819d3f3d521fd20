"""Many jobs at once: cancelling, retrying and deleting them, and what each selector selects."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import anyio
import pytest
import trio
from bson import ObjectId
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pymongo import MongoClient
from pymongo.errors import AutoReconnect, ExecutionTimeout, OperationFailure
from trio.testing import MockClock

from tests.support.bulk_calls import AFTER, CALLS, DAY, EVENT, POSSIBLE, STATUSES, listening, put, statuses
from tests.support.interception import Interceptor, Recorder
from tests.support.internals import context_of
from tests.support.thoroughly import examples, in_full, one_in
from trio_monque import JobFilter, Monque, RunningJob, Workers, open_scheduler
from trio_monque.client import bulk
from trio_monque.errors import InvalidOptionError, MonqueConnectionError, PartialBulkError
from trio_monque.events import JobClaimLost, JobsCancelled, JobsDeleted, JobsRetried
from trio_monque.jobs import BulkResult
from trio_monque.store.driver.types import Collection, Database
from trio_monque.testing import SchedulerOpener, drain, fail_next

TWICE = datetime(2026, 10, 25, 2, 0, tzinfo=ZoneInfo("Europe/Berlin"))


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_IN_A_BATCH", 3)
    monkeypatch.setattr(bulk, "MOST_IN_A_WINDOW", 8)


# --- What each action does ---


async def test_bulk_cancel_touches_pending_jobs_only_and_emits_an_event_if_there_were_any(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)
    reported = listening(monque)
    for status in STATUSES:
        put(jobs, status)
    put(jobs, "pending", "other")
    assert await monque.cancel_jobs(name="greet") == BulkResult(1)
    assert statuses(jobs) == {**dict.fromkeys(STATUSES, 1), "pending": 1, "cancelled": 2}
    assert reported == [JobsCancelled(1, {"greet": 1})]
    assert await monque.cancel_jobs(name="greet") == BulkResult()
    assert len(reported) == 1


@pytest.mark.parametrize("action", ["cancel", "retry"])
async def test_status_that_the_action_is_not_possible_for_sends_no_command(
    monque_client: MongoClient[Any], db: Database, action: str
) -> None:
    recorder = Recorder()
    with MongoClient[Any](*(monque_client.address or ()), event_listeners=[recorder]) as client:
        monque = Monque(client[db.name])
        reported = listening(monque)
        assert await CALLS[action](monque, status=["processing", "completed"]) == BulkResult()
    assert [name for name, _ in recorder.commands if name != "endSessions"] == []
    assert reported == []


async def test_bulk_retry_gives_ended_jobs_all_their_tries_spread_over_a_window(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    reported = listening(monque)
    before: dict[str, Any] = {
        "failCount": 7,
        "failReason": "no",
        "rescues": 2,
        "attempts": 7,
        "rev": 3,
        "errors": [{"a": 1}],
    }
    for number in range(60):
        put(jobs, "cancelled" if number % 2 else "failed", **before)
    put(jobs, "completed")
    began = context_of(monque).now()
    assert await monque.retry_jobs() == BulkResult(60)
    assert reported == [JobsRetried(60, {"greet": 60})]
    again = [await monque.get_job(one["_id"]) for one in jobs.find({"status": "pending"})]
    for job in again:
        assert job is not None
        assert (job.fail_count, job.fail_reason, job.rescues, job.attempts, job.internals.rev) == (0, None, 0, 7, 4)
        assert job.errors == [{"a": 1}]
        assert began <= job.updated_at <= job.next_run_at < job.updated_at + timedelta(seconds=30)
    # Evenly: some in each tenth of the window.
    tenths = {int((job.next_run_at - job.updated_at) / timedelta(seconds=3)) for job in again if job}
    assert tenths == set(range(10))


async def test_bulk_retry_is_for_the_requested_statuses(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    for status in STATUSES:
        put(jobs, status)
    assert await monque.retry_jobs(status=["failed", "completed"], spread=0) == BulkResult(1)
    assert statuses(jobs) == {"pending": 2, "processing": 1, "completed": 1, "cancelled": 1}


async def test_bulk_delete_by_status_and_age_emits_an_event_with_its_count(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    reported = listening(monque)
    for day in range(10):
        for status in ("completed", "failed"):
            put(jobs, status, createdAt=DAY + timedelta(days=day))
    result = await monque.delete_jobs(
        status="completed", newer_than=DAY + timedelta(days=2), older_than=DAY + timedelta(days=5)
    )
    assert result == BulkResult(2)
    assert reported == [JobsDeleted(2, {"greet": 2})]
    left = {(one["createdAt"].day - 1) for one in jobs.find({"status": "completed"})}
    assert left == {0, 1, 2, 5, 6, 7, 8, 9}
    assert statuses(jobs)["failed"] == 10


async def test_delete_without_a_selector_is_refused_unless_everything_is_said(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    for status in STATUSES:
        put(jobs, status)
    with pytest.raises(ValueError, match="pass everything=True"):
        await monque.delete_jobs()
    with pytest.raises(InvalidOptionError, match="cannot be combined"):
        await monque.delete_jobs(name="greet", everything=True)
    assert jobs.count_documents({}) == 5
    assert await monque.delete_jobs(everything=True) == BulkResult(5)
    assert jobs.count_documents({}) == 0


async def test_bulk_retry_with_conflicting_keys_retries_the_others_and_reports_conflicts(
    db: Database, jobs: Collection
) -> None:
    monque = Monque(db)
    reported = listening(monque)
    live = await monque.enqueue("greet", unique_key="live")
    blocked = put(jobs, "failed", uniqueKey="live")
    first, second = (put(jobs, "failed", uniqueKey="both") for _ in range(2))
    others = [put(jobs, "failed") for _ in range(3)]
    result = await monque.retry_jobs(spread=0)
    assert result.count == 4
    assert result.refused == 2
    assert {error.job_id for error in result.errors} == {str(blocked), str(second)}
    assert all("unique key" in error.reason for error in result.errors)
    pending = {one["_id"] for one in jobs.find({"status": "pending"})}
    assert pending == {live.id, first, *others}
    assert reported == [JobsRetried(4, {"greet": 4})]


async def test_retried_jobs_wake_the_schedulers_of_the_run_and_start_when_they_are_due(
    open_test_scheduler: SchedulerOpener, jobs: Collection, autojump_clock: MockClock
) -> None:
    starts: list[float] = []
    workers = Workers()

    @workers.register("greet", concurrency=100)
    async def greet(job: RunningJob[Any]) -> None:
        starts.append(trio.current_time())

    async with open_test_scheduler(workers) as scheduler:
        await drain(scheduler)
        for _ in range(20):
            put(jobs, "failed")
        began = trio.current_time()
        assert await scheduler.retry_jobs(spread=30.0) == BulkResult(20)
        await trio.sleep(31)  # Not by the kit, which would have the scheduler look.
        assert len(starts) == 20
    assert starts == sorted(starts)
    assert starts[0] - began < 1.5 <= 28.5 <= starts[-1] - began < 30


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("action", CALLS)
async def test_query_that_fails_after_the_bulk_write_does_not_fail_the_call(
    db: Database, jobs: Collection, interceptor: Interceptor, watched: Monque, action: str
) -> None:
    """Another client changed one job between choosing and writing: the query for the changed jobs cannot tell which."""
    status = next(iter(sorted(POSSIBLE[action] & {"pending", "failed"})))
    ids = [put(jobs, status) for _ in range(3)]
    reported = listening(watched)
    interceptor.before(is_bulk_write, changing(jobs, ids[1], {"status": "processing"}))
    with fail_next(watched, AutoReconnect, command="read which jobs"):
        assert await CALLS[action](watched, status=status) == BulkResult(2)
    assert reported == [EVENT[action](2, {})]


@pytest.mark.full
async def test_deleting_jobs_that_run_takes_their_claims_away(db: Database, jobs: Collection) -> None:
    ended: list[str | None] = []
    workers = Workers()
    runs = anyio.Event()

    @workers.register("greet")
    async def greet(job: RunningJob[Any]) -> None:
        runs.set()
        try:
            await trio.sleep_forever()
        finally:
            ended.append(job.cancel_reason)

    async with open_scheduler(db, workers, heartbeat_interval=1.4) as scheduler:
        await scheduler.enqueue("greet")
        await runs.wait()
        async with scheduler.events(JobClaimLost) as lost:
            assert await scheduler.delete_jobs(status="processing") == BulkResult(1)
            await anext(aiter(lost))
    assert ended == ["lost"]
    assert jobs.count_documents({}) == 0


# --- What is selected ---

REASONS = ["", "a.b", "axb", "A.B", "^a", "a\nb", "(a", "a\\b", "ä", "a\0b", "b a.b"]
MOMENTS = [DAY + timedelta(milliseconds=step) for step in range(5)]
DOCUMENTS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["a", "b", "c"]),
        "status": st.sampled_from(STATUSES),
        "createdAt": st.sampled_from(MOMENTS),
        "failReason": st.sampled_from([*REASONS, None]),
    }
)
LIMITS = st.sampled_from([DAY + timedelta(microseconds=step * 500) for step in range(-1, 11)])
SELECTIONS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "d"]) | st.lists(st.sampled_from(["a", "b"]), min_size=1),
        "status": st.sampled_from(STATUSES) | st.lists(st.sampled_from(STATUSES), min_size=1),
        "older_than": LIMITS,
        "newer_than": LIMITS,
        "reason": st.tuples(
            st.sampled_from(["fail_reason", "fail_reason_prefix"]), st.sampled_from([*REASONS[1:], ".", "a", "\0"])
        ),
    },
)


def selected(document: dict[str, Any], selection: dict[str, Any]) -> bool:
    """The oracle: the docs, in Python."""

    def among(option: str) -> bool:
        wanted = selection.get(option)
        return wanted is None or document[option] in ([wanted] if isinstance(wanted, str) else wanted)

    kind, text = selection.get("reason", (None, ""))
    reason = document["failReason"]
    return (
        among("name")
        and among("status")
        and ("older_than" not in selection or document["createdAt"] < selection["older_than"])
        and ("newer_than" not in selection or document["createdAt"] > selection["newer_than"])
        and (kind != "fail_reason" or (reason is not None and text in reason))
        and (kind != "fail_reason_prefix" or (reason is not None and reason.startswith(text)))
    )


@pytest.mark.full
@pytest.mark.larger_in_full
@settings(max_examples=examples(in_full(15, 40), 80), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    action=st.sampled_from(sorted(CALLS)),
    documents=st.lists(DOCUMENTS, max_size=12),
    selection=SELECTIONS,
)
def test_exactly_the_selected_jobs_are_changed(
    db: Database,
    jobs: Collection,
    small_batches: None,
    action: str,
    documents: list[dict[str, Any]],
    selection: dict[str, Any],
) -> None:
    older, newer = selection.get("older_than"), selection.get("newer_than")
    if older is not None and newer is not None and newer >= older:
        selection = {option: value for option, value in selection.items() if option != "newer_than"}
    jobs.delete_many({})
    given_ = {put(jobs, **document): document for document in documents}
    wanted = {option: value for option, value in selection.items() if option != "reason"}
    wanted.update([selection["reason"]] if "reason" in selection else [])
    if action == "delete" and not wanted:
        wanted["everything"] = True
    which = JobFilter(**{option: value for option, value in wanted.items() if option != "everything"})
    shown = {
        order: {job.id for job in Monque(db).sync.get_jobs_with_cursor(filter=which, sort=order).jobs}
        for order in ("id", "created_at", "updated_at", "next_run_at")
    }
    result = CALLS[action](Monque(db).sync, **wanted)
    expected = {
        job_id
        for job_id, document in given_.items()
        if document["status"] in POSSIBLE[action] and selected(document, selection)
    }
    # A page of the same selection has shown the same jobs, in every order.
    assert shown == {
        order: {job_id for job_id, document in given_.items() if selected(document, selection)} for order in shown
    }
    left = {one["_id"]: one for one in jobs.find()}
    for job_id, document in given_.items():
        after = AFTER[action] if job_id in expected else document["status"]
        assert (left[job_id]["status"] if job_id in left else None) == after, document
    assert result == BulkResult(len(expected))


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "is empty"),
    ({"name": []}, "selects nothing"),
    ({"name": 7}, "must be a string or a list of strings"),
    ({"name": [7]}, "must be a string"),
    ({"status": []}, "selects nothing"),
    ({"status": "done"}, "must be one of pending"),
    ({"status": ["pending", ""]}, "must be one of pending"),
    ({"older_than": DAY.replace(tzinfo=None)}, "must be timezone-aware"),
    ({"newer_than": 7}, "must be a datetime"),
    ({"older_than": DAY, "newer_than": DAY}, "selects nothing"),
    ({"older_than": DAY, "newer_than": DAY + timedelta(microseconds=1)}, "selects nothing"),
    # Of an hour that comes twice: 2:30 of the first is before 2:00 of the second.
    ({"older_than": TWICE.replace(minute=30), "newer_than": TWICE.replace(fold=1)}, "selects nothing"),
    ({"fail_reason": ""}, "is empty"),
    ({"fail_reason_prefix": "x" * 1001}, "longer than 1000"),
    ({"fail_reason": "\ud800"}, "UTF-8"),
    ({"fail_reason": "x", "fail_reason_prefix": "y"}, "choose one"),
    ({"name": "a", "on_progress": 7}, "must be a function"),
]


@pytest.mark.parametrize(("wrong", "action"), one_in(3, WRONG, list(CALLS)))
async def test_selection_that_cannot_be_is_refused(
    db: Database, jobs: Collection, action: str, wrong: tuple[dict[str, Any], str]
) -> None:
    selection, problem = wrong
    for status in STATUSES:
        put(jobs, status)
    for monque in (Monque(db), Monque(db).sync_in_loop):
        with pytest.raises(InvalidOptionError, match=problem):
            await CALLS[action](monque, **selection)
    if "on_progress" not in selection:  # A page refuses it in the same words.
        with pytest.raises(InvalidOptionError) as refused:
            await CALLS[action](Monque(db), **selection)
        with pytest.raises(InvalidOptionError) as on_page:
            JobFilter(**selection)
        assert str(on_page.value) == str(refused.value)
    with pytest.raises(TypeError, match="nmae"):
        await CALLS[action](Monque(db), nmae="greet")
    assert statuses(jobs) == dict.fromkeys(STATUSES, 1)


@pytest.mark.parametrize("spread", [-1, float("nan"), "3"])
async def test_spread_that_cannot_be_is_refused(db: Database, spread: Any) -> None:
    with pytest.raises(InvalidOptionError, match="spread"):
        await Monque(db).retry_jobs(spread=spread)


# --- Batches, progress and cancellation ---


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("action", CALLS)
async def test_bulk_action_reports_progress_after_each_batch(db: Database, jobs: Collection, action: str) -> None:
    monque = Monque(db)
    status = min(POSSIBLE[action] & {"pending", "failed"})
    seen: list[int] = []

    async def on_progress(result: BulkResult) -> None:
        await anyio.lowlevel.checkpoint()
        seen.append(result.count)

    for _ in range(7):
        put(jobs, status)
    reported = listening(monque)
    assert await CALLS[action](monque, status=status, on_progress=on_progress) == BulkResult(7)
    assert seen == [3, 6, 7]  # Of one window.
    assert reported == [EVENT[action](7, {"greet": 7})]
    seen.clear()
    jobs.delete_many({})
    for _ in range(4):
        put(jobs, status, "other")
    CALLS[action](
        monque.sync_in_loop, name="other", status=status, on_progress=lambda result: seen.append(result.count)
    )
    assert seen == [3, 4]
    with pytest.raises(InvalidOptionError, match="cannot await it"):
        CALLS[action](monque.sync_in_loop, status=status, on_progress=on_progress)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("kind", ["async", "plain", "blocking"])
async def test_error_in_on_progress_ends_the_action_and_finished_batches_are_announced(
    db: Database, jobs: Collection, kind: str
) -> None:
    monque = Monque(db)
    reported = listening(monque)
    for _ in range(7):
        put(jobs, "pending")

    def plain(result: BulkResult) -> None:
        raise LookupError("enough")

    async def later(result: BulkResult) -> None:
        plain(result)

    with pytest.raises(LookupError, match="enough"):
        if kind == "blocking":
            monque.sync_in_loop.cancel_jobs(on_progress=plain)
        else:
            await monque.cancel_jobs(on_progress=later if kind == "async" else plain)
    assert statuses(jobs) == {"cancelled": 3, "pending": 4}
    assert reported == [JobsCancelled(3, {"greet": 3})]


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_cancelled_action_ends_after_its_batch_and_announces_the_finished_batches(
    db: Database, jobs: Collection, backend: str
) -> None:
    monque = Monque(db)
    reported = listening(monque)
    for _ in range(7):
        put(jobs, "pending")

    async def main() -> None:
        with anyio.CancelScope() as scope:
            await monque.cancel_jobs(on_progress=lambda result: scope.cancel())
        assert scope.cancelled_caught

    anyio.run(main, backend=backend)
    assert statuses(jobs) == {"cancelled": 3, "pending": 4}
    assert reported == [JobsCancelled(3, {"greet": 3})]


def test_action_cancelled_with_its_last_batch_reaches_all_listeners(db: Database, jobs: Collection) -> None:
    """The thread of that batch is waited for, and no error comes before the event."""
    put(jobs, "pending")

    async def main() -> None:
        monque = Monque(db)
        reported = listening(monque)
        reported_later = []

        async def listener(event: JobsCancelled) -> None:
            await trio.lowlevel.checkpoint()
            reported_later.append(event)

        monque.on(JobsCancelled, listener)
        with trio.CancelScope() as scope:
            await monque.cancel_jobs(on_progress=lambda result: scope.cancel())
        assert reported == reported_later == [JobsCancelled(1, {"greet": 1})]

    trio.run(main)
    assert statuses(jobs) == {"cancelled": 1}


@pytest.mark.usefixtures("small_batches")
async def test_job_that_is_enqueued_while_the_action_runs_does_not_prolong_it(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    for _ in range(3):
        put(jobs, "pending")
    result = await monque.cancel_jobs(on_progress=lambda _: put(jobs, "pending"))
    assert result == BulkResult(3)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
async def test_few_jobs_among_many_are_found_window_by_window(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """So that no command has to read the whole of a large collection within its time."""
    monkeypatch.setattr(bulk, "MOST_IN_A_WINDOW", size)
    wanted = {0, 5, 6, 19}
    for number in range(20):
        put(jobs, "pending" if number in wanted else "completed")
    steps: list[int] = []
    assert await Monque(db).cancel_jobs(on_progress=lambda result: steps.append(result.count)) == BulkResult(4)
    assert len(steps) == -(-20 // size)


@pytest.mark.usefixtures("small_batches")
async def test_failure_of_a_later_batch_still_announces_the_earlier_batches(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    reported = listening(monque)
    for _ in range(7):
        put(jobs, "pending")

    def then_fails(result: BulkResult) -> None:
        if result.count == 3:
            fail_next(monque, AutoReconnect, command="choose jobs")

    with pytest.raises(PartialBulkError, match="3 are done") as caught:
        await monque.cancel_jobs(on_progress=then_fails)
    assert (caught.value.count, caught.value.unknown, caught.value.transient) == (3, 0, True)
    assert isinstance(caught.value.__cause__, MonqueConnectionError)
    assert isinstance(caught.value.__cause__.__cause__, AutoReconnect)
    assert reported == [JobsCancelled(3, {"greet": 3})]


@pytest.mark.parametrize(
    ("command", "fault"),
    [("choose jobs", ExecutionTimeout("slow", 50)), ("cancel jobs", OperationFailure("not authorized", 13))],
)
async def test_bulk_call_that_fails_before_it_changed_a_job_raises_the_plain_error(
    db: Database, jobs: Collection, command: str, fault: OperationFailure
) -> None:
    monque = Monque(db)
    put(jobs, "pending")
    with fail_next(monque, fault, command=command), pytest.raises(MonqueConnectionError) as caught:
        await monque.cancel_jobs()
    assert type(caught.value) is MonqueConnectionError
    assert caught.value.__cause__ is fault
    assert not caught.value.unknown_outcome


# --- Races: the window between choosing and writing is held open ---


@pytest.fixture
def interceptor() -> Interceptor:
    return Interceptor()


@pytest.fixture
def watched(monque_client: MongoClient[Any], db: Database, interceptor: Interceptor) -> Any:
    with MongoClient[Any](*(monque_client.address or ()), event_listeners=[interceptor]) as client:
        yield Monque(client[db.name])


def changing(jobs: Collection, job_id: ObjectId, change: dict[str, Any]) -> Callable[[], None]:
    def change_it() -> None:
        jobs.update_one({"_id": job_id}, {"$set": change})

    return change_it


def is_bulk_write(name: str, command: Any) -> bool:
    return name in ("update", "delete")


RACES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "claimed before it is cancelled": ("cancel", "pending", {"status": "processing"}),
    "retried before it is retried": ("retry", "failed", {"status": "pending"}),
    "retried before it is deleted": ("delete", "failed", {"status": "pending"}),
    "claimed before it is deleted": ("delete", "pending", {"status": "processing"}),
    "another reason before it is retried": ("retry", "failed", {"failReason": "another"}),
    "renamed before it is cancelled": ("cancel", "pending", {"name": "other"}),
}


@pytest.mark.parametrize("race", RACES)
async def test_job_that_changes_between_choosing_and_writing_is_left_alone(
    jobs: Collection, interceptor: Interceptor, watched: Monque, race: str
) -> None:
    action, status, change = RACES[race]
    ids = [put(jobs, status, failReason="it broke") for _ in range(3)]
    reported = listening(watched)
    interceptor.before(is_bulk_write, changing(jobs, ids[1], change))
    selection = {"name": "greet", "status": status, "fail_reason": "broke"}
    assert await CALLS[action](watched, **selection) == BulkResult(2)
    assert interceptor.times == 1
    after = jobs.find_one({"_id": ids[1]})
    assert after is not None
    assert {field: after[field] for field in change} == change
    assert "receipt" not in after
    assert reported == [EVENT[action](2, {"greet": 2})]


@pytest.mark.parametrize("action", CALLS)
async def test_job_that_changes_between_choosing_and_writing_and_is_still_selected_is_not_left_out(
    jobs: Collection, interceptor: Interceptor, watched: Monque, action: str
) -> None:
    status = min(POSSIBLE[action] & {"pending", "failed"})
    job_id = put(jobs, status)
    interceptor.before(is_bulk_write, changing(jobs, job_id, {"nextRunAt": DAY, "updatedAt": DAY + timedelta(days=1)}))
    assert await CALLS[action](watched, name="greet", status=status) == BulkResult(1)
    assert interceptor.times == 1
    assert statuses(jobs)[status] == 0


# --- Documents that are not jobs, and what the server refuses ---


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("action", CALLS)
async def test_bulk_action_leaves_malformed_documents_and_reports_them(
    db: Database, jobs: Collection, action: str
) -> None:
    monque = Monque(db)
    status = min(POSSIBLE[action] & {"pending", "failed"})
    broken = [put(jobs, status, failCount=f"{number}") for number in range(4)]
    good = [put(jobs, status) for _ in range(4)]
    jobs.insert_one({"_id": "foreign", "name": "greet", "status": status})
    result = await CALLS[action](monque, status=status)
    assert (result.count, result.refused) == (len(good), len(broken))
    assert {error.job_id for error in result.errors} == {str(one) for one in broken}
    assert all("failCount" in error.reason for error in result.errors)
    assert jobs.count_documents({"_id": {"$in": [*broken, "foreign"]}, "status": status}) == 5


@pytest.mark.parametrize("action", ["cancel", "retry"])
async def test_document_that_the_server_refuses_to_change_keeps_no_neighbour(
    db: Database, jobs: Collection, action: str
) -> None:
    monque = Monque(db)
    status = min(POSSIBLE[action])
    ids = [put(jobs, "failed" if action == "retry" else status, data={"n": number}) for number in range(9)]
    stubborn = {"$or": [{"_id": {"$nin": [ids[4]]}}, {"status": {"$in": ["failed", "pending"]}, "rev": None}]}
    if action == "cancel":
        stubborn = {"$or": [{"_id": {"$nin": [ids[4]]}}, {"status": "pending"}]}
    db.command("collMod", jobs.name, validator=stubborn)
    reported = listening(monque)
    result = await CALLS[action](monque)
    assert (result.count, result.refused, result.unknown) == (8, 1, 0)
    assert result.errors[0].job_id == str(ids[4])
    assert "the server refuses" in result.errors[0].reason
    assert reported == [EVENT[action](8, {"greet": 8})]
    assert statuses(jobs)[AFTER[action] or ""] == 8


async def test_errors_that_are_listed_are_bounded_and_all_are_counted(db: Database, jobs: Collection) -> None:
    for _ in range(120):
        put(jobs, "failed", rev="x")
    result = await Monque(db).retry_jobs()
    assert (result.count, len(result.errors), result.refused) == (0, 100, 120)


async def test_count_is_that_of_the_jobs_that_a_bulk_action_would_change(db: Database, jobs: Collection) -> None:
    monque = Monque(db)
    for name in ("a", "a", "b"):
        await monque.enqueue(name)
    assert [(await monque.count_jobs(name=name)).number for name in ("a", "b", "c")] == [2, 1, 0]
    everything = await monque.count_jobs()
    assert (everything.number, everything.is_capped) == (3, False)
    assert (await monque.count_jobs(name="a", status=["failed"])).number == 0
    with pytest.raises(InvalidOptionError, match="unique_key"):
        await monque.count_jobs(unique_key="k")
    assert (await monque.cancel_jobs(name="a")).count == 2
