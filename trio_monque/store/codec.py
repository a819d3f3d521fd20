"""Writes jobs as documents, and transitions as filters and updates. `decoding.py` reads the fields of a document."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from enum import Enum
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from ..error_types import BrokenDocumentError
from ..jobs.conditional_write import AbsentOrAbove, AtMost, Containing, OneOf, PresentAs, Transition, Within
from ..jobs.job import REQUIRED, Job
from ..jobs.job_parts import IN_PARTS, PARTS, FollowUp, FollowUpChosen, FollowUpOwed, FollowUpParked
from .decoding import job_of
from .fields import DEFAULTS, FIELD, field_of

_PATHS: Final = {part: [path for path, (of, _) in IN_PARTS.items() if of == part] for part in PARTS}

# What a document written by Monque always has; all else is stored only where it is not the default.
_ALWAYS_STORED: Final = frozenset({*REQUIRED, "data", "status", "fail_count"})

OWN_OPTIONS: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=True, tzinfo=UTC, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


LENIENT: Final = OWN_OPTIONS.with_options(unicode_decode_error_handler="replace")
"""Codec options that decode any document as far as possible: bytes that are not UTF-8 are replaced."""


class RawDocument(RawBSONDocument):
    """A document as bytes, to decode later. The driver can also use it as the reply of the server.

    The driver reads the reply to a write with the same class as the documents. If the reply has a write concern error
    with labels, as in every election, the driver changes the reply. A RawBSONDocument cannot be changed: the driver
    would raise an AttributeError, and nothing would retry the write.
    """

    @property
    def raw(self) -> bytes:
        # Of a document of 4 kB or more, the driver gives a memoryview, in which nothing can be searched.
        return bytes(super().raw)

    def update(self, changes: Mapping[str, Any]) -> None:
        self.__dict__.update(changes)

    def __getitem__(self, name: str) -> Any:
        return self.__dict__[name] if name in self.__dict__ else super().__getitem__(name)


class Codec:
    """Reads and writes jobs with a caller's codec options.

    The caller's options decide about `data` and the other values that handlers store (UUIDs, custom types, the time
    zone of dates). Our own fields are of built-in types. All dates are timezone-aware: of a date without a time zone,
    nothing says whether it is in UTC, so these are refused, and what a handler reads it can enqueue again.

    Attributes:
        callers: The caller's codec options.
        raw: Options that read documents as bytes: one that cannot be decoded spoils no other.
        reading: Options that read documents for `decode`.
    """

    def __init__(self, callers: CodecOptions[Any]) -> None:
        self.callers = callers = callers if callers.tz_aware else callers.with_options(tz_aware=True, tzinfo=UTC)
        # Most options change only values that handlers store, and the dates of our own fields, which are easily
        # converted. Other options may change our own fields further, for example a custom decoder for str. With those,
        # documents are read as bytes, and decoded twice.
        is_decoded_twice = (
            callers.document_class is not dict
            or bool(callers.type_registry._decoder_map)  # noqa: SLF001  # It has no other way to ask.
            or callers.datetime_conversion is not DatetimeConversion.DATETIME
            or callers.unicode_decode_error_handler != "strict"
        )
        self.raw: CodecOptions[Any] = callers.with_options(document_class=RawDocument)
        self.reading = self.raw if is_decoded_twice else callers

    def decode(self, document: Any) -> Job:
        """Return the job in a document. Raises BrokenDocumentError for a document that is not a job."""
        if isinstance(document, RawBSONDocument):
            return self._decode_raw(document)
        return job_of(document)

    def _decode_raw(self, document: RawBSONDocument) -> Job:
        try:
            own = bson.decode(document.raw, codec_options=OWN_OPTIONS)
        except BSONError as error:
            raise BrokenDocumentError(id_of(document), f"it cannot be decoded ({error})") from error
        job = job_of(own)
        try:
            callers = bson.decode(document.raw, codec_options=self.callers)
        except Exception as error:  # A decoder of the caller may raise anything.
            raise BrokenDocumentError(
                job.id, f"its data cannot be decoded with the client's codec options ({error})"
            ) from error
        theirs = {field: callers[field] for field in ("data", "result", "progress", "saved") if field in own}
        return replace(job, **theirs)


def id_of(document: RawBSONDocument) -> object:
    """Return the `_id`, if it can be decoded; otherwise a text for log lines."""
    try:
        return bson.decode(document.raw, codec_options=LENIENT).get("_id")
    except BSONError:
        return "with an unreadable _id"


def document_of(job: Job) -> dict[str, Any]:
    """Return the document for a new job, without attributes that have their defaults."""
    document: dict[str, Any] = {}
    held = vars(job)  # An attribute that is not there has its default.
    for name, field in FIELD.items():
        if name in IN_PARTS:
            part, own = IN_PARTS[name]
            value = getattr(held.get(part), own, DEFAULTS[name])
        elif name in held or name in _ALWAYS_STORED:
            value = getattr(job, name)
        else:
            continue
        if name in _ALWAYS_STORED or value != DEFAULTS[name]:
            document[field] = _stored(name, value)
    return document


def filter_of(guard: Mapping[str, Any]) -> dict[str, Any]:
    """Return the MongoDB filter for a guard."""
    return {FIELD.get(name) or field_of(name): _condition(name, condition) for name, condition in guard.items()}


def update_of(transition: Transition, receipt: str | None = None) -> Any:
    """Return the MongoDB update for a transition, with a receipt if there is one.

    An aggregation, if the transition copies fields; a dict of operators otherwise.
    """
    written: dict[str, Any] = {}
    removed = [FIELD[path] for name in transition.cleared for path in _PATHS.get(name, (name,))]
    for name, value in transition.set.items():
        if name not in PARTS:
            written[FIELD[name]] = _stored(name, value)
            continue
        # It takes the place of the part before: what it does not have is removed.
        for path in _PATHS[name]:
            own = getattr(value, IN_PARTS[path][1])
            if own is None:
                removed.append(FIELD[path])
            else:
                written[FIELD[path]] = _stored(path, own)
    if receipt is not None:
        written[FIELD["internals.receipt"]] = receipt
    if transition.copied:
        return _stages_of(transition, written, removed)
    update: dict[str, Any] = {"$set": written}
    if removed:
        update["$unset"] = dict.fromkeys(removed, "")
    if transition.added:
        update["$inc"] = {FIELD[name]: step for name, step in transition.added.items()}
    return update


def _stages_of(transition: Transition, written: Mapping[str, Any], removed: Sequence[str]) -> list[dict[str, Any]]:
    # Literals: the server would evaluate a text with a dollar.
    values: dict[str, Any] = {field: {"$literal": value} for field, value in written.items()}
    for attribute, step in transition.added.items():
        values[FIELD[attribute]] = {"$add": [{"$ifNull": [f"${FIELD[attribute]}", 0]}, step]}
    for attribute, source in transition.copied.items():
        own, other = f"${FIELD[attribute]}", f"${FIELD[source]}"
        # Another program may have damaged the job: it must still be one after the write.
        values[FIELD[attribute]] = {"$ifNull": [other, own]} if attribute in REQUIRED else other
    # In the same stage: a document between two stages would have large data twice, and might be too large.
    return [{"$set": {**dict.fromkeys(removed, "$$REMOVE"), **values}}]


def _condition(attribute: str, condition: object) -> Any:
    match condition:
        case AtMost(value):
            return {"$lte": _stored(attribute, value)}
        case AbsentOrAbove(value):
            return {"$not": {"$lte": _stored(attribute, value)}}
        case OneOf(values):
            return {"$in": [_stored(attribute, value) for value in values]}
        case PresentAs(values):
            # Null alone would also find documents without the field, which are not in the index of the field.
            wanted = {"$eq": values[0]} if len(values) == 1 else {"$in": [*values]}
            return {**wanted, "$exists": True} if None in values else wanted
        case Within():
            ends = {
                "$gte": condition.at_least,
                "$gt": condition.above,
                "$lte": condition.at_most,
                "$lt": condition.below,
            }
            return {operator: end for operator, end in ends.items() if end is not None}
        case Containing(text, at_the_beginning):
            # The server accepts no NUL byte in a regular expression.
            literal = re.escape(text).replace("\0", r"\x00")
            return {"$regex": f"^{literal}" if at_the_beginning else literal}
        case _:
            return _stored(attribute, condition)


def _stored(attribute: str, value: Any) -> Any:
    if attribute == "claim.heartbeat_interval" and value is not None:
        return round(value * 1000)
    if attribute == "follow_up":
        return stored_follow_up(value)
    if isinstance(value, Enum):
        return value.value
    return value


def stored_follow_up(value: FollowUp | None) -> Any:
    """Return what `followUp` has in the document. `decoding.follow_up_of` reads it."""
    match value:
        case FollowUpOwed():
            return True
        case FollowUpChosen(job_id):
            return job_id
        case FollowUpParked(attempt, due):
            return {"attempt": attempt, "due": due}
        case None:
            return None
