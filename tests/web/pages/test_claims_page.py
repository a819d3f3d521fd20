"""The screens Claims and of one source: numbers, holders, dead letters in pages, what is hidden, missing indexes."""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.web.http import LOOPS
from tests.web.pages.fetching import get
from trio_monque import Monque
from trio_monque.locks_and_dead_letters import LockStamp, dead_letter_lock, freed
from trio_monque.store.documents import indexes
from trio_monque.store.driver.types import Database
from trio_monque.web import ClaimRules, create_app

HOSTILE: Final = "<script>alert('x')</script>\u202e"
RULES: Final = ClaimRules({"done": None})


def app_of(db: Database, **options: Any) -> Any:
    return create_app(Monque(db), claims={"orders": (db["orders"], RULES)}, **options)


def words(text: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


def cells(text: str) -> list[str]:
    """The numbers of the first source."""
    (row,) = re.findall(r"<tbody>\s*<tr>(.*?)</tr>", text, re.DOTALL)
    return [words(one).strip() for one in re.findall(r'<td class="num[^>]*>(.*?)</td>', row)]


def dead(document_id: Any, error: str = "OSError: no route") -> dict[str, Any]:
    return {"_id": document_id, "lock": dead_letter_lock(3, error), "card": "s3cret"}


@pytest.mark.parametrize("loop", LOOPS)
def test_sources_have_their_numbers_and_holders(db: Database, loop: str) -> None:
    now = datetime.now(UTC)
    late, held = (
        LockStamp.new(by, at, 30, "x").fields for by, at in (("late", now - timedelta(hours=1)), (HOSTILE, now))
    )
    db["orders"].insert_many(
        [{}, {}, {"done": True}, {"lock": freed(1, now + timedelta(hours=1))}, {"lock": late}, {"lock": held}, dead(7)]
    )
    app = app_of(db)
    answer = get(app, "/claims", loop=loop)
    assert answer.status_code == 200
    assert cells(answer.text) == ["2", "1", "2", "1", "1", "0"]
    assert "<title>1 dead letter, claims" in answer.text
    source = get(app, "/claims/orders", loop=loop).text
    assert re.search(r"late 1 \d+ m", words(source))
    assert "&lt;script&gt;" in source
    for text in (answer.text, source):
        assert "<script>alert" not in text
        assert "\u202e" not in text
        assert "s3cret" not in text


def test_dead_letters_come_in_pages_in_the_order_of_their_ids(db: Database) -> None:
    db["orders"].insert_many([dead(place) for place in range(120)])
    app = app_of(db)
    seen, text = [], get(app, "/claims/orders").text
    for _ in range(3):
        seen += re.findall(r'<td class="mono l-id">(\d+)</td>', text)
        found = re.search(r'href="([^"]*)">Next page', text)
        if found is None:
            break
        text = get(app, html.unescape(found[1])).text
    assert seen == [str(place) for place in range(120)]
    assert "First page" in text


def test_strange_letters_are_text(db: Database) -> None:
    other = ObjectId()
    db["orders"].insert_many([dead({"a": HOSTILE}, HOSTILE), dead(HOSTILE, "x" * 5000), dead(other), dead(b"\x00")])
    text = get(app_of(db), "/claims/orders").text
    assert text.count('<td class="mono l-id">') == 4
    assert str(other) in text
    assert "<script>alert" not in text
    assert "\u202e" not in text
    assert len(text) < 20_000


@pytest.mark.parametrize(
    ("show", "shown"),
    [
        (False, "hidden"),
        (lambda job, text, _context: f"{job} {text[:7]}", "None OSError"),
        ("raise", "hidden (the hook"),
    ],
)
def test_errors_of_letters_pass_the_hook(db: Database, show: Any, shown: str, caplog: pytest.LogCaptureFixture) -> None:
    def broken(_job: Any, _text: str, _context: Any) -> str:
        raise ValueError("no")

    db["orders"].insert_one(dead(1))
    text = get(app_of(db, show_errors=broken if show == "raise" else show), "/claims/orders").text
    assert "no route" not in text
    assert shown in text
    assert ("a hook failed for an error of a dead letter" in caplog.text) == (show == "raise")


def test_a_large_collection_without_an_index_says_how_it_is_made(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexes, "LARGE", 2)
    db["big"].insert_many([{} for _ in range(5)])
    db["orders"].insert_one({})
    app = create_app(Monque(db), claims={"big": (db["big"], RULES), "orders": (db["orders"], RULES)})
    answer = get(app, "/claims")
    assert answer.status_code == 200
    assert "serves the claims" in answer.text
    assert '<td class="num">1</td>' in answer.text
    source = get(app, "/claims/big")
    assert source.status_code == 200
    assert "create_claim_index(db.big" in source.text


def test_large_numbers_are_lower_bounds(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("trio_monque.claims.claimed_collection", "trio_monque.web.pages.claims_screen"):
        monkeypatch.setattr(f"{module}.MOST_COUNTED", 4)
    db["orders"].insert_many([{} for _ in range(9)] + [dead(place) for place in range(3)])
    text = get(app_of(db), "/claims").text
    assert cells(text) == ["3+", "0", "0", "0", "3", "0"]


def test_empty_states_say_what_would_be_here(db: Database) -> None:
    assert "create_app(monque, claims=" in get(create_app(Monque(db)), "/claims").text
    text = get(app_of(db), "/claims/orders").text
    assert "There are no dead letters." in text
    assert "max_attempts" in text


@pytest.mark.parametrize(("path", "status"), [("nothing", 404), ("orders?cursor=nonsense", 400), ("..%2f", 404)])
def test_what_is_not_there_is_a_page(db: Database, path: str, status: int) -> None:
    answer = get(app_of(db), f"/claims/{path}")
    assert answer.status_code == status
    assert "<h1>" in answer.text or status == 404


def test_who_may_not_read_sees_no_source(db: Database) -> None:
    app = app_of(db, authorize=lambda _action, _context, _target: False)
    answers = [get(app, path) for path in ("/claims", "/claims/orders", "/claims/nothing")]
    assert {one.status_code for one in answers} == {403}
    assert all("db.orders" not in one.text for one in answers)
