"""A collection whose documents are claimed by a lock in each of them: the handle, and the conditions as queries.

The library knows only the `_id` and the lock of a caller's document. It passes an id on as the caller's handle decodes
it, and encodes the id with the caller's codec options again. An id may be unhashable (a document), and two ids that
differ in BSON may be equal to Python: so `key_of` returns the bytes to compare and to remember an id by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from pymongo import ReadPreference
from pymongo.client_session import ClientSession
from pymongo.read_concern import ReadConcern
from pymongo.write_concern import WriteConcern

from ...error_types import InvalidOptionError
from ...locks_and_dead_letters import NEVER, Fence, Lock, LockStamp, read_lock
from ...log import logger_of
from ...safe_text import shown
from ..codec import LENIENT, OWN_OPTIONS, RawDocument
from ..driver.commands import BY_ID, Interference, by_majority
from ..driver.types import Collection
from ..skipped_documents import LOOK_AGAIN_AFTER, Cooldown, SkippedDocuments

logger = logger_of("store")

# The first date that Python has. The driver does not read an earlier `until` as a datetime, so the lock is unreadable.
EARLIEST: Final = datetime.min.replace(tzinfo=UTC)

_NULL: Final = 10  # The BSON type null.
_REPLACED: Final = "\ufffd"


@dataclass(frozen=True, slots=True)
class LockedCollection:
    """A collection of any documents, and its options, as every command on the locks uses them.

    Reads and writes go to the primary, and writes wait for a majority, whatever the options of the caller's handle are.

    Attributes:
        collection: The handle with the caller's codec options.
        locks: The same handle with our codec options, for locks.
        raw: The same handle, which returns documents as bytes, to decode them later.
        filter: Which documents are claimed. As BSON: the caller may change the original later.
        lock_field: The field that holds the lock.
        sort: The order of the claims; empty for any order.
        operation_timeout: Seconds that one call may take.
        interference: What a test has put in the way of the next commands; otherwise empty.
        refused: The ids of documents in which the server refuses a lock.
        logged: The ids of documents that a look has met and that are never claimed, because their lock is unreadable or
            no condition can name their `_id`. Each is logged once.
        unreadable_looks: When to look for unreadable locks.
    """

    collection: Collection
    locks: Collection
    raw: Collection
    filter: RawBSONDocument
    lock_field: str
    sort: tuple[tuple[str, int], ...]
    operation_timeout: float
    interference: list[Interference] = field(default_factory=list, compare=False)
    refused: SkippedDocuments = field(default_factory=SkippedDocuments, compare=False)
    logged: SkippedDocuments = field(default_factory=SkippedDocuments, compare=False)
    unreadable_looks: Cooldown = field(default_factory=lambda: Cooldown(LOOK_AGAIN_AFTER), compare=False)

    @classmethod
    def of(
        cls,
        collection: Collection,
        filter: Mapping[str, Any],  # noqa: A002  # As pymongo calls it.
        *,
        lock_field: str = "lock",
        sort: Sequence[tuple[str, int]] = (),
        operation_timeout: float = 10.0,
    ) -> LockedCollection:
        """Raises InvalidOptionError for a filter that cannot be encoded."""
        handle = collection.with_options(
            read_preference=ReadPreference.PRIMARY,
            read_concern=ReadConcern("local"),
            write_concern=WriteConcern("majority"),
        )
        try:
            encoded = bson.encode(filter, codec_options=handle.codec_options)
        except (InvalidDocument, ValueError, OverflowError, TypeError) as error:
            raise InvalidOptionError("filter", filter, f"cannot be encoded as BSON ({error})") from error
        return cls(
            handle,
            handle.with_options(codec_options=LENIENT),
            handle.with_options(codec_options=OWN_OPTIONS.with_options(document_class=RawDocument)),
            RawBSONDocument(encoded),
            lock_field,
            tuple((name, direction) for name, direction in sort),
            operation_timeout,
        )

    @property
    def shown_filter(self) -> Mapping[str, Any]:
        """The filter, for messages."""
        return bson.decode(self.filter.raw, codec_options=OWN_OPTIONS)

    # --- Ids and documents, as the caller has them ---

    @property
    def callers(self) -> CodecOptions[Any]:
        return self.collection.codec_options

    @property
    def is_plain(self) -> bool:
        """Whether the caller's handle decodes locks to the usual types, so that `read_lock` understands them."""
        options = self.callers
        return (
            options.document_class is dict
            and not options.type_registry._decoder_map  # noqa: SLF001  # It has no other way to ask.
            and options.datetime_conversion is DatetimeConversion.DATETIME
            and options.unicode_decode_error_handler == "strict"
        )

    @property
    def is_encrypted(self) -> bool:
        """Whether the caller's client encrypts fields automatically. It cannot do that in an aggregation."""
        return self.collection.database.client.options.auto_encryption_opts is not None

    def key_of(self, document_id: object) -> bytes:
        """Return the id as BSON, to compare and to remember it by."""
        return bson.encode({"": document_id}, codec_options=self.callers)

    def ids(self, ids: Sequence[object]) -> dict[str, Any]:
        """Return the condition that a document has one of these ids."""
        return {"_id": self._encoded({"$in": list(ids)})}

    def one(self, document_id: object) -> dict[str, Any]:
        """Return the condition that a document has this id."""
        return {"_id": self._encoded({"$eq": document_id})}

    def but(self, ids: Sequence[object]) -> dict[str, Any]:
        """Return the condition that a document has none of these ids."""
        return {"_id": self._encoded({"$nin": list(ids)})}

    def place_among(self, ids: Sequence[object]) -> RawBSONDocument:
        """Return the expression for the index of a document's id among these; -1 if it is not among them."""
        return self._encoded({"$indexOfArray": [{"$literal": list(ids)}, "$_id"]})

    def _encoded(self, condition: Mapping[str, Any]) -> RawBSONDocument:
        return RawBSONDocument(bson.encode(condition, codec_options=self.callers))

    def id_in(self, document: RawBSONDocument) -> object:
        """Return the `_id` as the caller's handle decodes it; if that fails, as our codec options do."""
        own = self.own_id_in(document)
        try:
            return bson.decode(bson.encode({"": own}, codec_options=OWN_OPTIONS), codec_options=self.callers)[""]
        except Exception:  # noqa: BLE001  # A decoder of the caller may raise anything.
            return own

    def can_name(self, document: RawBSONDocument) -> bool:
        """Return whether a condition can name this document by its `_id`, the first field of what was read.

        It cannot if Python has no value for the `_id`: text that is not UTF-8, or a deprecated type.
        """
        own = bson.encode({"_id": self.own_id_in(document)}, codec_options=OWN_OPTIONS)
        return bytes(document.raw[4 : len(own) - 1]) == own[4:-1]

    def is_nameable(self, document: RawBSONDocument) -> bool:
        """Return whether a condition can name this document; log once where it cannot."""
        if self.can_name(document):
            return True
        document_id = self.own_id_in(document)
        if self.logged.add(document_id):
            logger.warning(
                "document %s of %s is never claimed: its _id is text that is not UTF-8, or has a deprecated type. "
                "Store it under another _id",
                shown(document_id),
                self.collection.full_name,
            )
        return False

    def report_unreadable(self, document: RawBSONDocument) -> None:
        """Log once that the lock of this document is unreadable."""
        document_id = self.id_in(document)
        if self.logged.add(document_id):
            logger.warning(
                "the field %r of document %r of %s is not a lock written by this library or by a program that uses "
                "{by, until}; the document is not claimed until that field is unset",
                self.lock_field,
                document_id,
                self.collection.full_name,
            )

    def count_skipped(self) -> int:
        """Return how many documents are skipped: `refused` and `logged`. May be called from any thread."""
        return len(self.refused) + len(self.logged)

    @staticmethod
    def own_id_in(document: RawBSONDocument) -> Any:
        """Return the `_id` as our codec options decode it."""
        return bson.decode(document.raw, codec_options=LENIENT)["_id"]

    def lock_in(self, document: Mapping[str, Any]) -> Lock | None:
        """Return the lock of a document that was read with our codec options, raw or not; None if it is unreadable."""
        if isinstance(document, RawBSONDocument):
            document = bson.decode(document.raw, codec_options=LENIENT)
        lock = read_lock(document.get(self.lock_field))
        # The driver has replaced bytes that are not UTF-8: no condition could name that holder.
        is_garbled = lock is not None and lock.by is not None and _REPLACED in f"{lock.by}{lock.token}"
        return None if is_garbled else lock

    # --- Conditions ---

    def at(self, name: str) -> str:
        """Return the path of a field of the lock."""
        return f"{self.lock_field}.{name}"

    def meant(self, *conditions: Mapping[str, Any]) -> dict[str, Any]:
        """Return the caller's filter and these conditions."""
        # By `$and`, not merged: the filter may have the same fields and operators.
        return {"$and": [self.filter, *conditions]}

    def claimable(self, now: datetime) -> dict[str, Any]:
        """Return the condition that a document may be claimed now: it has no lock, or a lock that is free by now."""
        lock, by, until = self.lock_field, self.at("by"), self.at("until")
        return {
            # Redundant beside the `$or`, but it lets an index on `until` and `by` serve the query: that index does not
            # have the lock as a whole.
            until: {"$not": {"$gt": now}},
            # A lock that has expired still has its holder. A rescue takes it away, and counts the attempt.
            by: None,
            # The path of a field also matches fields of documents in an array, which is not a lock.
            "$nor": self._arrays,
            "$or": [
                {lock: None},
                {until: {"$gte": EARLIEST, "$lte": now}},
                # With `by` spelled out as null: a document without both fields is not a lock.
                {by: {"$type": _NULL}, until: None},
            ],
        }

    def unreadable(self, now: datetime) -> dict[str, Any]:
        """Return the condition that a lock is unreadable, and that its `until` is not a date in the future.

        With a date in the future, it may be the lock of a program that this version does not know: it is left alone.
        """
        lock, by, until = self.lock_field, self.at("by"), self.at("until")
        readable: list[dict[str, Any]] = [
            {until: {"$gte": EARLIEST}, by: {"$type": "string"}},
            {until: {"$gte": EARLIEST}, by: None},
            {until: None, by: {"$type": _NULL}},
        ]
        return {until: {"$not": {"$gt": now}}, "$or": [*self._arrays, {lock: {"$ne": None}, "$nor": readable}]}

    @property
    def waiting(self) -> dict[str, Any]:
        """Return the condition that a document is free from some moment on. The query adds that moment."""
        return {self.at("by"): None, "$nor": self._arrays}

    @property
    def is_dead_letter(self) -> dict[str, Any]:
        """The condition that a document is a dead letter: its attempts are used up."""
        return {**self.waiting, self.at("until"): {"$gte": NEVER}}

    @property
    def _arrays(self) -> list[dict[str, Any]]:
        return [{name: {"$type": "array"}} for name in (self.lock_field, self.at("by"), self.at("until"))]

    @property
    def _bears_until(self) -> dict[str, Any]:
        """Return a condition that every lock with a date meets. The index then skips documents without a lock."""
        return {self.at("until"): {"$gte": EARLIEST}}

    @property
    def held(self) -> dict[str, Any]:
        """Return the condition that any program holds a document until a moment."""
        return {self.at("by"): {"$ne": None}, **self._bears_until}

    def stamped(self, stamp: LockStamp) -> dict[str, Any]:
        """Return the condition that a document bears this claim, with any `until`.

        Only for what follows the claim at once, while the lease has just begun. Later, a program that knows only `by`
        and `until` may have taken the lock, and left our token: the writes of a holder use `fenced`.
        """
        return {self.at("by"): stamp.by, self.at("token"): stamp.token, **self._bears_until}

    def fenced(self, fence: Fence) -> dict[str, Any]:
        """Return the fence as a condition: the claim still holds the document, with an `until` that it has sent.

        With each `until` that it has sent, because a renewal without an answer may be applied or not. Without them, a
        lock would match that another program with our name took after the lease, and that still has our token.
        """
        return {
            self.at("by"): fence.by,
            self.at("token"): fence.token,
            self.at("until"): {"$in": list(fence.untils)},
        }

    # --- Proof ---

    def locks_by_majority(self, ids: Sequence[object], session: ClientSession) -> dict[bytes, object]:
        """Return the lock field of these documents, by key, as a majority has it after the writes of the session.

        On a primary that is cut off, a local read would prove nothing. Documents that are gone are left out.
        """
        found = by_majority(self.locks).find(self.ids(ids), [self.lock_field], hint=BY_ID, session=session)
        # Our codec options have decoded these ids, and encode them to the same bytes again: the key of the caller's id.
        return {
            bson.encode({"": document["_id"]}, codec_options=OWN_OPTIONS): document.get(self.lock_field)
            for document in found
        }


def as_stored(lock: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the lock as a later read returns it, to compare with: the database keeps milliseconds."""
    return bson.decode(bson.encode(lock, codec_options=OWN_OPTIONS), codec_options=OWN_OPTIONS)
