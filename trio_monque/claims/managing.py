"""Calls for operators: create the index for claims, list dead letters, and readmit them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from ..checks import check_count, check_number
from ..error_types import InvalidOptionError
from ..store import documents
from ..store.documents.locked_collection import LockedCollection
from ..store.driver.connection import check_collection
from ..store.driver.database_threads import DatabaseThreads
from ..store.driver.types import TypedCollection
from .claim_options import Sort, check_filter, check_lock_field, checked_sort

DocT = TypeVar("DocT", bound=Mapping[str, Any])

_EVERY: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class DeadLetter(Generic[DocT]):
    """A document with no attempts left. No instance claims it until `readmit`.

    Attributes:
        id: Its `_id`.
        attempts: How many attempts have failed, or lost their holder.
        error: The error of the last one.
        document: The document; None if the codec options of the collection cannot decode it.
    """

    id: Any
    attempts: int
    error: str | None
    document: DocT | None


async def create_claim_index(
    collection: TypedCollection[DocT],
    filter: Mapping[str, Any],  # noqa: A002  # As it is called everywhere.
    *,
    lock_field: str = "lock",
    sort: Sort | None = None,
    operation_timeout: float = 10.0,
) -> str:
    """Create the index that serves claims with this filter, lock field and order; return its name.

    If the server supports it for this filter, the index is partial: it has only the documents that are still to be
    claimed. For `$exists: False`, `$ne` and `$nin` the server does not, and the index begins with the fields of the
    filter. Works on any anyio backend.

    Args:
        collection, filter, lock_field, sort: As for `open_claims`.
        operation_timeout: Seconds that the call may take. The server reads the whole collection to build an index, and
            gives up the build when they are over: for millions of documents, give minutes.

    Raises:
        InvalidDatabaseError, InvalidOptionError: The message names what is wrong.
        MonqueConnectionError: The server refuses, cannot be reached, or has not built the index in this time.
    """
    locked = _locked(collection, filter, lock_field, sort, operation_timeout=operation_timeout)
    return await DatabaseThreads().call(partial(documents.indexes.create, locked))


async def dead_letters(
    collection: TypedCollection[DocT],
    filter: Mapping[str, Any] = _EVERY,  # noqa: A002
    *,
    lock_field: str = "lock",
    limit: int = 100,
    operation_timeout: float = 10.0,
) -> Sequence[DeadLetter[DocT]]:
    """Return at most `limit` dead letters that match the filter. Works on any anyio backend.

    The query may take `operation_timeout` seconds.

    Raises:
        InvalidDatabaseError, InvalidOptionError: The message names what is wrong.
        MonqueConnectionError: The database cannot be reached or used.
    """
    check_count("limit", limit, at_least=1)
    locked = _locked(collection, filter, lock_field, operation_timeout=operation_timeout)
    found = await DatabaseThreads().call(
        partial(documents.listing_and_readmitting.listed, locked, limit), abandon_on_cancel=True
    )
    return [DeadLetter(one.id, one.lock.tries, one.lock.error, one.document) for one in found]


async def readmit(
    collection: TypedCollection[DocT],
    *document_ids: Any,
    filter: Mapping[str, Any] | None = None,  # noqa: A002
    lock_field: str = "lock",
    operation_timeout: float = 10.0,
) -> int:
    """Make dead letters claimable again, with all their attempts; return how many.

    Give the ids of documents, or a filter ({} for all). Documents that are not dead letters do not change. Each of the
    commands may take `operation_timeout` seconds. Works on any anyio backend.

    Raises:
        InvalidDatabaseError, InvalidOptionError: The message names what is wrong.
        MonqueConnectionError: The database cannot be reached or used.
    """
    if bool(document_ids) == (filter is not None):
        raise InvalidOptionError("document_ids", document_ids, "give the ids of documents, or filter= ({} for all)")
    wanted = _EVERY if filter is None else filter
    locked = _locked(collection, wanted, lock_field, operation_timeout=operation_timeout)
    return await DatabaseThreads().call(
        partial(documents.listing_and_readmitting.readmit, locked, document_ids or None)
    )


def _locked(
    collection: object, wanted: object, lock_field: str, sort: Sort | None = None, *, operation_timeout: float
) -> LockedCollection:
    check_lock_field(lock_field)
    check_number("operation_timeout", operation_timeout, above=0, at_most=86400)
    return LockedCollection.of(
        check_collection(collection),
        check_filter(wanted, lock_field),
        lock_field=lock_field,
        sort=checked_sort(sort),
        operation_timeout=operation_timeout,
    )
