"""Cursors: Monque's forms are understood, ours are the same, and nothing else is."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bson import ObjectId
from hypothesis import given
from hypothesis import strategies as st

from trio_monque import JobFilter, JobStatus
from trio_monque.errors import InvalidCursorError, InvalidOptionError
from trio_monque.jobs import JobSort
from trio_monque.jobs.cursors import ORDERS, Anchor, decode, encode
from trio_monque.jobs.job_query import job_query, page_query

ID = ObjectId("65a1b2c3d4e5f60718293a4b")
MOMENT = datetime(2026, 3, 4, 5, 6, 7, 89_000, tzinfo=UTC)
TICK = timedelta(microseconds=1)


def string(content: object, letter: str = "F") -> str:
    data = content if isinstance(content, bytes) else json.dumps(content, separators=(",", ":")).encode()
    return letter + urlsafe_b64encode(data).decode().rstrip("=")


def structured(**changes: Any) -> dict[str, Any]:
    sort = {"by": "createdAt", "direction": "desc", "value": "2026-03-04T05:06:07.089Z"}
    sort |= {name: value for name, value in changes.items() if name != "id"}
    return {"id": changes.get("id", str(ID)), "sort": sort}


def test_cursors_equal_those_of_monque_byte_for_byte() -> None:
    assert encode(Anchor(ID), "id", "asc", backward=False) == string(ID.binary)
    assert encode(Anchor(ID), "id", "asc", backward=True) == string(ID.binary, "B")
    assert encode(Anchor(ID, MOMENT), "created_at", "desc", backward=False) == string(structured())


def test_cursors_of_monque_are_understood() -> None:
    for letter in "FB":  # It binds no caller.
        assert decode(string(ID.binary, letter), "id", "asc") == Anchor(ID)
        assert decode(string(structured(), letter), "created_at", "desc") == Anchor(ID, MOMENT)
    of_id = structured(by="identifier", direction="asc")
    assert decode(string(of_id), "id", "asc") == Anchor(ID)


NODES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("data").joinpath("node_cursors.json").read_text())
"""Made under Node by the functions of @monque/core 1.10 and the ObjectId of its driver: all orders and directions."""


@pytest.mark.parametrize(
    "vector", NODES, ids=lambda one: f"{one['by']}-{one['direction']}-{one['page']}-{one['id'][:4]}"
)
def test_node_and_this_library_make_the_same_cursor_and_read_it(vector: dict[str, Any]) -> None:
    (by,) = (name for name, theirs in ORDERS.items() if theirs == vector["by"])
    value = None if vector["value"] is None else datetime.fromisoformat(vector["value"])
    anchor = Anchor(ObjectId(vector["id"]), value)
    assert encode(anchor, by, vector["direction"], backward=vector["page"] == "backward") == vector["cursor"]
    assert decode(vector["cursor"], by, vector["direction"]) == anchor


def test_cursor_by_descending_id_of_an_older_release_is_understood() -> None:
    """It has no value, which Node refuses."""
    content = {"id": str(ID), "sort": {"by": "identifier", "direction": "desc"}}
    assert decode(string(content), "id", "desc") == Anchor(ID)


def test_cursor_id_that_begins_with_the_byte_of_a_brace_is_an_id() -> None:
    brace = ObjectId(b"{" + bytes(11))
    assert decode(string(brace.binary), "id", "asc") == Anchor(brace)


IDS = st.binary(min_size=12, max_size=12).map(ObjectId)
MOMENTS = st.datetimes(
    min_value=datetime(1, 1, 2),  # noqa: DTZ001
    max_value=datetime(9998, 1, 1),  # noqa: DTZ001
    timezones=st.just(UTC),
).map(lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000))


@given(IDS, MOMENTS, st.sampled_from(["id", "created_at", "updated_at", "next_run_at"]), st.booleans(), st.booleans())
def test_decoding_an_encoded_cursor_gives_the_same_place(
    job_id: ObjectId, moment: datetime, by: str, ascends: bool, backward: bool
) -> None:
    direction = "asc" if ascends else "desc"
    anchor = Anchor(job_id, None if by == "id" else moment)
    cursor = encode(anchor, by, direction, backward=backward)
    assert cursor == encode(anchor, by, direction, backward=backward)
    assert cursor[0] == ("B" if backward else "F")
    assert decode(cursor, by, direction) == anchor
    with pytest.raises(InvalidCursorError, match="belongs to the order"):
        decode(cursor, by, "desc" if ascends else "asc")


MALFORMED: dict[str, Any] = {
    "nothing": "",
    "no letter": string(ID.binary)[1:],
    "another letter": string(ID.binary, "X"),
    "a small letter": string(ID.binary, "f"),
    "a letter alone": "F",
    "no string": 5,
    "bytes": b"F",
    "no base64": "F!!!!",
    "the other alphabet": "F" + "+/" * 8,
    "a letter of another script": "FÄÄÄÄ",
    "padding": string(ID.binary + b"x") + "==",
    "a length that no bytes have": string(ID.binary) + "A",
    "eleven bytes": string(ID.binary[:11]),
    "thirteen bytes": string(ID.binary + b"x"),
    "broken JSON": string(b'{"id": "65a1b2c3'),
    "JSON of no text": string(b'{"id": "\xff\xff", "sort": {}}'),
    "deep JSON": string(b'{"id":' + b"[" * 100_000),
    "no object": string(b'["id", "sort"]'),
    "no sort": string({"id": str(ID)}),
    "no id": string({"sort": structured()["sort"]}),
    "a sort that is a list": string({"id": str(ID), "sort": ["createdAt"]}),
    "a sort that is nothing": string({"id": str(ID), "sort": None}),
    "an id that is too short": string(structured(id="65a1")),
    "an id that is no hex": string(structured(id="g" * 24)),
    "an id that is a number": string(structured(id=5)),
    "an unknown order": string(structured(by="name")),
    "an order that is a list": string(structured(by=["createdAt"])),
    "an order of ours": string(structured(by="created_at")),
    "an unknown direction": string(structured(direction="up")),
    "no value": string({"id": str(ID), "sort": {"by": "createdAt", "direction": "desc"}}),
    "a value that is a number": string(structured(value=1)),
    "a value that is null": string(structured(value=None)),
    "a date without milliseconds": string(structured(value="2026-03-04T05:06:07Z")),
    "a date without a zone": string(structured(value="2026-03-04T05:06:07.089")),
    "a thirteenth month": string(structured(value="2026-13-04T05:06:07.089Z")),
    "a year of five digits": string(structured(value="+010000-01-01T00:00:00.000Z")),
}


@pytest.mark.parametrize("which", MALFORMED)
def test_malformed_cursor_is_refused(which: str) -> None:
    for by, direction in (("id", "asc"), ("created_at", "desc")):
        with pytest.raises(InvalidCursorError):
            decode(MALFORMED[which], by, direction)


@pytest.mark.parametrize(
    ("which", "problem"),
    [
        ("no letter", "does not begin with F or B"),
        ("a letter of another script", "is not base64url"),
        ("no object", "neither an id nor a place in an order"),
        ("eleven bytes", "neither an id nor a place in an order"),
        ("an unknown order", "unknown order"),
        ("an unknown direction", "unknown order"),
    ],
)
def test_error_names_what_is_wrong_with_a_cursor(which: str, problem: str) -> None:
    with pytest.raises(InvalidCursorError, match=problem):
        decode(MALFORMED[which], "created_at", "desc")


@given(st.text(max_size=80) | st.binary(max_size=60).map(lambda data: string(data)))
def test_any_string_is_a_valid_cursor_or_refused(cursor: str) -> None:
    try:
        anchor = decode(cursor, "created_at", "desc")
    except InvalidCursorError:
        return
    assert decode(encode(anchor, "created_at", "desc", backward=False), "created_at", "desc") == anchor


@pytest.mark.parametrize(
    ("cursor", "by", "direction"),
    [
        (string(ID.binary), "id", "desc"),
        (string(ID.binary), "created_at", "asc"),
        (string(structured()), "created_at", "asc"),
        (string(structured()), "updated_at", "desc"),
        (string(structured()), "id", "asc"),
    ],
)
def test_cursor_of_another_order_is_refused(cursor: str, by: str, direction: str) -> None:
    with pytest.raises(InvalidCursorError, match="belongs to the order by"):
        decode(cursor, by, direction)


@pytest.mark.parametrize(
    ("option", "make"),
    [
        ("status", lambda: JobFilter(status="lost")),
        ("status", lambda: JobFilter(status=5)),  # type: ignore[arg-type]
        ("name", lambda: JobFilter(name=["a", 5])),  # type: ignore[list-item]
        ("name", lambda: JobFilter(name=5)),  # type: ignore[arg-type]
        ("created_from", lambda: JobFilter(created_from=datetime(2026, 1, 1))),  # noqa: DTZ001
        ("older_than", lambda: JobFilter(older_than="yesterday")),  # type: ignore[arg-type]
        ("fail_reason", lambda: JobFilter(fail_reason="")),
        ("created_from", lambda: JobFilter(created_from=MOMENT + TICK, created_to=MOMENT)),
        ("updated_from", lambda: JobFilter(updated_from=MOMENT + TICK, updated_to=MOMENT)),
        ("run_from", lambda: JobFilter(run_from=MOMENT + TICK, run_to=MOMENT)),
        ("status", lambda: job_query(None, [], 1, 0)),
        ("fail_reason", lambda: JobFilter(fail_reason="a", fail_reason_prefix="b")),
        ("sort", lambda: JobSort(by="name")),  # type: ignore[arg-type]
        ("sort", lambda: JobSort(direction="up")),  # type: ignore[arg-type]
        ("sort", lambda: page_query(None, 1, "forward", None, "--id")),
        ("sort", lambda: page_query(None, 1, "forward", None, 5)),  # type: ignore[arg-type]
        ("filter", lambda: page_query(None, 1, "forward", {"name": "a"}, None)),  # type: ignore[arg-type]
        ("name", lambda: JobFilter(name=["a", "\ud800"])),
        ("name", lambda: job_query("\ud800", None, 1, 0)),
        ("fail_reason", lambda: JobFilter(fail_reason="\ud800")),
        ("direction", lambda: page_query(None, 1, "up", None, None)),
        ("limit", lambda: page_query(None, 0, "forward", None, None)),
    ],
)
def test_question_that_cannot_be_is_refused_and_named(option: str, make: Any) -> None:
    with pytest.raises(InvalidOptionError, match=option):
        make()


def test_filter_is_a_value_whatever_it_was_made_of() -> None:
    made = JobFilter(name=iter(["a", "b", "a"]), status=iter(["failed", JobStatus.FAILED]))
    assert made == JobFilter(name=("a", "b"), status="failed")
    assert hash(made) == hash(JobFilter(name=["a", "b"], status=["failed"]))
