"""What is let in, and what is refused before anything is sent."""

from __future__ import annotations

import pickle
import sys
import threading
import unicodedata
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypedDict

import bson
import pytest
from bson import Code, ObjectId
from bson.codec_options import CodecOptions

from tests.support.jobs_in_memory import with_flat
from tests.support.thoroughly import FULL
from trio_monque.errors import (
    InvalidJobIdentifierError,
    InvalidOptionError,
    InvalidPayloadError,
    PayloadTooLargeError,
)
from trio_monque.jobs.job import Job
from trio_monque.jobs.job_parts import Schedule
from trio_monque.jobs.new_job import Draft, NewJob, NewSchedule, check_name, check_new, check_unique_key, name_of
from trio_monque.jobs.stored_value_limits import check_payload, plain_data
from trio_monque.options_and_defaults import LARGEST_PAYLOAD
from trio_monque.scheduler.worker import Worker
from trio_monque.scheduler.workers import Workers

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
OPTIONS: CodecOptions[Any] = CodecOptions()


def made(**fields: Any) -> Job:
    new = NewJob(name="greet", **fields)
    check_new(new)
    return Draft(ObjectId(), new, b"").at(NOW)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\nb", "a\0b", "a\u00a0b", "\ud800", "x" * 256, None, 7, Code("a")])
def test_name_that_cannot_be_is_refused_with_field_and_value(name: Any) -> None:
    with pytest.raises(InvalidJobIdentifierError) as caught:
        check_name(name)
    assert (caught.value.field, caught.value.value) == ("name", name)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("name", ["email:send.v2_worker-1", "job-*/15-*", "x" * 255, "größe"])
def test_name_that_can_be_is_accepted(name: str) -> None:
    check_name(name)


@pytest.mark.parametrize("key", ["", "  ", "a\nb", "a\0", "x" * 1025, 7, Code("a")])
def test_unique_key_that_cannot_be_is_refused(key: Any) -> None:
    with pytest.raises(InvalidJobIdentifierError) as caught:
        check_unique_key(key)
    assert caught.value.field == "unique_key"


def test_unique_key_may_have_spaces_inside() -> None:
    check_unique_key("order 7 / line 3")
    check_unique_key("x" * 1024)


def test_name_of_takes_a_name_or_what_has_one() -> None:
    class Named:
        name = "greet"

    assert name_of("greet") == name_of(Named()) == "greet"
    wrong: Any = 7
    with pytest.raises(InvalidJobIdentifierError):
        name_of(wrong)


# All planes but the first hold neither control characters nor surrogates: a normal run tries one of each 97.
CODES = range(sys.maxunicode + 1) if FULL else [*range(0x10000), *range(0x10000, sys.maxunicode + 1, 97)]


@pytest.mark.larger_in_full
def test_every_control_character_and_lone_surrogate_is_refused_and_no_other_character_of_a_key() -> None:
    control = {chr(code) for code in CODES if unicodedata.category(chr(code)) in ("Cc", "Cs")}
    assert _refused_inside(check_unique_key) == control
    assert _refused_inside(check_name) == control | {chr(code) for code in CODES if chr(code).isspace()}


def _refused_inside(check: Callable[[object], None]) -> set[str]:
    refused = set()
    for character in map(chr, CODES):
        try:
            check(f"a{character}b")
        except InvalidJobIdentifierError:
            refused.add(character)
    return refused


@pytest.mark.parametrize(
    "said", [{}, {"unique_key": "k"}, {"delay": 1.5}, {"max_attempts": 0, "max_rescues": 2, "timeout": 3}]
)
def test_new_job_has_what_was_said_and_its_defaults(said: dict[str, Any]) -> None:
    job = made(data=[1], **said)
    delay = timedelta(seconds=said.pop("delay", 0))
    whole = Job(id=job.id, name="greet", data=[1], next_run_at=NOW + delay, created_at=NOW, updated_at=NOW)
    whole = with_flat(whole, **said)
    assert job == whole
    assert repr(job) == repr(whole).replace("timeout=3,", "timeout=3.0,")
    assert pickle.loads(pickle.dumps(job)) == replace(job) == whole


def test_new_job_is_pending_and_due_now() -> None:
    job = made(data={"a": 1})
    assert (job.status, job.fail_count, job.attempts) == ("pending", 0, 0)
    assert job.next_run_at == job.created_at == job.updated_at == NOW


def test_moments_are_kept_in_utc_to_the_millisecond_and_may_have_passed() -> None:
    berlin = timezone(timedelta(hours=1))
    at = datetime(2030, 1, 1, 13, 0, 0, 123_999, tzinfo=berlin)
    assert made(run_at=at).next_run_at == datetime(2030, 1, 1, 12, 0, 0, 123_000, tzinfo=UTC)
    assert made(run_at=datetime(1999, 1, 1, tzinfo=UTC)).next_run_at.year == 1999
    assert made(delay=1.5).next_run_at - NOW == timedelta(seconds=1.5)
    assert made(delay=0).next_run_at == NOW
    later = NewJob(
        "greet", delay=timedelta(minutes=2), unique_key="k", on_conflict="debounce", max_wait=timedelta(hours=1)
    )
    assert (later.delay, later.max_wait) == (120, 3600)
    assert made(delay=timedelta(minutes=2)).next_run_at - NOW == timedelta(minutes=2)
    with pytest.raises(InvalidOptionError, match="delay=-60.0: must be at least 0"):
        made(delay=timedelta(minutes=-1))


