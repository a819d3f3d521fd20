"""A page filtered by a field of the meta or the data: with the index of the field, and up to the cap without."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support import many_jobs
from tests.support.examined import examined
from tests.support.store import handle
from trio_monque import JobFilter
from trio_monque.jobs.cursors import anchor_of, encode
from trio_monque.jobs.job_query import page_query
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes
from trio_monque.store.reads import queries

NUMBER = 20_000
CAP = 2_000
RARE = JobFilter(fields={"meta.tenant": "rare"})


def with_tenants() -> Iterator[dict[str, Any]]:
    for number, one in enumerate(many_jobs.documents(NUMBER)):
        yield {**one, "meta": {"tenant": "rare" if number < 60 else f"t{number % 7}"}}


@pytest.fixture
def store(db: Database, jobs: Collection) -> JobCollection:
    many_jobs.insert_all(jobs, with_tenants())
    store = handle(db)
    indexes.ensure(store)
    return store


@pytest.mark.full
def test_page_of_a_rare_tenant_costs_its_jobs_with_the_index_and_the_cap_without(
    db: Database, store: JobCollection
) -> None:
    query = page_query(None, 50, "forward", RARE, "-created_at")
    page, cost = examined(db, lambda: queries.get_page(store, query, CAP))
    assert (page.jobs, page.is_capped, page.examined) == ([], True, CAP)
    assert cost.documents <= 2 * CAP

    indexes.ensure(store, also=[indexes.of_field("meta.tenant")])
    page, cost = examined(db, lambda: queries.get_page(store, query, CAP))
    assert (len(page.jobs), page.is_capped) == (51, False)
    assert cost.documents == 51
    assert cost.keys <= 52
    assert not cost.sorted
    assert {plan for plan in cost.plans if plan} == {"IXSCAN { meta.tenant: 1, createdAt: 1, _id: 1 }"}


@pytest.mark.full
def test_page_behind_a_cursor_with_several_values_merges_their_ranges(db: Database, store: JobCollection) -> None:
    """Beside a field without an index, which is checked on the documents."""
    indexes.ensure(store, also=[indexes.of_field("meta.tenant")])
    both = JobFilter(fields={"data.number": [*range(0, 60, 2)], "meta.tenant": ["rare", "t3"]})
    seen: list[int] = []
    cursor = None
    for _ in range(4):
        query = page_query(cursor, 10, "forward", both, "created_at")
        page, cost = examined(db, lambda query=query: queries.get_page(store, query, CAP))  # type: ignore[misc]
        # It begins with few, and looks eight times as far each time.
        assert cost.documents <= 2 * CAP
        assert not cost.sorted
        seen += [job.data["number"] for job in page.jobs[:10]]
        if len(page.jobs) <= 10:
            break
        cursor = behind(page.jobs[9])
    assert seen == [*range(0, 60, 2)]


def behind(job: Any) -> str:
    return encode(anchor_of(job, "created_at"), "created_at", "asc", backward=False)


@pytest.mark.full
@pytest.mark.parametrize("by", ["id", "updated_at", "next_run_at"])
def test_other_orders_are_capped(db: Database, store: JobCollection, by: Any) -> None:
    indexes.ensure(store, also=[indexes.of_field("meta.tenant")])
    page, cost = examined(db, lambda: queries.get_page(store, page_query(None, 50, "backward", RARE, by), CAP))
    assert page.is_capped
    assert cost.documents <= 2 * CAP + NUMBER // 100
