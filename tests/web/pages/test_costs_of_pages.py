"""What the pages of the dashboard cost the server: their caps, and not the collection.

With 20,000 jobs and lowered caps. `python -m benchmarks.dashboard` has 2,000,000, and the caps of the library.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pytest
from pymongo import MongoClient
from starlette.types import ASGIApp

from benchmarks import dashboard_jobs
from benchmarks.dashboard_jobs import COMMON, ERROR_NOWHERE, ERROR_SHOWN, INSTANCES, NAMES, RARE, RUNNING, SCHEDULES
from tests.support.interception import Recorder
from tests.web.pages.fetching import get
from trio_monque import Monque
from trio_monque.client import findings_and_overview
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.store.reads import queries, queue_depths
from trio_monque.store.reads.diagnosis import jobs as troubled
from trio_monque.store.reads.queue_depths import DepthCaps
from trio_monque.web import create_app
from trio_monque.web.pages import jobs_screen
from trio_monque.web.pages.jobs_asked import ON_A_PAGE, TABS

JOBS: Final = 20_000
ALL_NAMES: Final = len(NAMES) + 1

CAPS: Final = DepthCaps(pending=100, failed=50, ended=0, names=500, in_all=ALL_NAMES * 25)
"""Of each name, 20 pending and 5 failed jobs are counted: there are 110 and 40."""

MOST_EXAMINED: Final = 500
MOST_READ: Final = 100
MOST_MATCHES: Final = 200
MOST_ENDED: Final = 40
MOST_FAILED: Final = 100

SEEN: Final = ON_A_PAGE + 1
OF_OVERVIEW: Final = (ALL_NAMES + 1) * (21 + 6 + 6) + 2 * ALL_NAMES + RUNNING + SCHEDULES + INSTANCES + 3
# See `KEYS_TO_THE_CAP` in tests/client/test_costs_of_questions.py; a page of all states reads the running ones besides.
OF_LIST: Final = 8 * SEEN + 2 * MOST_EXAMINED + 1 + 4 * ALL_NAMES + RUNNING + 2
OF_MATCHES: Final = max(2 * (MOST_READ + 1) * (len(TABS)), MOST_MATCHES) + 3 * ALL_NAMES + RUNNING
OF_TABS: Final = 2 * (MOST_ENDED + 2) + 4 * (MOST_MATCHES + 2) + RUNNING + 2 * ALL_NAMES

MOST_KEYS: Final = OF_OVERVIEW + OF_LIST + OF_MATCHES + OF_TABS
MOST_DOCUMENTS: Final = RUNNING * 3 + SCHEDULES + 8 * SEEN + MOST_EXAMINED + MOST_READ + MOST_MATCHES
MOST_COMMANDS: Final = 20

FILTERS: Final = {
    "none": "",
    "name": f"&name={COMMON}",
    "rare name": f"&name={RARE}",
    "error": f"&error={ERROR_SHOWN}",
    "error of none": f"&text={ERROR_NOWHERE}",
    "tenant": "&meta.tenant=tenant-007",
    "since": "&since=1h",
    "name and error": f"&name={COMMON}&text=mailbox",
}


@pytest.fixture(scope="module")
def filled(client: MongoClient[Any]) -> Iterator[Database]:
    """The jobs, once for all pages: they change nothing."""
    found: Database = client[f"monque_test_{secrets.token_hex(6)}"]
    dashboard_jobs.fill(found, JOBS)
    yield found
    client.drop_database(found.name)


@pytest.fixture(autouse=True)
def lowered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings_and_overview, "OVERVIEW_CAPS", CAPS)
    monkeypatch.setattr(queue_depths, "LEAST_SHARE", 5)
    monkeypatch.setattr(queries, "MOST_EXAMINED", MOST_EXAMINED)
    monkeypatch.setattr(troubled, "MOST_READ", MOST_FAILED)
    monkeypatch.setattr(jobs_screen, "MOST_READ", MOST_READ)
    monkeypatch.setattr(jobs_screen, "COUNTED_MATCHES", MOST_MATCHES)
    monkeypatch.setattr(jobs_screen, "COUNTED_ENDED", MOST_ENDED)


def examined(db: Database, app: ASGIApp, path: str) -> tuple[str, int, int]:
    """The page, and the keys and documents of jobs that the server looked at for it."""
    db.command("profile", 0)
    db["system.profile"].drop()
    db.command("profile", 2)
    try:
        answer = get(app, path)
    finally:
        db.command("profile", 0)
    assert answer.status_code == 200, path
    entries = list(db["system.profile"].find({"ns": f"{db.name}.{dashboard_jobs.JOBS}", "op": {"$ne": "insert"}}))
    assert not any("COLLSCAN" in entry.get("planSummary", "") for entry in entries), path
    keys, documents = (sum(entry.get(what, 0) for entry in entries) for what in ("keysExamined", "docsExamined"))
    return answer.text, keys, documents


def paths() -> Sequence[str]:
    tabs = ["", *(f"&status={tab.key}" for tab in TABS)]
    return ["/", "/errors?since=all", *(f"/jobs?{tab}{more}" for tab in tabs for more in FILTERS.values())]


def test_bounds_are_far_below_the_collection() -> None:
    """A bound that grew with the collection would show nothing."""
    assert MOST_KEYS < JOBS / 3
    assert MOST_DOCUMENTS < JOBS / 8


@pytest.mark.full
def test_pages_examine_no_more_than_their_caps_and_send_few_commands(mongod: EmbeddedServer, filled: Database) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        app = create_app(Monque(client[filled.name], stats_cache_ttl=0), filters=("meta.tenant",))
        for path in paths():
            recorder.commands.clear()
            _, keys, documents = examined(filled, app, path)
            assert keys <= MOST_KEYS, (path, keys)
            assert documents <= MOST_DOCUMENTS, (path, documents)
            assert 0 < len(recorder.commands) <= MOST_COMMANDS, (path, len(recorder.commands))


def test_overview_costs_its_caps_and_not_more_with_more_jobs_of_each_name(filled: Database) -> None:
    text, keys, _ = examined(filled, create_app(Monque(filled, stats_cache_ttl=0)), "/")
    assert keys <= OF_OVERVIEW + MOST_FAILED + 1
    assert '<div class="v ">381+</div>' in text  # The share of 19 names, and the only due job of the rare one.


def test_one_name_is_counted_further_than_its_share_of_the_overview(filled: Database) -> None:
    text, _, _ = examined(filled, create_app(Monque(filled, stats_cache_ttl=0)), f"/jobs?status=failed&name={COMMON}")
    number = filled[dashboard_jobs.JOBS].count_documents({"name": COMMON, "status": "failed"})
    assert 5 < number < MOST_MATCHES
    assert f"<title>{number} failed jobs of {COMMON}" in text


@pytest.mark.full
def test_list_that_is_whole_is_its_own_count(filled: Database) -> None:
    """Nothing is counted where the page has all: here the count would have ended at its cap."""
    some = filled[dashboard_jobs.JOBS].find_one({"status": "failed", "failReason": {"$regex": "^KeyError"}})
    assert some is not None
    recent = filled[dashboard_jobs.JOBS].find_one({"status": "failed"}, sort=[("updatedAt", -1)])
    assert recent is not None
    since = recent["updatedAt"].strftime("%Y-%m-%dT%H:%M:%S.000Z")
    text, _, _ = examined(filled, create_app(Monque(filled)), f"/jobs?status=failed&since={since}")
    assert "<title>1 failed job" in text


def test_viewers_share_the_questions_of_a_moment(mongod: EmbeddedServer, filled: Database) -> None:
    """Ten looks at the Overview within a moment ask the server once how the jobs are, and read the hour once."""
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        app = create_app(Monque(client[filled.name], stats_cache_ttl=600))
        first = get(app, "/").text

        def minutes() -> int:
            return recorder.count(lambda name, command: command.get(name) == f"{dashboard_jobs.JOBS}.minutes")

        assert minutes() == 2  # The hour, and its last minutes.
        for _ in range(9):
            assert len(get(app, "/").text) > len(first) / 2
        assert minutes() == 2
