"""Claims on other collections over HTTP: counts, dead letters, and their return."""

from __future__ import annotations

import json
import logging
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import bson
import pytest
import trio
from bson import Binary, Decimal128, Int64, ObjectId

from tests.web.http import LOOPS, Ask, asking
from trio_monque import Monque
from trio_monque.claims import claimed_collection, create_claim_index
from trio_monque.errors import InvalidDatabaseError, InvalidOptionError
from trio_monque.locks_and_dead_letters import LockStamp, dead_letter_lock, freed
from trio_monque.store.documents import indexes
from trio_monque.store.driver.types import Database
from trio_monque.web import ClaimRules, allow_all, create_app
from trio_monque.web.api.schema_check import is_valid
from trio_monque.web.api.schemas import ref

RULES: Final = ClaimRules({"done": None}, lock_field="claim")
INVALID: Final = (400, {"error": "Input validation failed"})
NO_SOURCE: Final = (404, {"error": "Source not found"})

# In the order of MongoDB, which compares values of several types.
IDS: Final[list[Any]] = [
    None,
    -1,
    2.5,
    Int64(2**40),
    Decimal128("1e30"),
    "",
    "6926ee37f2120b6d1c3a81b5",
    "7",
    "a/b?c",
    {"shop": 1, "no": "x"},
    Binary(b"\x00\xff"),
    ObjectId("0" * 24),
    ObjectId("6926ee37f2120b6d1c3a81b5"),
    True,
    datetime(2030, 1, 2, tzinfo=UTC),
]


def dead(document_id: Any, error: str | None = "OSError: no route") -> dict[str, Any]:
    return {"_id": document_id, "claim": dead_letter_lock(3, error or ""), "card": "s3cret"}


def app_of(db: Database, **options: Any) -> Any:
    return create_app(Monque(db), claims={"orders": (db["orders"], RULES)}, **{"authorize": allow_all, **options})


