"""What takes several reads, read as it was at one moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from pymongo import errors as driver

from .connection import is_standalone
from .types import ClientSession, Collection

T = TypeVar("T")

# SnapshotTooOld; SnapshotUnavailable, where the collection or an index was made a moment ago; NotAReplicaSet.
_NO_SNAPSHOT: Final = frozenset({239, 246, 123})


def at_one_moment(collection: Collection, read: Callable[[ClientSession | None], T]) -> T:
    """Reads in a session whose reads all see what a majority held at one moment.

    Without one, where the server has none to offer: what changes meanwhile may then be seen by none of the reads.
    """
    if not is_standalone(collection):
        try:
            with collection.database.client.start_session(snapshot=True) as session:
                return read(session)
        except driver.OperationFailure as error:
            if error.code not in _NO_SNAPSHOT:
                raise
    return read(None)
