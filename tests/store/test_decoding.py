"""Documents -> jobs: along the usual path as by all the rules, and what is not a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import bson
import pytest
from bson import DatetimeMS, Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.jobs_in_memory import LATER, claimed, pending
from tests.support.malformed import ELEMENTS, with_field
from tests.support.thoroughly import examples, in_full
from trio_monque import Job
from trio_monque.errors import BrokenDocumentError
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import fence
from trio_monque.jobs.conditional_write import applied
from trio_monque.jobs.job import REQUIRED, value_at
from trio_monque.jobs.job_parts import IN_PARTS, FollowUp, FollowUpChosen, FollowUpOwed, FollowUpParked
from trio_monque.store import decoding
from trio_monque.store.codec import LENIENT, OWN_OPTIONS, document_of
from trio_monque.store.decoding import job_of, job_of_unusual
from trio_monque.store.fields import FIELD, TYPES

AT = datetime(2030, 5, 6, 7, 8, 9)  # noqa: DTZ001  # What an unaware handle gives.

# As a caller's handle may give what our own fields hold, and as they are read apart from it.
READINGS = {
    "naive": CodecOptions[dict[str, Any]](),
    "aware": CodecOptions[dict[str, Any]](tz_aware=True),
    "in Tokyo": CodecOptions[dict[str, Any]](tz_aware=True, tzinfo=timezone(timedelta(hours=9))),
    "our own": OWN_OPTIONS,
}

MOMENTS = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001  # BSON takes them for UTC.
NUMBERS = (
    st.sampled_from([0, 1, 2, 2**31 - 1, -1, Int64(0), Int64(3), 2**53, 2**53 + 1, 2**62, -(2**62)])
    | st.sampled_from([0.0, -0.0, 1.0, 1.5, -1.0, 2.0**53, 2.0**54, float("inf"), float("nan")])
    | st.sampled_from([True, False, Decimal128("3")])
)
WORDS = st.sampled_from(["", "greet", "pending", "processing", "failed", "limbo", "fail", "continue", "Europe/Berlin"])
OTHERS = st.sampled_from([[], {}, ["fail"], {"$gt": ""}, [{"error": "x"}, 7], b"bytes", None, ObjectId("a" * 24)])
ANYTHING = NUMBERS | WORDS | OTHERS | MOMENTS

COUNTED_IN_PARTS = ("limits.max_attempts", "limits.max_rescues", "schedule.version")

# As this library writes it, and as anybody might have.
USUAL: Mapping[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("id", "follows", "again.call"), st.builds(ObjectId)),
    **dict.fromkeys(("nursery.id", "child.scope", "child.parent", "internals.last_scope"), st.builds(ObjectId)),
    **dict.fromkeys(("nursery.since_attempt", "child.run", "child.cancelled_by"), st.integers(0, 9)),
    "nursery.steps": st.sampled_from([{}, {"a": 1, "b.c": [2]}]),
    "nursery.failed": st.sampled_from([{}, {"0": [ObjectId("a" * 24)]}]),
    **dict.fromkeys(("child.block", "child.key"), WORDS),
    **{name: MOMENTS for name, kind in TYPES.items() if "datetime" in kind},
    **dict.fromkeys(
        ("name", "fail_reason", "unique_key", "schedule.cron", "schedule.timezone", "internals.receipt"), WORDS
    ),
    **dict.fromkeys(("schedule.changed_from", "schedule.changed_by"), WORDS),
    **dict.fromkeys(("claim.by", "claim.token"), WORDS),
    "status": st.sampled_from(["pending", "processing", "completed", "failed", "cancelled"]),
    **dict.fromkeys(
        (
            "fail_count",
            "attempts",
            "rescues",
            "internals.rev",
            "limits.max_attempts",
            "limits.max_rescues",
            "schedule.version",
        ),
        st.integers(0, 9),
    ),
    "claim.heartbeat_interval": st.integers(0, 2**31 - 1),
    "limits.timeout": st.floats(0.001, 9),
    "schedule.on_exhausted": st.sampled_from(["fail", "continue"]),
    **dict.fromkeys(("data", "result", "progress", "saved", "follow_up", "again.data"), ANYTHING),
    "errors": st.just([{"error": "x"}]),
    "meta": st.sampled_from([{}, {"tenant": "acme"}, {"tenant": 7, "trace": "x"}]),
}


# These are always looked at by all the rules, so half of the documents are without them.
SELDOM = {
    *("limits.timeout", "limits.max_rescues", "schedule.on_exhausted", "errors"),
    *("nursery.failed", "nursery.steps"),
}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """About half of them are jobs: any field may be absent, or be what it must not."""
    optional = FIELD.keys() - set(REQUIRED) - draw(st.sampled_from([SELDOM, set()]))
    held = {*REQUIRED, "status", *draw(st.frozensets(st.sampled_from(sorted(optional))))}
    # One or two: of a document that is all wrong, only the first error would be seen.
    some = st.sets(st.sampled_from(sorted(held)), min_size=1, max_size=2)
    absent, wrong = draw(st.just((set(), set())) | st.tuples(some, st.just(set())) | st.tuples(st.just(set()), some))
    held -= absent
    order = draw(st.permutations(sorted(held)))
    document = {FIELD[name]: draw(ANYTHING if name in wrong else USUAL[name]) for name in order}
    return {**document, **draw(st.sampled_from([{}, {"somebodyElses": 1}]))}


def outcome(decode: Callable[[Mapping[str, Any]], Job], document: Mapping[str, Any]) -> object:
    """All that can differ: 3 and Int64(3), the zones of moments, and the text of the error."""
    try:
        job = decode(document)
    except BrokenDocumentError as error:
        return type(error), str(error)
    return [(type(value), repr(value)) for value in (value_at(job, name) for name in FIELD)]


WHOLE = {"_id": ObjectId(), "name": "a", "status": "pending", "nextRunAt": AT, "createdAt": AT, "updatedAt": AT}


def test_every_kind_of_field_is_tried() -> None:
    assert USUAL.keys() == FIELD.keys()


@pytest.mark.full
@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.larger_in_full
@settings(max_examples=examples(in_full(15, 120), 300))
@given(documents())
@example({**WHOLE, "failCount": -1})
@example({**WHOLE, "maxRetries": True})
@example({**WHOLE, "attempts": 2**53 + 1})
@example({**WHOLE, "heartbeatInterval": -30_000})
@example({**WHOLE, "heartbeatInterval": 2**54})
@example({**WHOLE, "rev": None, "data": None})
@example({**WHOLE, "claimedBy": None, "lockedAt": None, "failReason": None})
@example({**WHOLE, "status": "limbo", "rescues": 2.0})
def test_usual_path_gives_the_same_job_and_the_same_errors_as_all_the_rules(
    reading: str, document: dict[str, Any]
) -> None:
    read = bson.decode(bson.encode(document), READINGS[reading])
    assert outcome(job_of, read) == outcome(job_of_unusual, read)


ABSENT = object()
KINDS: tuple[object, ...] = (
    *(ABSENT, None, True, 0, 3, -1, 2**53 + 1, 2**62, 1.0, 1.5, float("nan"), Decimal128("3")),
    *("text", AT, DatetimeMS(2**60), [], {}, b""),
)


@pytest.mark.parametrize("field", sorted(FIELD.values()))
def test_field_of_any_kind_is_decoded_alike_on_both_paths(field: str) -> None:
    for value in KINDS:
        document = {name: held for name, held in {**WHOLE, field: value}.items() if held is not ABSENT}
        # The driver's large numbers are of a type of their own, and so never usual.
        for read in (document, bson.decode(bson.encode(document), OWN_OPTIONS)):
            assert outcome(job_of, read) == outcome(job_of_unusual, read), value


ALLOWED = {
    **{name: {"NoneType" if part == "None" else part for part in kind.split(" | ")} for name, kind in TYPES.items()},
    "follow_up": {"FollowUpOwed", "FollowUpChosen", "FollowUpParked", "NoneType"},
}
OF_MOST_JOBS = {"NoneType"}  # They do not have the part.


@pytest.mark.parametrize("field", sorted(FIELD.values()))
def test_field_of_any_bson_type_has_the_type_of_its_attribute_or_breaks_the_document(field: str) -> None:
    """Exactly that type: callers do not expect a subclass, such as `Code` of `str`."""
    are_jobs = 0
    for kind, element in ELEMENTS.items():
        try:
            job = job_of(bson.decode(with_field(WHOLE, field, element).raw, LENIENT))
        except BrokenDocumentError:
            continue
        are_jobs += 1
        for name, types in ALLOWED.items():
            if types == {"Mapping[str, str]"}:
                assert {type(one) for pair in job.meta.items() for one in pair} <= {str}, (kind, name)
            elif not types & {"Any", "Result_co", "Sequence[Mapping[str, Any]]"}:
                held = type(value_at(job, name)).__name__
                allowed = types | OF_MOST_JOBS if name in IN_PARTS else types
                assert held in allowed or (held == "int" and "float" in types), (kind, name)
    assert are_jobs


@pytest.mark.parametrize("stored", [0, 0.0, False, "", {}, b"", 7, "text", {"error": "x"}, [1, "x", None]])
def test_history_of_another_type_is_empty(stored: Any) -> None:
    """A false value too: a job with it could not even store its next failure."""
    document = {**WHOLE, FIELD["errors"]: stored}
    assert list(job_of(document).errors) == []


LIVES = {
    "new": pending(data={"a": 1}, unique_key="k"),
    "claimed": claimed(attempts=2, rescues=1),
    "completed": applied(claimed(), transitions.complete(claimed(), LATER, {"b": 2})),
    "recurring": claimed(repeat_interval="* * * * *", timezone="Europe/Berlin"),
    "snoozed": applied(claimed(saved=1, max_attempts=3), transitions.snooze(claimed(), LATER, LATER)),
}


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("life", LIVES)
def test_document_as_this_library_writes_it_takes_the_usual_path(
    monkeypatch: pytest.MonkeyPatch, life: str, reading: str
) -> None:
    """Else it would be right, and several times as slow."""
    read = bson.decode(bson.encode(document_of(LIVES[life])), READINGS[reading])
    monkeypatch.delattr(decoding, "job_of_unusual")
    assert job_of(read) == LIVES[life]


@pytest.mark.parametrize(
    ("wrong", "reported"),
    [
        ({"status": "limbo"}, "its status is 'limbo'"),
        ({"failCount": "three"}, "its failCount is 'three'"),
        ({"nextRunAt": "tomorrow"}, "its nextRunAt is 'tomorrow'"),
        ({"createdAt": None}, "it has no createdAt"),
        ({"name": 7}, "its name is 7"),
        ({"heartbeatInterval": "often"}, "its heartbeatInterval is 'often'"),
        ({"heartbeatInterval": True}, "its heartbeatInterval is True"),
        ({"heartbeatInterval": Decimal128("3")}, "its heartbeatInterval is Decimal128"),
        ({"lockedAt": "yesterday"}, "its lockedAt is 'yesterday'"),
        ({"lastHeartbeat": "x"}, "its lastHeartbeat is 'x'"),
        ({"lastHeartbeat": float("nan")}, "its lastHeartbeat is nan"),
        ({"rescues": -3}, "its rescues is -3"),
        ({"rescues": 1.5}, "its rescues is 1.5"),
        ({"rescues": float("nan")}, "its rescues is nan"),
        ({"rescues": []}, "its rescues is \\[\\]"),
        ({"failCount": -1}, "its failCount is -1"),
        ({"maxRescues": -1}, "its maxRescues is -1"),
        ({"maxRescues": 0.5}, "its maxRescues is 0.5"),
        ({"onExhausted": "explode"}, "its onExhausted is 'explode'"),
        ({"onExhausted": {"$gt": ""}}, "its onExhausted is {"),
        ({"onExhausted": ["fail"]}, "its onExhausted is \\["),
        ({"_id": "not an ObjectId"}, "its _id is 'not an ObjectId'"),
    ],
)
def test_decoding_refuses_a_malformed_job_and_names_the_fault(wrong: dict[str, Any], reported: str) -> None:
    assert job_of(WHOLE).fail_count == 0
    with pytest.raises(BrokenDocumentError, match=reported):
        job_of({**WHOLE, **wrong})


def test_rest_of_a_part_without_what_makes_it_one_means_nothing() -> None:
    """As another program leaves it, which removes a field that it knows, and not those that it does not know."""
    rest = {"timezone": "Europe/Berlin", "onExhausted": "fail", "scheduleVersion": 3, "againData": [1], "againAt": AT}
    for decode in (job_of, job_of_unusual):
        job = decode({**WHOLE, **rest})
        assert (job.schedule, job.again) == (None, None)


def test_rest_of_a_claim_is_read_because_a_fence_compares_it() -> None:
    for decode in (job_of, job_of_unusual):
        job = decode({**WHOLE, "claimToken": "of an earlier claim", "cancelRequestedAt": AT})
        assert job.claim is not None
        assert (job.claim.by, job.claim.since, job.claim.token) == (None, None, "of an earlier claim")
        assert fence(job)["claim.token"] == "of an earlier claim"


NO_FOLLOW_UPS: tuple[object, ...] = (False, 1, "true", [], {}, {"attempt": 2}, {"attempt": "2", "due": AT})


@pytest.mark.parametrize(
    ("stored", "meant"),
    [
        (True, FollowUpOwed()),
        (ObjectId("a" * 24), FollowUpChosen(ObjectId("a" * 24))),
        ({"attempt": Int64(2), "due": AT}, FollowUpParked(attempt=2, due=AT.replace(tzinfo=UTC))),
        *((other, None) for other in NO_FOLLOW_UPS),
    ],
    ids=repr,
)
def test_follow_up_is_one_of_three_or_none(stored: Any, meant: FollowUp | None) -> None:
    for decode in (job_of, job_of_unusual):
        assert decode({**WHOLE, "followUp": stored}).follow_up == meant