async def answer(ask: Ask, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    found = await ask(method, path, **({} if body is None else {"json": body}))
    return found.status_code, found.json()


@pytest.mark.parametrize("loop", LOOPS)
def test_sources_have_the_numbers_of_their_locks(db: Database, loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claimed_collection, "MOST_COUNTED", 5)
    monkeypatch.setattr("trio_monque.web.api.claims_answers.MOST_COUNTED", 5)
    now = db.command("hello")["localTime"].replace(tzinfo=UTC)
    held, over = (LockStamp.new("w1", at, 20.0, "n").fields | {"tries": 0} for at in (now, now - timedelta(hours=1)))
    locks = [{"by": 5}, *[None] * 7, *[freed(1, now + timedelta(hours=1))] * 2, held, over, dead_letter_lock(3, "no")]
    db["orders"].insert_many([{"claim": lock} for lock in locks])
    db["orders"].insert_one({"done": True})

    async def work(ask: Ask) -> Any:
        return await answer(ask, "GET", "/claims")

    status, found = asking(loop, app_of(db), work)
    assert status == 200
    assert is_valid(found, ref("ClaimSourceList")), found
    (source,) = found["sources"]
    counts = source.pop("counts")
    assert source == {"source": "orders", "collection": f"{db.name}.orders", "problem": None}
    (holder,) = counts.pop("holders")
    assert (holder["by"], holder["held"]) == ("w1", 2)
    assert counts.pop("capped") == ["free"]
    assert counts == {"free": 4, "waiting": 2, "held": 2, "overdue": 1, "dead": 1, "unreadable": 1}


def test_source_without_an_index_has_a_problem_and_the_others_have_their_numbers(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexes, "LARGE", 2)
    db["orders"].insert_many([dead(one) for one in range(4)])
    claims = {"orders": (db["orders"], RULES), "small": (db["small"], ClaimRules())}
    app = create_app(Monque(db), claims=claims, authorize=allow_all)

    async def work(ask: Ask) -> list[Any]:
        first, second = (await answer(ask, "GET", "/claims"))[1]["sources"]
        assert second["counts"]["dead"] == 0
        assert first["counts"] is None
        assert "create_claim_index" in first["problem"]
        return [
            await answer(ask, "GET", "/claims/orders/dead"),
            await answer(ask, "POST", "/claims/orders/actions/readmit", {"everything": True}),
        ]

    for status, found in asking("trio", app, work):
        assert status == 409
        assert "create_claim_index" in found["error"]
    trio.run(partial(create_claim_index, db["orders"], RULES.filter, lock_field="claim"))

    async def served(ask: Ask) -> Any:
        return (await answer(ask, "GET", "/claims"))[1]["sources"][0]["counts"]["dead"]

    assert asking("trio", app, served) == 4


def test_pages_have_every_dead_letter_once_whatever_its_id_and_nothing_else_of_its_document(db: Database) -> None:
    db["orders"].insert_many([dead(one) for one in IDS])
    db["orders"].insert_one({"_id": "of another", "done": True, "claim": dead_letter_lock(3, "no")})
    db["orders"].insert_one({"_id": "free"})

    async def work(ask: Ask) -> list[Any]:
        found: list[Any] = []
        cursor = ""
        while True:
            reply = await ask("GET", "/claims/orders/dead?limit=4" + (f"&cursor={cursor}" if cursor else ""))
            page = reply.json()
            assert is_valid(page, ref("DeadLetterPage")), page
            assert "s3cret" not in reply.text
            assert page["hasNextPage"] == (page["cursor"] is not None)
            found += page["letters"]
            if not page["hasNextPage"]:
                return found
            cursor = page["cursor"]

    found = asking("trio", app_of(db), work)
    assert [one["attempts"] for one in found] == [3] * len(IDS)
    assert {one["error"] for one in found} == {"OSError: no route"}
    assert len({one["id"] for one in found}) == len(IDS)

    # And each id is taken back as it was given.
    async def readmit(ask: Ask) -> None:
        for one, document_id in zip(found, IDS, strict=True):
            sent = {"ids": [one["id"]] * 2}
            assert await answer(ask, "POST", "/claims/orders/actions/readmit", sent) == (200, {"count": 1})
            assert "claim" not in (db["orders"].find_one({"_id": {"$eq": document_id}}) or {"claim": 1})

    asking("trio", app_of(db), readmit)


def test_errors_pass_the_hook(db: Database) -> None:
    db["orders"].insert_many([dead(1, "card 4111"), {**dead(2), "claim": dead_letter_lock(3, "x" * 5000)}])
    db["orders"].update_one({"_id": 2}, {"$set": {"claim.error": "y" * 5000}})

    def masked(job: Any, text: str, context: Any) -> str | None:
        assert job is None
        return None if text.startswith("y") else text.replace("4111", "…")

    async def work(ask: Ask) -> list[Any]:
        return [one["error"] for one in (await answer(ask, "GET", "/claims/orders/dead"))[1]["letters"]]

    assert asking("trio", app_of(db), work) == ["card 4111", "y" * 2000]
    assert asking("asyncio", app_of(db, show_errors=masked), work) == ["card …", None]
    assert asking("trio", app_of(db, show_errors=False), work) == [None, None]


def test_dead_letters_are_readmitted_by_their_ids_or_all_and_each_try_is_a_line(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_monque.web.audit")
    db["orders"].insert_many([dead(str(one)) for one in "abcdefg"])
    db["orders"].insert_one({"_id": "free", "claim": None})
    asked: list[Any] = []

    def authorize(action: str, context: Any, target: Any) -> bool:
        asked.append((action, target))
        return action == "read" or (action == "readmit" and "c" not in target.get("ids", ()))

    path = "/claims/orders/actions/readmit"

    async def work(ask: Ask) -> None:
        bodies: list[Any] = [
            {},
            {"ids": []},
            {"ids": [5]},
            {"ids": ["a"] * 101},
            {"ids": ["a"], "everything": True},
            None,
        ]
        for body in bodies:
            assert await answer(ask, "POST", path, body) == INVALID
        assert await answer(ask, "POST", path, {"ids": ["a", "b", "free", "no"]}) == (200, {"count": 2})
        # A condition with a regular expression would name them all, behind the back of `authorize`.
        pattern = json.dumps({"$regularExpression": {"pattern": ".", "options": ""}})
        assert await answer(ask, "POST", path, {"ids": [pattern, '{"$gt": ""}']}) == (200, {"count": 0})
        assert (await answer(ask, "POST", path, {"ids": ["d", "c"]}))[0] == 403
        assert await answer(ask, "POST", path, {"everything": True}) == (200, {"count": 5})
        assert await answer(ask, "POST", "/claims/bills/actions/readmit", {"everything": True}) == NO_SOURCE

    asking("trio", app_of(db, authorize=authorize), work)
    assert ("readmit", {"source": "orders", "ids": ["d", "c"]}) in asked
    assert ("readmit", {"source": "bills", "everything": True}) in asked
    assert db["orders"].count_documents({"claim": {"$ne": None}}) == 0
    lines = [record.getMessage() for record in caplog.records if record.name == "trio_monque.web.audit"]
    assert [line.partition(": ")[2] for line in lines[6:]] == [
        '{"source": "orders", "ids": 4}, answered 200 (jobs: 2)',
        '{"source": "orders", "ids": 2}, answered 200 (jobs: 0)',
        '{"source": "orders", "ids": 2}, answered 403 (jobs: -)',
        '{"source": "orders", "everything": true}, answered 200 (jobs: 5)',
        '{"source": "bills", "everything": true}, answered 404 (jobs: -)',
    ]


def test_order_of_checks(db: Database) -> None:
    async def work(ask: Ask) -> list[tuple[int, Any]]:
        return [
            await answer(ask, "POST", "/claims/orders/actions/readmit", {"everything": True}),
            await answer(ask, "GET", "/claims/bills/dead"),
            (200, sorted(one for one, may in (await answer(ask, "GET", "/permissions"))[1]["actions"].items() if may)),
        ]

    expected = [(403, {"error": "Management surface is read-only"}), NO_SOURCE, (200, ["metrics", "read"])]
    assert asking("trio", app_of(db, read_only=True), work) == expected
    readmit, _, (_, actions) = asking("trio", create_app(Monque(db), authorize=allow_all), work)
    assert readmit == (403, {"error": "Unsupported action"})
    assert "readmit" not in actions
    _, _, (_, actions) = asking("trio", app_of(db), work)
    assert "readmit" in actions


@pytest.mark.parametrize("place", [b"", b"\x00", b"x" * 40, {}, {"id": 1}, {"_id": 1, "x": 2}, "é", "===="])
def test_cursor_of_another_shape_is_refused(db: Database, place: Any) -> None:
    raw = bson.encode(place) if isinstance(place, dict) else place
    cursor = raw if isinstance(raw, str) else urlsafe_b64encode(raw).rstrip(b"=").decode()

    async def work(ask: Ask) -> Any:
        return await ask("GET", "/claims/orders/dead", params={"cursor": cursor})

    found = asking("trio", app_of(db), work)
    assert (found.status_code, found.json()) == (400, {"error": "invalid cursor: it is not one of this list"})


def test_cursor_is_a_value_and_never_an_operator(db: Database) -> None:
    db["orders"].insert_many([dead(one) for one in (1, "a")])
    place = bson.encode({"_id": {"$gt": "$_id", "$where": "1"}})

    async def work(ask: Ask) -> Any:
        return await ask("GET", "/claims/orders/dead", params={"cursor": urlsafe_b64encode(place).decode()})

    found = asking("trio", app_of(db), work)
    assert (found.status_code, found.json()) == (200, {"letters": [], "cursor": None, "hasNextPage": False})


@pytest.mark.parametrize(
    "claims",
    [
        [],
        {"a/b": (None, RULES)},
        {"": (None, RULES)},
        {".": (None, RULES)},
        {5: (None, RULES)},
        {"a": RULES},
        {"a": (None, {"done": None})},
    ],
)
def test_invalid_claims_are_named(db: Database, claims: Any) -> None:
    with pytest.raises(InvalidOptionError, match="claims"):
        create_app(Monque(db), claims=claims)


def test_source_needs_a_collection_and_valid_rules(db: Database) -> None:
    with pytest.raises(InvalidDatabaseError, match="not a pymongo"):
        create_app(Monque(db), claims={"orders": ("orders", RULES)})
    for rules in ({"filter": {"lock": None}}, {"lock_field": "a.b"}, {"filter": 5}):
        with pytest.raises(InvalidOptionError):
            ClaimRules(**rules)
