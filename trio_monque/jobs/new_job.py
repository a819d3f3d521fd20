"""What is let in: names, keys, payloads and times of new jobs, checked before anything is sent."""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, runtime_checkable

import bson
from bson import ObjectId
from bson.codec_options import CodecOptions
from bson.errors import BSONError

from ..errors import InvalidJobIdentifierError, InvalidOptionError, InvalidPayloadError, PayloadTooLargeError
from ..options import LARGEST_PAYLOAD, check_count, check_seconds
from .job import Job

LONGEST_NAME = 255
LONGEST_UNIQUE_KEY = 1024

# BSON dates reach further, Python's datetimes do not.
_LATEST = datetime(9999, 1, 1, tzinfo=UTC)


@runtime_checkable
class Named(Protocol):
    """What may stand for a job's name: a Worker, or anything that has the name of one."""

    @property
    def name(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class NewJob:
    """A job to be enqueued.

    Attributes:
        name: Which worker runs it: 1 to 255 characters, no whitespace or control characters.
        data: Any BSON value.
        run_at: When it is due, timezone-aware; None for now. A moment that has passed is due at once.
        delay: Seconds from now, instead of `run_at`.
        unique_key: At most one pending or processing job of this name has this key.
        max_retries: After how many failures this job is `failed`, instead of its worker's.
        max_rescues: How many deaths in a row it may cause, instead of the scheduler's.
        timeout: Seconds that one run may take, instead of its worker's.
    """

    name: str
    data: Any = None
    run_at: datetime | None = None
    delay: float | None = None
    unique_key: str | None = None
    max_retries: int | None = None
    max_rescues: int | None = None
    timeout: float | None = None


def pending_job(new: NewJob, job_id: ObjectId, now: datetime) -> Job:
    """The job that enqueuing makes, checked; its data is checked by `check_payload`.

    Raises:
        InvalidJobIdentifierError: The name or the unique key cannot be stored.
        InvalidOptionError: A time or a limit cannot be.
    """
    check_name(new.name)
    if new.unique_key is not None:
        check_unique_key(new.unique_key)
    if new.max_retries is not None:
        check_count("max_retries", new.max_retries, at_least=0)
    if new.max_rescues is not None:
        check_count("max_rescues", new.max_rescues, at_least=0)
    if new.timeout is not None:
        check_seconds("timeout", new.timeout)
    return Job(
        id=job_id,
        name=new.name,
        data=new.data,
        next_run_at=_due(new, now),
        created_at=now,
        updated_at=now,
        unique_key=new.unique_key,
        max_retries=new.max_retries,
        max_rescues=new.max_rescues,
        timeout=None if new.timeout is None else float(new.timeout),
    )


def _due(new: NewJob, now: datetime) -> datetime:
    if new.delay is not None:
        if new.run_at is not None:
            raise InvalidOptionError("delay", new.delay, "goes without run_at: give one of the two")
        check_seconds("delay", new.delay, zero=True)
        if new.delay > (_LATEST - now).total_seconds():
            raise InvalidOptionError("delay", new.delay, "lies beyond the year 9998")
        return now + timedelta(milliseconds=round(new.delay * 1000))
    if new.run_at is None:
        return now
    return checked_moment("run_at", new.run_at)


def checked_moment(option: str, moment: object) -> datetime:
    """A moment as it can be stored: UTC, in whole milliseconds. Raises InvalidOptionError for a naive one."""
    if not isinstance(moment, datetime):
        raise InvalidOptionError(option, moment, "must be a datetime")
    if moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidOptionError(option, moment, "must be timezone-aware, for example datetime.now(UTC)")
    if moment > _LATEST:
        raise InvalidOptionError(option, moment, "lies beyond the year 9998")
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def name_of(worker: str | Named) -> str:
    """The name that a call means, given as a string or as a worker."""
    if isinstance(worker, str):
        return worker
    if isinstance(worker, Named):
        return worker.name
    raise InvalidJobIdentifierError("name", worker, "must be a string or a registered worker")


def check_name(name: object) -> None:
    """Raises InvalidJobIdentifierError unless `name` can name a job."""
    if not isinstance(name, str):
        raise InvalidJobIdentifierError("name", name, "must be a string")
    if not 1 <= len(name) <= LONGEST_NAME:
        raise InvalidJobIdentifierError("name", name, f"must have 1 to {LONGEST_NAME} characters, not {len(name)}")
    if any(character.isspace() or _is_control(character) for character in name):
        raise InvalidJobIdentifierError("name", name, "must not contain whitespace or control characters")


def check_unique_key(key: object) -> None:
    """Raises InvalidJobIdentifierError unless `key` can be a unique key."""
    if not isinstance(key, str):
        raise InvalidJobIdentifierError("unique_key", key, "must be a string")
    if not key.strip() or len(key) > LONGEST_UNIQUE_KEY:
        raise InvalidJobIdentifierError(
            "unique_key", key, f"must have 1 to {LONGEST_UNIQUE_KEY} characters and not be blank"
        )
    if any(_is_control(character) for character in key):
        raise InvalidJobIdentifierError("unique_key", key, "must not contain control characters")


def _is_control(character: str) -> bool:
    # Lone surrogates count: they cannot be encoded as UTF-8.
    return unicodedata.category(character) in ("Cc", "Cs")


def check_payload(data: Any, maximum: int | None, codec_options: CodecOptions[Any]) -> None:
    """Raises InvalidPayloadError unless `data` can be stored, and PayloadTooLargeError where it is too large.

    Args:
        data: The payload; its size is that of `{"": data}` as BSON, less the few bytes around it.
        maximum: Bytes; None for what fits into a document.
        codec_options: The caller's, as they are used for writing.
    """
    try:
        size = len(bson.encode({"": data}, codec_options=codec_options)) - _ENVELOPE
    except (BSONError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise InvalidPayloadError(f"the job's data cannot be stored as BSON: {error}") from error
    limit = LARGEST_PAYLOAD if maximum is None else maximum
    if size > limit:
        raise PayloadTooLargeError(size, limit)


# A document's length (4), the value's type and empty key (2), and the document's end (1).
_ENVELOPE = 7
