"""Job <-> BSON, and Transition -> filter and update. What a document says is read in `decoding.py`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC
from enum import Enum
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import BSONError
from bson.raw_bson import RawBSONDocument

from ..errors import BrokenDocumentError
from ..jobs.conditional_write import AtMost, Containing, OneOf, Transition, Within
from ..jobs.job import Job
from .decoding import job_of
from .fields import DEFAULTS, FIELD, REQUIRED

# What a document written by Monque always has; all else is stored only where it is not the default.
_ALWAYS_STORED: Final = frozenset({*REQUIRED, "data", "status", "fail_count"})

OWN_OPTIONS: Final[CodecOptions[dict[str, Any]]] = CodecOptions(
    tz_aware=True, tzinfo=UTC, datetime_conversion=DatetimeConversion.DATETIME_AUTO
)


LENIENT: Final = OWN_OPTIONS.with_options(unicode_decode_error_handler="replace")
"""Whatever a document holds, these decode it as far as possible."""


class RawDocument(RawBSONDocument):
    """What is decoded later. Where a whole answer of the server is one, the driver can tell its errors.

    A reply to a write is read as the documents are. On an error of the write concern that has labels, which
    every election causes, the driver changes the reply, and a RawBSONDocument cannot be changed: the error
    would be an AttributeError, and would not be retried.
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
        """Raises BrokenDocumentError for a document that is not a job."""
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
        except Exception as error:  # Whatever a decoder of the caller's raises.
            raise BrokenDocumentError(
                job.id, f"its data cannot be decoded with the client's codec options ({error})"
            ) from error
        theirs = {field: callers[field] for field in ("data", "result", "progress", "saved") if field in own}
        return replace(job, **theirs)


def id_of(document: RawBSONDocument) -> object:
    """As far as it can be read."""
    try:
        return bson.decode(document.raw, codec_options=LENIENT).get("_id")
    except BSONError:
        return "with an unreadable _id"


def document_of(job: Job) -> dict[str, Any]:
    """The document that stores a new job: its defaults are left out."""
    document: dict[str, Any] = {}
    held = vars(job)  # What is not in there has its default.
    for attribute, field in FIELD.items():
        if attribute in _ALWAYS_STORED:
            document[field] = _stored(attribute, getattr(job, attribute))
        elif attribute in held and held[attribute] != DEFAULTS[attribute]:
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
