"""The screen Job of a parent of job nurseries, and of a child."""

from __future__ import annotations

import re
from html import unescape
from itertools import count
from typing import Any

import pytest
from bson import ObjectId

from tests.support.store import PAST
from tests.web.pages.fetching import get
from tests.web.pages.job_documents import job_document
from trio_monque import Job, Monque
from trio_monque.jobs.claimable import unstarted_reason
from trio_monque.jobs.nursery_scopes import child_id
from trio_monque.store.driver.types import Collection, Database
from trio_monque.web import create_app

# Of texts: their ids are in the names of tests.
SCOPE, PARENT, FAILED = ObjectId("a" * 24), ObjectId("b" * 24), ObjectId("c" * 24)


def put_parent(jobs: Collection, **fields: Any) -> None:
    nursery = {"ownScope": SCOPE, "scopeTry": 1, "scopeFailed": {"undo": [FAILED]}, "steps": {"price": 7}}
    jobs.insert_one({**job_document("order", status="processing"), "_id": PARENT, **nursery, **fields})


numbers = count()


def put_child(jobs: Collection, name: str, status: str, block: str = "place", **fields: Any) -> ObjectId:
    own_id = child_id(SCOPE, block, str(next(numbers)))
    child = {"_id": own_id, "scope": SCOPE, "parent": PARENT, "block": block, "scopeRun": 1}
    found: ObjectId = jobs.insert_one({**job_document(name, status=status), **child, **fields}).inserted_id
    return found


def words_of(page: str, part: str) -> str:
    section = re.search(rf'<section class="panel" id="{part}".*?</section>', page, re.DOTALL)
    return "" if section is None else unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", section.group())))


def shown(db: Database, job_id: object, **options: Any) -> str:
    answer = get(create_app(Monque(db), **options), f"/jobs/{job_id}")
    assert answer.status_code == 200, answer.text
    return answer.text


def test_parent_shows_its_blocks_with_links_to_live_children(db: Database, jobs: Collection) -> None:
    put_parent(jobs)
    running = put_child(jobs, "charge", "processing", childKey="first")
    pending = put_child(jobs, "pack", "pending")
    ended = put_child(jobs, "reserve", "completed")
    page = shown(db, PARENT)
    words = words_of(page, "children")
    assert "Block place 1 running, 1 pending" in words
    assert "Block failed undo" in words
    assert f"Failed by {FAILED}" in words
    assert f"Running {running} charge, first" in words
    assert f"Pending {pending} pack" in words
    assert str(ended) not in page
    for one in (running, pending, FAILED):
        assert f'href="/jobs/{one}"' in page
    assert '"price"' in words_of(page, "steps")
    listed = get(create_app(Monque(db)), f"/jobs?parent={PARENT}&status=done").text
    assert set(re.findall(r'href="/jobs/(\w{24})', listed)) == {str(ended)}


def test_job_without_nurseries_has_no_such_panel(db: Database, jobs: Collection) -> None:
    found = jobs.insert_one(job_document("order")).inserted_id
    page = shown(db, found)
    assert words_of(page, "children") == ""
    assert "Child of" not in words_of(page, "facts")


def test_many_children_are_behind_a_link(db: Database, jobs: Collection) -> None:
    put_parent(jobs)
    for _ in range(25):
        put_child(jobs, "charge", "pending")
    ended = put_child(jobs, "reserve", "completed")
    page = shown(db, PARENT)
    words = words_of(page, "children")
    assert "Block place 25 pending" in words
    assert len(re.findall(r"Pending \w{24} charge", words)) == 20
    assert f'href="/jobs?parent={PARENT}"' in page
    listed = get(create_app(Monque(db)), f"/jobs?parent={PARENT}").text
    assert "Children of" in listed
    found = set(re.findall(r'href="/jobs/(\w{24})', listed))
    assert len(found) == 26
    assert str(ended) in found


def test_children_that_the_caller_may_not_see_are_left_out(db: Database, jobs: Collection) -> None:
    put_parent(jobs)
    hidden, seen = put_child(jobs, "secret", "processing"), put_child(jobs, "pack", "pending")

    def authorize(action: str, context: Any, target: Any) -> bool:
        return not (isinstance(target, Job) and target.name == "secret")

    page = shown(db, PARENT, authorize=authorize)
    assert str(seen) in page
    assert str(hidden) not in page


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": "cancelled", "block": "undo", "scopeCancel": 1}, f"Cancelled by {FAILED} failed in the same block"),
        ({"status": "cancelled", "scopeCancel": 3}, "Cancelled by run 3 of its parent"),
        ({"status": "cancelled", "scopeCancel": 2**53 - 1}, "Cancelled by the deletion of its parent"),
        ({"status": "cancelled"}, "Cancelled by a caller"),
        (
            {"status": "cancelled", "startBy": PAST, "failReason": unstarted_reason(PAST)},
            "Cancelled by its start_by no run had begun by 2026-01-01 00:00:00 UTC",
        ),
        ({"status": "cancelled", "startBy": PAST}, "Cancelled by a caller"),
        ({"status": "completed"}, ""),
    ],
)
def test_child_shows_its_parent_and_who_cancelled_it(
    db: Database, jobs: Collection, fields: dict[str, Any], words: str
) -> None:
    put_parent(jobs)
    child = put_child(jobs, "charge", **{"childKey": "first", "block": "place", **fields})
    page = shown(db, child)
    facts = words_of(page, "facts")
    assert f"Child of {PARENT} In block {fields.get('block', 'place')} As first" in facts
    assert f'href="/jobs/{PARENT}"' in page
    assert words in facts
    assert ("Cancelled by" in facts) == bool(words)


def test_child_of_a_document_that_is_not_a_job_is_shown_all_the_same(db: Database, jobs: Collection) -> None:
    put_parent(jobs, failCount="three")
    child = put_child(jobs, "charge", "cancelled", block="undo", scopeCancel=1)
    assert "Cancelled by run 1 of its parent" in words_of(shown(db, child), "facts")
