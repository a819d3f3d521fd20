"""A value of every BSON type in a lock, beside it, and as an `_id`: claims go on, end, and harm no other document."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final

import pytest
import trio
from bson import encode
from bson.raw_bson import RawBSONDocument
from pymongo.errors import BulkWriteError
from trio.testing import MockClock

from tests.support.documents import DONE, OPEN
from tests.support.malformed import ELEMENTS, SHARE, Element, chunks, with_field
from tests.support.thoroughly import one_in
from trio_monque import Claim, run_claims
from trio_monque.claims import create_claim_index, dead_letters, readmit
from trio_monque.store.driver.types import Collection
from trio_monque.testing import now

PAST: Final = datetime(2026, 1, 1, tzinfo=UTC)
FIELDS: Final = ("by", "until", "every", "token", "tries", "error", "owner", "beside it")


def locks() -> dict[str, dict[str, Any]]:
    soon = now() + timedelta(seconds=20)
    return {
        "dead": {"by": "dead", "until": PAST, "every": 1000, "token": "dead:x", "tries": 1},
        "of another program": {"by": "program", "until": PAST},
        "free": {"by": None, "until": PAST, "tries": 2},
        "waiting": {"by": None, "until": soon, "tries": 2},
        "set aside": {"by": None, "until": datetime(9000, 1, 1, tzinfo=UTC), "tries": 2, "error": "x"},
    }


def fill(things: Collection, kinds: Sequence[str]) -> None:
    documents: list[RawBSONDocument] = []
    for kind in kinds:
        element = ELEMENTS[kind]
        documents += [
            with_field(OPEN, "_id", element),
            with_field({"_id": f"{kind} beside", **OPEN}, "content", element),
            with_field({"_id": f"{kind} as the lock", **OPEN}, "lock", element),
        ]
    for turn, (kind, (state, lock), field) in enumerate(product(kinds, locks().items(), FIELDS)):
        if turn % SHARE == 0:
            well = {"_id": f"{kind}, {state}, {field}", **OPEN, "lock": lock}
            if field == "beside it":
                documents.append(with_field(well, "content", ELEMENTS[kind]))
            else:
                malformed = Element(0x03, bytes(with_field(lock, field, ELEMENTS[kind]).raw))
                documents.append(with_field(well, "lock", malformed))
    with suppress(BulkWriteError):  # Not every value can be an `_id`.
        things.insert_many(documents, ordered=False)
    assert things.count_documents({}) >= len(documents) - len(kinds)


@pytest.mark.full
@pytest.mark.parametrize("kinds", one_in(12, chunks(list(ELEMENTS), 8)), ids=", ".join)
async def test_claims_do_what_is_well_and_end(
    things: Collection, autojump_clock: MockClock, kinds: Sequence[str]
) -> None:
    fill(things, kinds)
    good = [f"good {number}" for number in range(3)]
    things.insert_many([{"_id": one, **OPEN} for one in good])
    finished: list[bytes] = []

    async def handler(claim: Claim[Any]) -> None:
        await claim.finish(DONE)
        finished.append(encode({"": claim.document["_id"]}))

    async def run() -> None:
        with trio.fail_after(300):
            await run_claims(things, OPEN, handler, wait=False, heartbeat_interval=1, concurrency=50, max_attempts=3)

    await dead_letters(things, limit=1000)
    await run()
    assert {encode({"": one}) for one in good} <= set(finished)
    # Each once: whatever was finished matches no more, and nothing was finished that is open still.
    assert len(set(finished)) == len(finished) == things.count_documents({"state": "done"})
    await dead_letters(things, limit=1000)
    await readmit(things, f"{kinds[0]}, set aside, until")
    await readmit(things, filter={})
    await create_claim_index(things, OPEN)
    await run()
    assert len(set(finished)) == things.count_documents({"state": "done"})
