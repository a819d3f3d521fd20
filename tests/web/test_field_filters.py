"""Lists filtered by fields of the meta and of the data: only those of the application, by equality, and no oracle."""

from __future__ import annotations

from typing import Any

import pytest
from bson import Decimal128, Int64, ObjectId

from tests.web.http import LOOPS, Ask, asking
from trio_monque import JobFilter, Monque
from trio_monque.errors import InvalidOptionError
from trio_monque.jobs.field_conditions import MOST_FIELDS
from trio_monque.jobs.field_readings import readings_of
from trio_monque.store.driver.types import Database
from trio_monque.store.reads import queries
from trio_monque.web import create_app

FILTERS = ("meta.tenant", "data.n", "data.order.id", "data.tags", "data.__proto__")
ID = "6926f1c2a40be1d7c3a81b52"

VALUES: dict[str, Any] = {
    "text": "5",
    "int": 5,
    "long": Int64(5),
    "float": 5.0,
    "decimal": Decimal128("5"),
    "true": True,
    "word": "true",
    "null": None,
    "id": ObjectId(ID),
    "id text": ID,
    "list": ["x", 5],
    "deep": {"$ne": 1},
}


def filled(db: Database) -> Monque:
    monque = Monque(db)
    for tenant, value in VALUES.items():
        monque.sync.enqueue("mail", {"n": value, "order": {"id": value}}, meta={"tenant": tenant})
    monque.sync.enqueue("pay", {"other": 1}, meta={"tenant": "5"})
    return monque


async def tenants(ask: Ask, query: str) -> Any:
    answer = await ask("GET", f"/jobs?view=full&{query}")
    found = answer.json()
    return answer.status_code, {one["meta"]["tenant"] for one in found["jobs"]} if "jobs" in found else found["error"]


FIVES = {"text", "int", "long", "float", "decimal", "list"}


@pytest.mark.parametrize("loop", LOOPS)
def test_text_stands_for_all_that_it_can_be(db: Database, loop: str) -> None:
    async def work(ask: Ask) -> None:
        for query, expected in (
            ("data.n=5", FIVES),
            ("data.order.id=5.0", FIVES - {"text"}),
            ("data.n=05", set()),
            ("data.n=true", {"true", "word"}),
            ("data.n=null", {"null"}),
            (f"data.n={ID}", {"id", "id text"}),
            ("data.n=x", {"list"}),
            ("data.n=x&data.order.id=5", {"list"}),
            ("meta.tenant=5", {"5"}),
            ("meta.tenant=null", {"null"}),
            ("meta.tenant=", set()),
            ("data.n=%7B%22$ne%22:1%7D", set()),
            ("data.n=1e999", set()),
            ("data.n=9223372036854775808", set()),
            ("data.__proto__=5", set()),
            ("data.n=5&status=failed", set()),
            ("data.n=5&name=mail&sortBy=updatedAt", FIVES),
        ):
            assert await tenants(ask, query) == (200, expected), query

    asking(loop, create_app(filled(db), filters=FILTERS), work)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("-1", ("-1", -1)),
        ("1.5e3", ("1.5e3", 1500.0)),
        ("9223372036854775807", ("9223372036854775807", 2**63 - 1)),
        ("9223372036854775808", ("9223372036854775808", 2.0**63)),
        ("1e999", ("1e999",)),
        ("9" * 5000, ("9" * 5000,)),
        ("NaN", ("NaN",)),
        ("0x5", ("0x5",)),
        ("\N{ARABIC-INDIC DIGIT FIVE}", ("\N{ARABIC-INDIC DIGIT FIVE}",)),
        ("1_0", ("1_0",)),
        ("1" * 24, ("1" * 24, float("1" * 24), ObjectId("1" * 24))),
        ("false", ("false", False)),
    ],
)
def test_readings(text: str, values: tuple[Any, ...]) -> None:
    found = readings_of("data.n", text)
    assert [(type(one), one) for one in found] == [(type(one), one) for one in values]
    assert readings_of("meta.n", text) == (text,)


@pytest.mark.parametrize(
    "query",
    [
        "meta.$where=1",
        "meta.tenant[$ne]=x",
        "meta.tenant.deep=x",
        "data.$where=1",
        "data.n.$gt=1",
        "data..n=1",
        "data.n%00=1",
        "data.=1",
        "data.é=1",
        "data.n=1&data.n=2",
        "data." + "n" * 200 + "=1",
        "data.n=" + "x" * 5000,
        "data.other=1",  # Not in the list.
        "data=1",
        "&".join(f"data.n{number}=1" for number in range(MOST_FIELDS + 1)),
    ],
    ids=lambda query: query[:30],
)
def test_other_fields_are_refused(db: Database, query: str) -> None:
    async def work(ask: Ask) -> None:
        assert (await ask("GET", f"/jobs?view=full&{query}")).status_code == 400

    asking("trio", create_app(filled(db), filters=FILTERS), work)


