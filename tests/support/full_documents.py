"""Documents without room: as Monque for Node stores them, whose driver sends up to 16 MiB."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

import bson
from bson import ObjectId

from trio_monque.store.driver.types import Collection

LARGEST: Final = 16 * 1024 * 1024
DUE: Final = datetime(2020, 1, 1, tzinfo=UTC)


def put_full(documents: Collection, room: int, **fields: Any) -> ObjectId:
    """Stores a pending job, due long ago, whose document could grow by `room` bytes; returns its id."""
    document: dict[str, Any] = {
        "_id": (own_id := ObjectId()),
        "name": "greet",
        "status": "pending",
        "failCount": 0,
        "nextRunAt": DUE,
        "createdAt": DUE,
        "updatedAt": DUE,
        **fields,
        "data": "",
    }
    document["data"] = "x" * (LARGEST - room - len(bson.encode(document)))
    documents.insert_one(document)
    assert len(bson.encode(document)) == LARGEST - room
    return own_id
