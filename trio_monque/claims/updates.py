"""What `finish` may be given: an update of operators, or a pipeline, that leaves the lock alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ..errors import InvalidOptionError
from ..store import documents
from ..store.documents.locked_collection import LockedCollection
from ..store.documents.settling_statements import EncodedUpdate

_PROBLEM: Final = "must be an update of operators, for example {'$set': {'status': 'done'}}, or a pipeline of them"


def encoded_update(locked: LockedCollection, update: object, document: object) -> EncodedUpdate:
    """The update of a document as it will be sent, whatever becomes of the caller's object until then.

    Raises:
        InvalidOptionError: It is none, or touches the lock.
        InvalidPayloadError: It cannot be encoded as BSON, or is larger than a statement may be.
    """
    is_pipeline = isinstance(update, list | tuple)
    stages: Iterable[object] = update if isinstance(update, list | tuple) else (update,)
    for stage in stages:
        if not isinstance(stage, Mapping):
            raise InvalidOptionError("update", update, _PROBLEM)
        for operator, named in stage.items():
            is_operator = isinstance(operator, str) and operator.startswith("$")
            if not is_operator or not (is_pipeline or isinstance(named, Mapping)):
                raise InvalidOptionError("update", update, _PROBLEM)
            for path in _named(operator, named):
                if path == locked.lock_field or str(path).startswith(f"{locked.lock_field}."):
                    raise InvalidOptionError(
                        "update", update, f"must not touch {locked.lock_field!r}: the lock is taken away by itself"
                    )
    return documents.settling_statements.encoded_update(locked, update, document)


def _named(operator: str, named: Any) -> Iterable[Any]:
    """The paths that it names. What a stage of a pipeline computes is not looked through: the lock goes last."""
    if isinstance(named, Mapping):
        return (*named, *named.values()) if operator == "$rename" else named
    if operator == "$unset":
        return named if isinstance(named, list | tuple) else (named,)
    return ()