@pytest.mark.parametrize(
    ("fields", "option"),
    [
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),  # noqa: DTZ001
        ({"run_at": "tomorrow"}, "run_at"),
        ({"delay": -1}, "delay"),
        ({"delay": 1e12}, "delay"),
        ({"delay": 1, "run_at": NOW}, "delay"),
        ({"max_attempts": -1}, "max_attempts"),
        ({"max_rescues": 1.5}, "max_rescues"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_time_or_limit_that_cannot_be_is_refused_by_name(fields: dict[str, Any], option: str) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        made(**fields)
    assert caught.value.option == option


def test_payload_is_measured_as_bson_and_may_be_as_large_as_the_limit() -> None:
    data = {"text": "ä" * 50}
    size = len(bson.encode(data))
    check_payload(data, size, OPTIONS)
    check_payload(data, None, OPTIONS)
    with pytest.raises(PayloadTooLargeError) as caught:
        check_payload(data, size - 1, OPTIONS)
    assert (caught.value.actual, caught.value.maximum) == (size, size - 1)
    assert str(caught.value).endswith("enqueue a reference to it, or raise max_payload_size")


@pytest.mark.parametrize("limit", [None, LARGEST_PAYLOAD])
def test_payload_that_no_document_can_hold_is_refused_without_a_limit_to_raise(limit: int | None) -> None:
    with pytest.raises(PayloadTooLargeError) as caught:
        check_payload(b"x" * (16 * 1024 * 1024), limit, OPTIONS)
    assert caught.value.maximum == LARGEST_PAYLOAD
    assert str(caught.value).endswith("store it elsewhere and enqueue a reference to it")


@dataclass
class Address:
    city: str


@dataclass
class Email:
    to: str
    address: Address
    hidden: object = None


def sender(payload: Any = Email) -> Worker[Any]:
    return Workers().register("send", lambda job: None, payload=payload)


def test_dataclass_is_stored_as_a_document_of_its_fields() -> None:
    email = Email("a@b.c", Address("Ulm"))
    assert plain_data(sender(), email) == {"to": "a@b.c", "address": {"city": "Ulm"}, "hidden": None}
    assert plain_data("send", Email) is Email  # The class itself is not an instance; encoding refuses it.
    unknown = plain_data("send", Email("a@b.c", Address("Ulm"), hidden=threading.Lock()))
    with pytest.raises(InvalidPayloadError, match="lock"):  # What codec options may know is left to them.
        check_payload(unknown, None, OPTIONS)
    with pytest.raises(
        InvalidPayloadError, match=r"this Email cannot be stored: data.hidden\[1\]: datetime .* no time zone"
    ):
        plain_data("send", Email("a@b.c", Address("Ulm"), hidden=[1, datetime(2026, 1, 1)]))  # noqa: DTZ001
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidPayloadError, match="contains itself"):
        plain_data(sender(), Email("a@b.c", Address("Ulm"), cycle))


def test_data_of_another_type_than_its_worker_takes_is_refused_and_says_which() -> None:
    for wrong in ({"to": "a@b.c"}, None, Address("Ulm")):
        with pytest.raises(
            InvalidPayloadError, match=f"worker 'send' takes Email as its data, not {type(wrong).__name__}"
        ):
            plain_data(sender(), wrong)


class Shape(TypedDict):
    x: int


@pytest.mark.parametrize("payload", [None, len, dict, dict[str, int], Shape])
def test_plain_data_that_fits_its_payload_is_stored_as_it_is(payload: object) -> None:
    assert plain_data(sender(payload), {"x": 1}) == {"x": 1}


def test_schedule_stores_five_fields_and_no_default() -> None:
    new = NewSchedule(name="report", cron="@daily")
    check_new(new)
    job = Draft(ObjectId(), new, b"").at(NOW)
    assert job.schedule == Schedule(cron="0 0 * * *")
    assert job.next_run_at == datetime(2026, 3, 2, tzinfo=UTC)
    new = NewSchedule(name="report", cron="0 9 * * *", timezone="Europe/Berlin", on_exhausted="fail")
    job = Draft(ObjectId(), new, b"").at(NOW)
    assert job.schedule is not None
    assert (job.schedule.timezone, job.schedule.on_exhausted, job.next_run_at.hour) == ("Europe/Berlin", "fail", 8)


def test_schedule_with_another_ending_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="on_exhausted"):
        check_new(NewSchedule(name="report", cron="@daily", on_exhausted="stop"))


class Opaque:
    pass


recursive: list[Any] = []
recursive.append(recursive)


@pytest.mark.parametrize(
    "data", [Opaque(), {1: "a"}, {"a": {1, 2}}, 1 << 64, uuid.uuid4(), "\ud800", {"a\0b": 1}, recursive]
)
def test_payload_that_bson_does_not_know_is_refused_with_its_cause(data: Any) -> None:
    with pytest.raises(InvalidPayloadError) as caught:
        check_payload(data, None, OPTIONS)
    assert caught.value.__cause__ is not None
