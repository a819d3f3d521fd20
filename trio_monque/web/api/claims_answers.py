"""The routes of claims on other collections: their counts, their dead letters, and the return of those.

Of a document only its id and what its lock says is shown: the collection is the program's, and may have anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ...claims.claimed_collection import MOST_COUNTED, ClaimedCollection
from ...error_types import MissingIndexError
from ...locks_and_dead_letters import LONGEST_ERROR
from ...store.documents.counting import LockCounts
from ...store.driver.extended_json import id_in, place_in, text_of_id, text_of_place
from ...store.jobs.job_json import iso
from ..answers import DENIED, INVALID_INPUT, RefusedRequestError
from .added_schemas import LOCK_STATES
from .query import limit_in, single_values
from .route import Call, Pairs, Route, Surface
from .schemas import TEXT
from .table import parameter

OF_LETTERS: Final = frozenset({"cursor", "limit"})
NO_SOURCE: Final = "Source not found"


def letters_asked(pairs: Pairs) -> Mapping[str, str]:
    """Return which page is asked for."""
    return single_values(pairs, OF_LETTERS)


def check_readmit(body: Any) -> None:
    """Refuse a body with ids and everything, or with neither."""
    if len(body) != 1:
        raise RefusedRequestError(400, INVALID_INPUT)


def has_claims(surface: Surface) -> bool:
    """Return whether the application shows claims."""
    return bool(surface.claims)


async def sources(call: Call) -> dict[str, Any]:
    """Return the sources with their counts."""
    return {"sources": [await _source_as_json(name, source) for name, source in call.surface.claims.items()]}


async def _source_as_json(name: str, source: ClaimedCollection) -> dict[str, Any]:
    counts, problem = None, None
    try:
        counts = _counts_as_json(await source.counts())
    except MissingIndexError as error:  # The others have their numbers.
        problem = str(error)
    return {"source": name, "collection": source.namespace, "counts": counts, "problem": problem}


def _counts_as_json(counts: LockCounts) -> dict[str, Any]:
    found = (
        counts.claimable,
        counts.waiting,
        counts.held,
        counts.overdue,
        counts.dead_letters,
        counts.unreadable,
    )
    numbers = dict(zip(LOCK_STATES, found, strict=True))
    return {
        **{state: min(number, MOST_COUNTED - 1) for state, number in numbers.items()},
        "capped": [state for state, number in numbers.items() if number >= MOST_COUNTED],
        "holders": [{"by": one.by, "held": one.held, "until": iso(one.until)} for one in counts.holders],
    }


async def dead_letters(call: Call) -> dict[str, Any]:
    """Return a page of dead letters."""
    limit = limit_in(call.query.get("limit"))
    after = place_in(call.query["cursor"]) if "cursor" in call.query else None
    page = await _source_of(call).dead_letters(after, limit)
    return {
        "letters": [
            {"id": text_of_id(document_id), "attempts": lock.tries, "error": await _error_text(call, lock.error)}
            for document_id, lock in page.letters
        ],
        "cursor": None if page.next is None else text_of_place(page.next),
        "hasNextPage": page.next is not None,
    }


async def _error_text(call: Call, text: str | None) -> str | None:
    # Another program may have written more than our own locks ever have.
    cut = None if text is None else text[:LONGEST_ERROR]
    return await call.surface.hooks.error_text_of(None, cut, call.context)


async def readmit(call: Call) -> dict[str, Any]:
    """Make dead letters claimable again. What the hook is asked about does not depend on what exists."""
    asked = {"source": call.id_text, **call.body}
    shown = {**asked, "ids": len(asked["ids"])} if "ids" in asked else asked
    call.audit.target = json.dumps(shown)
    if not await call.may("readmit", asked):
        raise RefusedRequestError(403, DENIED)
    call.take_turn()
    ids = [id_in(one) for one in dict.fromkeys(asked["ids"])] if "ids" in asked else None
    call.audit.count = await _source_of(call).readmit(ids)
    return {"count": call.audit.count}


def _source_of(call: Call) -> ClaimedCollection:
    if (source := call.surface.claims.get(call.id_text)) is None:
        raise RefusedRequestError(404, NO_SOURCE)
    return source


CLAIMS: Final[Sequence[Route]] = (
    Route(
        method="GET",
        path="/claims",
        operation_id="listClaimSources",
        summary="The collections with claims, and their documents by the state of their locks",
        act=sources,
        answer="ClaimSourceList",
        is_ours=True,
        statuses=(400, 403),
    ),
    Route(
        method="GET",
        path="/claims/{source}/dead",
        operation_id="listDeadLetters",
        summary="The dead letters of a source of claims, in the order of their ids",
        act=dead_letters,
        answer="DeadLetterPage",
        read_query=letters_asked,
        parameters=[parameter("cursor", TEXT), parameter("limit", TEXT)],
        is_ours=True,
        statuses=(400, 403, 404, 409),
    ),
    Route(
        method="POST",
        path="/claims/{source}/actions/readmit",
        operation_id="readmitDeadLetters",
        summary="Make dead letters claimable again: up to 100 by id, or all",
        act=readmit,
        answer="ReadmitResult",
        body="ReadmitRequest",
        needs_body=True,
        check_body=check_readmit,
        action="readmit",
        is_supported=has_claims,
        is_ours=True,
        statuses=(400, 403, 404, 409, 413, 415, 429),
    ),
)
