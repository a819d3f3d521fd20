"""What `finish` may be given: an update of operators, or a pipeline, that leaves the lock alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..errors import InvalidOptionError, InvalidPayloadError
from ..store import document_endings
from ..store.locked_collection import LockedCollection


def encoded_update(locked: LockedCollection, update: object) -> bytes:
    """The update as it will be sent, whatever becomes of the caller's object until then.

    Raises:
        InvalidOptionError: It is none, or touches the lock.
        InvalidPayloadError: It cannot be encoded as BSON; the encoder's error is the cause.
    """
    for path in _touched(update):
        if path.split(".")[0] == locked.lock_field:
            raise InvalidOptionError("update", update, f"must not touch {locked.lock_field!r}: the lock is taken away")
    try:
        return document_endings.encoded_update(locked, update)
    except Exception as error:
        raise InvalidPayloadError(f"the result of a document cannot be stored as BSON: {error}") from error


def _touched(update: object) -> Iterator[str]:
    """The paths that it names. What a stage of a pipeline computes is not looked through: the lock goes last."""
    problem = "must be an update of operators, for example {'$set': {'status': 'done'}}, or a pipeline of them"
    stages = update if isinstance(update, Sequence) and not isinstance(update, str | bytes) else [update]
    for stage in stages:
        if not isinstance(stage, Mapping) or not all(isinstance(name, str) and name[:1] == "$" for name in stage):
            raise InvalidOptionError("update", update, problem)
        for operator, named in stage.items():
            yield from _named(operator, named)


def _named(operator: str, named: Any) -> Iterator[str]:
    if isinstance(named, Mapping):
        yield from map(str, named)
        if operator == "$rename":
            yield from map(str, named.values())
    elif operator == "$unset":
        yield from [named] if isinstance(named, str) else map(str, named)
