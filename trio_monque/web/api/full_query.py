"""The query of a list with `view=full`: that of the contract, and more conditions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from ...error_types import InvalidOptionError
from ...jobs.job_query import JobFilter
from ..answers import INVALID_INPUT, RefusedRequestError
from .field_filters import fields_in, is_field_key
from .query import Listing, is_possible_name, listing_in, single_values
from .route import Pairs, no_query

_TEXTS: Final = {
    "key": "unique_key",
    "keyPrefix": "unique_key_prefix",
    "errorContains": "fail_reason",
    "errorPrefix": "fail_reason_prefix",
    "instance": "instance",
    "parent": "parent",
}
OF_FULL_LIST: Final = frozenset({"view", "direction", "due", *_TEXTS})
FLAGS: Final = {"true": True, "false": False}
DIRECTIONS: Final = ("forward", "backward")


@dataclass(frozen=True, kw_only=True)
class FullListing(Listing):
    """What a list in full is asked for.

    Attributes:
        direction: "backward" towards the beginning of the order; without a cursor, the last page.
        searches_errors: Whether a condition is one on error texts.
    """

    direction: Literal["forward", "backward"]
    searches_errors: bool


def any_view_in(pairs: Pairs) -> Listing:
    """Return what the query asks for; a FullListing if it has `view=full`.

    Raises:
        RefusedRequestError: It does not have the shape of one (400).
    """
    if not any(key == "view" for key, _ in pairs):
        return listing_in(pairs)
    fields = fields_in([(key, value) for key, value in pairs if is_field_key(key)])
    pairs = [(key, value) for key, value in pairs if not is_field_key(key)]
    own = single_values([(key, value) for key, value in pairs if key in OF_FULL_LIST], OF_FULL_LIST)
    shared = listing_in([(key, value) for key, value in pairs if key not in OF_FULL_LIST])
    direction = own.get("direction", "forward")
    if own["view"] != "full" or direction not in DIRECTIONS or own.get("due", "true") not in FLAGS:
        raise RefusedRequestError(400, INVALID_INPUT)
    texts = {attribute: own[key] for key, attribute in _TEXTS.items() if key in own}
    if not all(is_possible_name(text) for text in texts.values()):
        raise RefusedRequestError(400, INVALID_INPUT)
    return FullListing(
        filter=_with_more(shared, {**texts, "due": FLAGS[own["due"]] if "due" in own else None, "fields": fields}),
        sort=shared.sort,
        cursor=shared.cursor,
        limit=shared.limit,
        direction=direction,  # type: ignore[arg-type]  # It was checked.
        searches_errors="errorContains" in own or "errorPrefix" in own,
    )


def _with_more(shared: Listing, conditions: Mapping[str, Any]) -> JobFilter | None:
    if shared.filter is None:
        return None
    try:
        return replace(shared.filter, **conditions)
    except InvalidOptionError:  # Such as a key without a name, a text and a prefix for one field, or another status.
        raise RefusedRequestError(400, INVALID_INPUT) from None


def is_full_in(pairs: Pairs) -> bool:
    """Return whether the query of one job asks for it in full.

    Raises:
        RefusedRequestError: It has something else (400).
    """
    if not pairs:
        return False
    if list(pairs) != [("view", "full")]:
        no_query(pairs)
    return True
