"""What each question of an operator examines: as much as its caps, its names or its answer, and not the collection.

Ordinary runs have 20,000 jobs and lowered caps; the full part has 2,000,000 and those of the library. A bound is made
of what is there: of names, of running jobs, of schedules, and of caps.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from bson import ObjectId
from pymongo import MongoClient

from tests.support.examined import examined
from tests.support.many_jobs import insert_all
from tests.support.store import handle
from tests.support.thoroughly import FULL, in_full
from trio_monque import Monque
from trio_monque.client import findings_and_overview
from trio_monque.client.questions import MOST_AHEAD
from trio_monque.client.sync_monque import SyncMonque
from trio_monque.jobs import JobFilter
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads import counts_by_name, job_counts, queries
from trio_monque.store.reads.diagnosis import jobs as troubled
from trio_monque.store.reads.queue_depths import DepthCaps

pytestmark = [pytest.mark.larger_in_full, pytest.mark.timeout(900)]

JOBS: Final = in_full(20_000, 2_000_000)
NAMES: Final = 20
RUNNING: Final = 160
INSTANCES: Final = 8
SCHEDULES: Final = 50
RARE: Final = "rare"
PAGE: Final = 50

MOST_EXAMINED: Final = in_full(1_000, queries.MOST_EXAMINED)
MOST_FAILED: Final = in_full(200, troubled.MOST_READ)
CAPS: Final = DepthCaps(pending=in_full(40, 10_000), failed=in_full(10, 1_000), ended=0, names=500)
"""Lowered so that each is reached by what there is of it, as 2,000,000 jobs reach those of the library."""

NOW: Final = datetime.now(UTC)
LAST_DUE: Final = ObjectId()


def documents() -> Iterator[dict[str, Any]]:
    """A tenth is pending, half of these due; a twentieth failed; the rest has completed. A fixed number runs."""
    for number in range(JOBS):
        created = NOW - timedelta(hours=12) + timedelta(hours=12) * number / JOBS
        status = "pending" if number % 10 == 3 else "failed" if number % 20 == 7 else "completed"
        due = created if number % 20 == 3 or status != "pending" else NOW + timedelta(hours=1)
        yield {
            "_id": LAST_DUE if number == JOBS - 17 else ObjectId(),
            # Names do not go with statuses: each has jobs of all.
            "name": RARE if number % 1_000 == 0 else f"name-{number // 20 % NAMES:02}",
            "data": {"number": number},
            "status": status,
            "failCount": 1 if status == "failed" else 0,
            "nextRunAt": due,
            "createdAt": created,
            "updatedAt": created,
            **(
                {"failReason": f"550 no mailbox {number}" if number % 4_000 else "needle"} if status == "failed" else {}
            ),
            **({"uniqueKey": f"key {number}"} if status == "pending" else {}),
        }
    for number in range(RUNNING):
        claim = {"claimedBy": f"worker-{number % INSTANCES}", "lockedAt": NOW, "lastHeartbeat": NOW}
        yield {**_at_rest(number, NOW), "status": "processing", **claim}
    for number in range(SCHEDULES):
        later = NOW + timedelta(hours=2, minutes=number)
        yield {**_at_rest(number, later), "repeatInterval": "0 * * * *", "uniqueKey": f"schedule {number}"}


def _at_rest(number: int, due: datetime) -> dict[str, Any]:
    dates = {"nextRunAt": due, "createdAt": NOW, "updatedAt": NOW}
    return {"name": f"name-{number % NAMES:02}", "data": None, "status": "pending", "failCount": 0, **dates}


@pytest.fixture(scope="module")
def database(client: MongoClient[Any]) -> Iterator[Database]:
    """The jobs, once for all questions: they change nothing."""
    found: Database = client[f"monque_test_{secrets.token_hex(6)}"]
    insert_all(found["monque_jobs"], documents())
    indexes.ensure(handle(found, operation_timeout=600.0), also=[indexes.SCHEDULES])
    yield found
    client.drop_database(found.name)


@pytest.fixture
def monque(database: Database, monkeypatch: pytest.MonkeyPatch) -> SyncMonque:
    monkeypatch.setattr(queries, "MOST_EXAMINED", MOST_EXAMINED)
    monkeypatch.setattr(troubled, "MOST_READ", MOST_FAILED)
    monkeypatch.setattr(findings_and_overview, "OVERVIEW_CAPS", CAPS)
    return Monque(database, stats_cache_ttl=0, operation_timeout=60.0).sync


@dataclass(frozen=True)
class Question:
    """A question, and the most that the server may examine for it.

    Attributes:
        ask: Asks it; returns what shows that the question was one that costs something.
        keys, documents: The bounds.
    """

    ask: Callable[[SyncMonque], Any]
    keys: int
    documents: int


def page(sort: str, **conditions: Any) -> Callable[[SyncMonque], Any]:
    """The first page of an order, newest or earliest first."""
    return lambda monque: monque.get_jobs_with_cursor(filter=JobFilter(**conditions), sort=sort, limit=PAGE).jobs


def capped_page(sort: str, **conditions: Any) -> Callable[[SyncMonque], Any]:
    """A page that few jobs are on: it ends at its cap."""

    def ask(monque: SyncMonque) -> Any:
        found = monque.get_jobs_with_cursor(filter=JobFilter(**conditions), sort=sort, limit=PAGE)
        assert found.is_capped
        return found.examined == MOST_EXAMINED

    return ask


SEEN: Final = PAGE + 1

# A page with a filter looks at eight times as many jobs as it needs, and then at eight times as many again, until it
# finds enough. Before it would reach its cap, it looks for the place of the cap, and reads all up to that.
OF_WINDOWS: Final = sum(size for power in range(1, 8) if (size := 8**power * SEEN) < MOST_EXAMINED)
KEYS_TO_THE_CAP: Final = OF_WINDOWS + 2 * MOST_EXAMINED + 1
DOCUMENTS_TO_THE_CAP: Final = OF_WINDOWS + MOST_EXAMINED

A_NAME: Final = "name-07"

OF_DEPTHS: Final = (NAMES + 1) * (CAPS.pending + 1 + CAPS.failed + 1 + 6) + RUNNING + 2
MOST_STATS: Final = 5 * (job_counts.MOST_COUNTED + 1) + job_counts.MOST_AVERAGED

QUESTIONS: Final[dict[str, Question]] = {
    "names with counts": Question(
        lambda monque: monque.get_queue_depths(most_pending=CAPS.pending, most_failed=CAPS.failed, most_ended=0),
        OF_DEPTHS,
        RUNNING,
    ),
    "overview": Question(lambda monque: monque.get_overview().names, OF_DEPTHS + SCHEDULES + 1, RUNNING + SCHEDULES),
    "queue views": Question(
        lambda monque: monque.get_queue_view_summaries(),
        counts_by_name.MOST_KEYS + 6 * (NAMES + 1) + RUNNING + 1,
        RUNNING,
    ),
    "statistics of all": Question(lambda monque: monque.get_queue_stats().total, MOST_STATS, job_counts.MOST_AVERAGED),
    "statistics of a name": Question(
        lambda monque: monque.get_queue_stats(name=A_NAME).total, MOST_STATS, job_counts.MOST_AVERAGED + RUNNING
    ),
    # --- Pages ---
    "page by id": Question(page("-id"), SEEN, SEEN),
    "page by creation": Question(page("-created_at"), SEEN, SEEN),
    "page by change": Question(page("-updated_at"), SEEN + 4 + RUNNING + 1, SEEN + 4 + RUNNING),
    "page by due date": Question(page("next_run_at"), SEEN, SEEN),
    "one status by change": Question(page("-updated_at", status="failed"), SEEN + 1, SEEN),
    "one name and status by due date": Question(page("next_run_at", name=A_NAME, status="pending"), SEEN + 1, SEEN),
    "one name by due date": Question(page("next_run_at", name=A_NAME), SEEN + 8 + RUNNING + 1, SEEN + 8 + RUNNING),
    "rare name by due date": Question(page("next_run_at", name=RARE), SEEN + 8 + RUNNING + 1, SEEN + 8 + RUNNING),
    "due of all names": Question(page("next_run_at", due=True), SEEN + 4 * (NAMES + 1), SEEN + NAMES + 1),
    "later of all names": Question(page("next_run_at", due=False), SEEN + 4 * (NAMES + 1), SEEN + NAMES + 1),
    "failed and common name by change": Question(
        page("-updated_at", status="failed", name=A_NAME), KEYS_TO_THE_CAP, DOCUMENTS_TO_THE_CAP
    ),
    "failed and rare name by change": Question(
        capped_page("-updated_at", status="failed", name=RARE), KEYS_TO_THE_CAP, DOCUMENTS_TO_THE_CAP
    ),
    "rare name by creation": Question(capped_page("-created_at", name=RARE), KEYS_TO_THE_CAP, DOCUMENTS_TO_THE_CAP),
    "error text among failed": Question(
        capped_page("-updated_at", status="failed", fail_reason="nowhere"), KEYS_TO_THE_CAP, DOCUMENTS_TO_THE_CAP
    ),
    # --- Jobs that are few ---
    "longest running": Question(lambda monque: monque.get_running(limit=PAGE).jobs, RUNNING + 1, SEEN),
    "running of an instance": Question(
        lambda monque: monque.get_running(instance="worker-1").jobs, RUNNING // INSTANCES + 1, RUNNING // INSTANCES
    ),
    "page of an instance": Question(
        page("-updated_at", instance="worker-1"), RUNNING // INSTANCES + 1, RUNNING // INSTANCES
    ),
    "schedules": Question(lambda monque: monque.get_schedules().jobs, SCHEDULES + 1, SCHEDULES),
    "next schedules": Question(lambda monque: monque.get_schedules(limit=10).jobs, 11, 11),
    "one job": Question(lambda monque: monque.get_job(LAST_DUE), 1, 1),
    "key of a name": Question(lambda monque: monque.get_job_by_key("name-00", "key 3"), 2, 1),
    # --- Errors, counts, reasons ---
    "error groups": Question(
        lambda monque: monque.get_error_groups().looked_at == MOST_FAILED, MOST_FAILED + 1, MOST_FAILED + 1
    ),
    "error groups of a minute": Question(
        lambda monque: monque.get_error_groups(since=NOW - timedelta(hours=12) / 100).groups,
        min(MOST_FAILED, JOBS // 20 // 100) + 2,
        min(MOST_FAILED, JOBS // 20 // 100) + 2,
    ),
    "error groups of a name": Question(
        lambda monque: monque.get_error_groups(name=A_NAME).groups, MOST_FAILED + 1, MOST_FAILED + 1
    ),
    "failed, counted": Question(lambda monque: monque.count_jobs(status="failed", up_to=500).number == 500, 502, 0),
    "due, counted": Question(lambda monque: monque.count_jobs(due=True, up_to=500).number == 500, 502 + 3 * NAMES, 0),
    "failed of the last hour, counted": Question(
        lambda monque: monque.count_jobs(status="failed", updated_from=NOW - timedelta(hours=1), up_to=70).number == 70,
        72,
        0,
    ),
    "why not now": Question(lambda monque: monque.why_not_now(LAST_DUE), MOST_AHEAD + 3, 1),
}


TOGETHER: Final = [tuple(QUESTIONS)] if FULL else [(one,) for one in QUESTIONS]
"""In full all in one test: several processes that run tests would each make the two million jobs."""


@pytest.mark.full
@pytest.mark.parametrize("asked", TOGETHER, ids=lambda asked: asked[0])
def test_question_examines_no_more_than_its_bound(database: Database, monque: SyncMonque, asked: Sequence[str]) -> None:
    for one in asked:
        question = QUESTIONS[one]
        answer, cost = examined(database, lambda question=question: question.ask(monque))  # type: ignore[misc]
        assert answer, one
        assert cost.plans, one
        assert not any("COLLSCAN" in plan for plan in cost.plans), one
        assert cost.keys <= question.keys, one
        assert cost.documents <= question.documents, one


def test_names_alone_are_read_by_skipping_from_name_to_name(db: Database, jobs: Collection) -> None:
    jobs.insert_many(_at_rest(number, NOW) for number in range(50 * NAMES))
    store = handle(db)
    indexes.ensure(store)
    names, cost = examined(db, lambda: queries.names_at_rest(store, indexes.AT_REST))
    assert len(names) == NAMES
    assert cost.keys <= 2 * NAMES + 1
    assert cost.documents == 0


def test_bounds_are_far_below_the_collection() -> None:
    """A bound that grew with the collection would show nothing."""
    unbounded = {"queue views", "statistics of all", "statistics of a name"}
    for name, question in QUESTIONS.items():
        if FULL or name not in unbounded:
            assert question.keys < JOBS / 3
            assert question.documents < JOBS / 8