def test_fields_belong_to_the_full_view_and_to_lists_and_selections_have_none(db: Database) -> None:
    async def work(ask: Ask) -> None:
        assert (await ask("GET", "/jobs?meta.tenant=a")).status_code == 400
        assert (await ask("GET", "/jobs/stats?meta.tenant=a")).status_code == 400
        body = {"everything": True, "meta.tenant": "a"}
        assert (await ask("POST", "/jobs/actions/count", json=body)).status_code == 400
        assert (await ask("GET", "/jobs?view=full&meta.tenant=5")).status_code == 200

    asking("trio", create_app(filled(db), filters=FILTERS), work)
    with pytest.raises(TypeError):
        filled(db).sync.delete_jobs(fields={"meta.tenant": "a"})  # type: ignore[call-arg]


def test_data_that_a_hook_makes_cannot_be_guessed_by_a_filter(db: Database) -> None:
    monque = filled(db)

    async def of_one_name(ask: Ask) -> None:
        for query in ("data.n=5", "data.n=5&name=pay", "data.n=5&meta.tenant=5&name=pay"):
            status, error = await tenants(ask, query)
            assert (status, error[:16]) == (400, "The data of some")
        assert await tenants(ask, "data.n=5&name=mail") == (200, FIVES)
        assert await tenants(ask, "meta.tenant=5") == (200, {"5"})

    async def of_all(ask: Ask) -> None:
        for query in ("data.n=5", "data.n=5&name=mail"):
            assert (await tenants(ask, query))[0] == 400
        assert await tenants(ask, "meta.tenant=5") == (200, {"5"})

    asking("trio", create_app(monque, filters=FILTERS, serialize_payload_by_name={"pay": str}), of_one_name)
    asking("trio", create_app(monque, filters=FILTERS, serialize_payload=str), of_all)


def test_denied_caller_learns_nothing_of_filters(db: Database) -> None:
    async def work(ask: Ask) -> None:
        for query in ("data.n=5", "data.other=5", "meta.tenant=5"):
            assert (await ask("GET", f"/jobs?view=full&{query}")).json() == {"error": "Read access denied"}

    asking("trio", create_app(filled(db), filters=FILTERS, authorize=lambda *_: False), work)


def test_page_says_how_far_it_looked_and_goes_on(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monque = filled(db)
    monkeypatch.setattr(queries, "MOST_EXAMINED", 4)

    async def work(ask: Ask) -> None:
        page = (await ask("GET", "/jobs?view=full&limit=1&meta.tenant=text")).json()
        assert (page["jobs"], page["isCapped"], page["examined"]) == ([], True, 4)
        looked = 1
        while page["hasNextPage"]:
            path = f"/jobs?view=full&limit=1&meta.tenant=text&cursor={page['cursor']}"
            page, looked = (await ask("GET", path)).json(), looked + 1
            if page["jobs"]:
                break
        assert [one["meta"]["tenant"] for one in page["jobs"]] == ["text"]
        assert looked == 4

    asking("trio", create_app(monque, filters=FILTERS), work)


def test_description_lists_the_fields(db: Database) -> None:
    async def work(ask: Ask) -> Any:
        return (await ask("GET", "/../../openapi.json")).json()

    found = asking("trio", create_app(Monque(db), filters=FILTERS), work)
    names = [one["name"] for one in found["paths"]["/api/v1/jobs"]["get"]["parameters"]]
    assert names[-len(FILTERS) :] == list(FILTERS)


@pytest.mark.parametrize("filters", [["status"], ["meta.$x"], ["meta"], [5], "meta.tenant", ["data.a b"]])
def test_filters_are_checked(db: Database, filters: Any) -> None:
    with pytest.raises(InvalidOptionError, match="filters"):
        create_app(Monque(db), filters=filters)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"status": 1},
        {"meta.a": []},
        {"meta.a": {"$ne": 1}},
        {"data.a": float("nan")},
        {"data.a": 2**63},
        {"data.a": "\ud800"},
        {"data.a": b"x"},
        {5: 1},
        "meta.a",
        5,
    ],
    ids=repr,
)
def test_filter_of_the_client_is_checked(fields: Any) -> None:
    with pytest.raises(InvalidOptionError, match="fields"):
        JobFilter(fields=fields)
