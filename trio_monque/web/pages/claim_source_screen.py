"""The screen of one collection with claims: its numbers, who holds documents, and its dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...error_types import MissingIndexError
from ...locks_and_dead_letters import LONGEST_ERROR
from ...store.documents.listing_and_readmitting import DeadLetterPage
from ...store.driver.extended_json import place_in, text_of_id, text_of_place
from ..answers import RefusedRequestError
from ..api.claims_answers import NO_SOURCE
from .claims_screen import cells_of, counts_or_problem
from .page_actions import READMIT
from .screen import PageCall, View
from .shown_values import shown_text

LETTERS_ON_A_PAGE: Final = 50
NO_LETTERS: Final = DeadLetterPage((), None)


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter.

    Attributes:
        id: Its id, as text that an action takes.
        attempts: How many failed or died.
        error: The last error, as it may be shown; None for none.
    """

    id: str
    attempts: int
    error: str | None


async def claim_source_facts(call: PageCall) -> View:
    """Ask for what the screen shows. Raises RefusedRequestError (404) for an unknown source."""
    name = call.request.path_params["source"]
    source = call.dashboard.surface.claims.get(name)
    if source is None:
        raise RefusedRequestError(404, NO_SOURCE)
    cursor = call.query("cursor")
    after = None if cursor is None else place_in(cursor)
    counts, problem = await counts_or_problem(source)
    page = NO_LETTERS
    if problem is None:
        try:
            page = await source.dead_letters(after, LETTERS_ON_A_PAGE)
        except MissingIndexError as error:  # It was dropped a moment ago.
            counts, problem = None, str(error)
    hooks, context = call.dashboard.hooks, call.context
    rows = [
        # Another program may have written more than our own locks ever have.
        LetterRow(
            text_of_id(document_id),
            lock.tries,
            await shown_text(None, lock.error and lock.error[:LONGEST_ERROR], hooks, context),
        )
        for document_id, lock in page.letters
    ]
    return View(
        "claim_source.html",
        f"Claims of {name}",
        {
            "source": name,
            "namespace": source.namespace,
            "cells": cells_of(counts),
            "problem": problem,
            "holders": () if counts is None else counts.holders,
            "letters": rows,
            "is_first": cursor is None,
            "older": None if page.next is None else text_of_place(page.next),
            "per_page": LETTERS_ON_A_PAGE,
            "hides_errors": hooks.show_errors is False,
            "may_readmit": await call.may(READMIT.permission, {"source": name, "everything": True}),
        },
    )
