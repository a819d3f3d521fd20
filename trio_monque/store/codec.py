"""Job <-> BSON, and Transition -> filter and update. The only place that spells "nextRunAt"."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

import bson
from bson import ObjectId, tz_util
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from ..errors import BrokenDocumentError
from ..jobs.job import Job, JobStatus
from ..jobs.new_job import ON_EXHAUSTED
from ..jobs.transition import AtMost, Containing, OneOf, Transition, Within

FIELD: Final[Mapping[str, str]] = {
    "id": "_id",
    "name": "name",
    "data": "data",
    "status": "status",
    "next_run_at": "nextRunAt",
    "fail_count": "failCount",
    "fail_reason": "failReason",
    "repeat_interval": "repeatInterval",
    "unique_key": "uniqueKey",
    "claimed_by": "claimedBy",
    "locked_at": "lockedAt",
    "last_heartbeat": "lastHeartbeat",
    "heartbeat_interval": "heartbeatInterval",
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "attempts": "attempts",
    "claim_token": "claimToken",
    "receipt": "receipt",
    "rescues": "rescues",
    "rev": "rev",
    "cancel_requested_at": "cancelRequestedAt",
    "timezone": "timezone",
    "timeout": "timeout",
    "max_retries": "maxRetries",
    "max_rescues": "maxRescues",
    "on_exhausted": "onExhausted",
    "result": "result",
    "progress": "progress",
    "saved": "saved",
    "started_at": "startedAt",
    "finished_at": "finishedAt",
    "errors": "errors",
}
"""The field of the document that holds each attribute of a job."""

_ATTRIBUTE: Final = {field: attribute for attribute, field in FIELD.items()}
_DATES: Final = tuple(f.name for f in fields(Job) if "datetime" in str(f.type))
_REQUIRED: Final = tuple(f.name for f in fields(Job) if f.default is MISSING)
_DEFAULTS: Final = {f.name: f.default for f in fields(Job) if f.default is not MISSING}

# What a document written by Monque always has; all else is stored only where it is not the default.
_ALWAYS_STORED: Final = frozenset({*_REQUIRED, "data", "status", "fail_count"})

OWN_OPTIONS: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=True, tzinfo=UTC, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


class RawDocument(RawBSONDocument):
    """What is decoded later. Where a whole answer of the server is one, the driver can tell its errors.

    A reply to a write is read as the documents are. On an error of the write concern that has labels, which
    every election causes, the driver changes the reply, and a RawBSONDocument cannot be changed: the error
    would be an AttributeError, and nobody would try again.
    """

    def update(self, changes: Mapping[str, Any]) -> None:
        self.__dict__.update(changes)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name] if name in self.__dict__ else super().__getitem__(name)


class Codec:
    """Reads and writes jobs beside a caller's own codec options.

    The caller's options keep their meaning for `data`, and for what else handlers store (naive dates,
    other UUIDs, custom types); our own fields are always timezone-aware and of built-in types.
    """

    def __init__(self, callers: CodecOptions[Any]) -> None:
        self.callers = callers
        # Options that only differ in what they make of values inside `data` are read with directly,
        # as the dates of our own fields are easily put right. Others could change our own fields beyond
        # that (a custom decoder for str, say): these documents are read raw, and decoded twice.
        self._twice = (
            callers.document_class is not dict
            or bool(callers.type_registry._decoder_map)  # noqa: SLF001  # It has no other way to ask.
            or callers.datetime_conversion is not DatetimeConversion.DATETIME
            or callers.unicode_decode_error_handler != "strict"
        )

    @property
    def reading(self) -> CodecOptions[Any]:
        """The options that a collection is read with, so that `decode` understands what comes."""
        if self._twice:
            return self.raw
        return self.callers

    @property
    def raw(self) -> CodecOptions[Any]:
        """The options to read with where one document that cannot be decoded must not spoil the others."""
        return self.callers.with_options(document_class=RawDocument)

    def decode(self, document: Any) -> Job:
        """Raises BrokenDocumentError for a document that is no job."""
        if isinstance(document, RawBSONDocument):
            return self._decode_raw(document)
        return _job(document)

    def comparable(self, document: Any) -> Mapping[str, Any]:
        """A document, or part of one, with its dates as our own fields have them."""
        if isinstance(document, RawBSONDocument):
            return bson.decode(document.raw, codec_options=OWN_OPTIONS)
        return {
            field: value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value
            for field, value in document.items()
        }

    def _decode_raw(self, document: RawBSONDocument) -> Job:
        try:
            own = bson.decode(document.raw, codec_options=OWN_OPTIONS)
        except BSONError as error:
            raise BrokenDocumentError(_id_of(document), f"it cannot be decoded ({error})") from error
        job = _job(own)
        try:
            callers = bson.decode(document.raw, codec_options=self.callers)
        except (BSONError, ValueError, OverflowError) as error:
            raise BrokenDocumentError(
                job.id, f"its data cannot be decoded with the client's codec options ({error})"
            ) from error
        theirs = {field: callers[field] for field in ("data", "result", "progress", "saved") if field in own}
        return replace(job, **theirs)


def _id_of(document: RawBSONDocument) -> object:
    """As far as it can be read."""
    lenient = OWN_OPTIONS.with_options(unicode_decode_error_handler="replace")
    try:
        return bson.decode(document.raw, codec_options=lenient).get("_id")
    except BSONError:
        return "with an unreadable _id"


# What a document has where all is as this library writes it: attribute and type, by field. What is not here, or is
# not so, is looked at field by field.
_ANY: Final = object
_USUAL: Final[Mapping[str, tuple[str, Any]]] = {
    FIELD[attribute]: (attribute, kind)
    for kind, attributes in (
        (ObjectId, ("id",)),
        (str, ("name", "status", "fail_reason", "repeat_interval", "unique_key", "claimed_by", "claim_token")),
        (str, ("receipt", "timezone")),
        (datetime, _DATES),
        (int, ("fail_count", "attempts", "rescues", "rev", "max_retries", "heartbeat_interval")),
        (_ANY, ("data", "result", "progress", "saved")),
    )
    for attribute in attributes
}
_UNUSUAL: Final = frozenset(FIELD.values()) - _USUAL.keys()
_REQUIRED_ATTRIBUTES: Final = frozenset(_REQUIRED)
_STATUS: Final = {status.value: status for status in JobStatus}


def _job(document: Mapping[str, Any]) -> Job:
    values: dict[str, Any] = {}
    for field, value in document.items():
        usual = _USUAL.get(field)
        if usual is None:
            if field in _UNUSUAL:
                return _job_of_unusual(document)
            continue
        attribute, kind = usual
        if kind is not _ANY:
            if type(value) is not kind:
                return _job_of_unusual(document)
            if kind is datetime:
                value = _in_utc(value)
            elif kind is int and not 0 <= value <= _LARGEST_COUNTER:
                return _job_of_unusual(document)
        values[attribute] = value
    status = _STATUS.get(values.get("status", ""))
    if status is None or not values.keys() >= _REQUIRED_ATTRIBUTES:
        return _job_of_unusual(document)
    values["status"] = status
    values["name"] = sys.intern(values["name"])  # Thousands of copies of a few names are held while their jobs run.
    if "heartbeat_interval" in values:
        values["heartbeat_interval"] /= 1000
    return Job.of(values)


def _job_of_unusual(document: Mapping[str, Any]) -> Job:
    """Any document that is a job, by all the rules there are; whoever wrote it."""
    values: dict[str, Any] = dict(_DEFAULTS)
    for field, value in document.items():
        attribute = _ATTRIBUTE.get(field)
        if attribute is None:
            continue
        if value is not None:
            values[attribute] = value
        elif attribute in _ADDED_TO:
            raise BrokenDocumentError(document.get("_id"), f"its {field} is null, to which nothing can be added")
    _make_whole(values)
    if values["errors"]:
        values["errors"] = _history(values["errors"])
    _check(values)
    for attribute in _DATES:
        moment = values.get(attribute)
        if moment is not None:
            values[attribute] = _utc(moment, values["id"], attribute)
    values["status"] = JobStatus(values["status"])
    if values["heartbeat_interval"] is not None:
        values["heartbeat_interval"] = values["heartbeat_interval"] / 1000
    return Job.of(values)


# Counters may have come from a shell or a graphical tool that stores every number as a double.
_WHOLE: Final = ("fail_count", "attempts", "rev", "rescues", "max_retries", "max_rescues")
# What transitions add to. One that is absent counts as 0; to a null the server refuses to add, and to all beside it.
_ADDED_TO: Final = frozenset({"fail_count", "attempts", "rev", "rescues"})
# MongoDB adds to them: beyond this it would refuse to.
_LARGEST_COUNTER: Final = 2**53


def _make_whole(values: dict[str, Any]) -> None:
    for attribute in _WHOLE:
        value = values[attribute]
        if isinstance(value, bool):  # To Python a number, and to MongoDB none: a claim would never match it.
            raise BrokenDocumentError(values.get("id"), f"its {FIELD[attribute]} is {value!r}")
        if isinstance(value, float) and value.is_integer():
            value = values[attribute] = int(value)
        if isinstance(value, int) and not 0 <= value <= _LARGEST_COUNTER:
            raise BrokenDocumentError(values.get("id"), f"its {FIELD[attribute]} is {value}")


def _history(stored: Any) -> list[Mapping[str, Any]]:
    """The errors as this library writes them; what somebody else put there is no history."""
    return [entry for entry in stored if isinstance(entry, Mapping)] if isinstance(stored, list) else []


_EXPECTED: Final[Mapping[str, type | tuple[type, ...]]] = {
    "id": ObjectId,
    "name": str,
    "status": str,
    "fail_count": int,
    "attempts": int,
    "rev": int,
    "rescues": int,
    "max_rescues": (int, type(None)),
    "heartbeat_interval": (int, float, type(None)),
    "repeat_interval": (str, type(None)),
    "timezone": (str, type(None)),
    "unique_key": (str, type(None)),
    "claimed_by": (str, type(None)),
    "claim_token": (str, type(None)),
    "max_retries": (int, type(None)),
    "timeout": (int, float, type(None)),
    "on_exhausted": (str, type(None)),
}
_STATUSES: Final = frozenset(JobStatus)
_ON_EXHAUSTED: Final = frozenset({None, *ON_EXHAUSTED})


def _check(values: Mapping[str, Any]) -> None:
    for attribute in _REQUIRED:
        if attribute not in values:
            raise BrokenDocumentError(values.get("id"), f"it has no {FIELD[attribute]}")
    for attribute, expected in _EXPECTED.items():
        if not isinstance(values[attribute], expected):
            raise BrokenDocumentError(values.get("id"), f"its {FIELD[attribute]} is {values[attribute]!r}")
    if values["timeout"] is not None and not 0 < values["timeout"] < math.inf:
        raise BrokenDocumentError(values["id"], f"its timeout is {values['timeout']!r}")
    if isinstance(values["heartbeat_interval"], bool):
        raise BrokenDocumentError(values["id"], f"its heartbeatInterval is {values['heartbeat_interval']!r}")
    if values["on_exhausted"] not in _ON_EXHAUSTED:
        raise BrokenDocumentError(values["id"], f"its onExhausted is {values['on_exhausted']!r}")
    if values["status"] not in _STATUSES:
        raise BrokenDocumentError(values["id"], f"its status is {values['status']!r}")


def _utc(moment: object, document_id: object, attribute: str) -> datetime:
    if not isinstance(moment, datetime):
        raise BrokenDocumentError(document_id, f"its {FIELD[attribute]} is {moment!r}")
    return _in_utc(moment)


def _in_utc(moment: datetime) -> datetime:
    zone = moment.tzinfo
    if zone is UTC:
        return moment
    if zone is None or zone is tz_util.utc:  # The driver's own, which is asked in Python what its offset is.
        return moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC)


def document_of(job: Job) -> dict[str, Any]:
    """The document that stores a new job: its defaults are left out."""
    document: dict[str, Any] = {}
    held = vars(job)  # What is not in there has its default.
    for attribute, field in FIELD.items():
        if attribute in _ALWAYS_STORED:
            document[field] = _stored(attribute, getattr(job, attribute))
        elif attribute in held and held[attribute] != _DEFAULTS[attribute]:
            document[field] = _stored(attribute, held[attribute])
    return document


def filter_of(guard: Mapping[str, Any]) -> dict[str, Any]:
    """The MongoDB filter that a guard means."""
    return {FIELD[attribute]: _condition(attribute, condition) for attribute, condition in guard.items()}


def update_of(transition: Transition, receipt: str | None = None) -> dict[str, Any]:
    """The MongoDB update that a transition means, signed with a receipt where one is given."""
    written = {FIELD[attribute]: _stored(attribute, value) for attribute, value in transition.set.items()}
    if receipt is not None:
        written[FIELD["receipt"]] = receipt
    update: dict[str, Any] = {"$set": written}
    if transition.cleared:
        update["$unset"] = {FIELD[attribute]: "" for attribute in transition.cleared}
    if transition.added:
        update["$inc"] = {FIELD[attribute]: step for attribute, step in transition.added.items()}
    return update


def _condition(attribute: str, condition: object) -> Any:
    match condition:
        case AtMost(value):
            return {"$lte": _stored(attribute, value)}
        case OneOf(values):
            return {"$in": [_stored(attribute, value) for value in values]}
        case Within():
            ends = {
                "$gte": condition.at_least,
                "$gt": condition.above,
                "$lte": condition.at_most,
                "$lt": condition.below,
            }
            return {operator: end for operator, end in ends.items() if end is not None}
        case Containing(text, at_the_beginning):
            # A regular expression of the server's may hold no NUL byte.
            literal = re.escape(text).replace("\0", r"\x00")
            return {"$regex": f"^{literal}" if at_the_beginning else literal}
        case _:
            return _stored(attribute, condition)


def _stored(attribute: str, value: Any) -> Any:
    if attribute == "heartbeat_interval" and value is not None:
        return round(value * 1000)
    if isinstance(value, Enum):
        return value.value
    return value
