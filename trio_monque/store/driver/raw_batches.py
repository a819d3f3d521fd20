"""Documents in batches, as bytes.

So one document that cannot be decoded spoils no other, and a reader knows the size of what it has read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, Protocol, Self

from bson.raw_bson import RawBSONDocument
from pymongo import errors as driver
from pymongo.command_cursor import CommandCursor
from pymongo.cursor import Cursor

from .types import Collection

GATHERED_BYTES: Final = 2**20
"""Documents that come one by one are gathered until they have this size."""


class RawBatches(Protocol):
    """The batches that a query finds. Closing it closes the cursor of the server."""

    @property
    def alive(self) -> bool:
        """Whether there may be further batches."""
        ...

    def __iter__(self) -> Iterator[bytes]: ...

    def __next__(self) -> bytes: ...

    def close(self) -> None: ...


def found_in_batches(collection: Collection, *args: Any, **options: Any) -> RawBatches:
    """Return what `find` with these arguments finds, in the batches in which the server sends it."""
    try:
        return collection.find_raw_batches(*args, **options)
    except driver.InvalidOperation:
        # The driver refuses this to a client with automatic encryption: it decrypts one document at a time.
        return _Gathered(_raw(collection).find(*args, **options))


def aggregated_in_batches(collection: Collection, *args: Any, **options: Any) -> RawBatches:
    """Return what `aggregate` with these arguments finds, in batches."""
    # Not `aggregate_raw_batches`: the driver asks it for an empty first batch, which costs a round trip.
    return _Gathered(_raw(collection).aggregate(*args, **options))


def number_in(batch: bytes) -> int:
    """Return how many documents a batch has. Each begins with its size."""
    number = place = 0
    while place < len(batch):
        place += int.from_bytes(batch[place : place + 4], "little")
        number += 1
    return number


class _Gathered:
    """Documents that come one by one, gathered."""

    def __init__(self, cursor: Cursor[RawBSONDocument] | CommandCursor[RawBSONDocument]) -> None:
        self._cursor = cursor

    @property
    def alive(self) -> bool:
        return self._cursor.alive

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        found, size = [], 0
        for document in self._cursor:
            found.append(document.raw)
            size += len(found[-1])
            if size >= GATHERED_BYTES:
                break
        if not found:
            raise StopIteration
        return b"".join(found)

    def close(self) -> None:
        self._cursor.close()


def _raw(collection: Collection) -> Any:
    return collection.with_options(codec_options=collection.codec_options.with_options(document_class=RawBSONDocument))
