"""Selectors in the bodies of bulk actions. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

from ...jobs.job_selector import Selection
from ..answers import INVALID_INPUT, RefusedRequestError
from ..hooks import Hooks
from .moments import moment_in
from .query import is_possible_name

HIDDEN_ERRORS = "Error texts are hidden here, so jobs cannot be selected by them"


_MOMENTS: Final = {
    "olderThan": "older_than",
    "newerThan": "newer_than",
    "updatedAtFrom": "updated_from",
    "updatedAtTo": "updated_to",
}
_ATTRIBUTES: Final[Mapping[str, str]] = {
    "name": "name",
    "status": "status",
    **_MOMENTS,
    "due": "due",
    "errorContains": "fail_reason",
    "errorPrefix": "fail_reason_prefix",
    "key": "unique_key",
    "keyPrefix": "unique_key_prefix",
}


def check_selector(body: Any) -> None:
    """Refuse a selector that selects everything without naming that: it may be a mistake of the caller."""
    if ("everything" in body) == bool(body.keys() - {"everything"}):
        raise RefusedRequestError(400, INVALID_INPUT)
    check_texts("key" in body and "keyPrefix" in body, "errorContains" in body and "errorPrefix" in body)
    # A key is that of one name.
    check_texts(("key" in body or "keyPrefix" in body) and "name" not in body)
    check_texts("due" in body and not _may_be_due(body.get("status", "pending")))
    for condition in ("key", "keyPrefix", "errorContains", "errorPrefix"):
        check_texts(condition in body and not is_possible_name(body[condition]))


def _may_be_due(status: Any) -> bool:
    return set([status] if isinstance(status, str) else status) == {"pending"}


def check_texts(*are_wrong: bool) -> None:
    """Refuse conditions on texts that contradict each other, or that the library refuses."""
    if any(are_wrong):
        raise RefusedRequestError(400, INVALID_INPUT)


def selector_in(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions of the body; none if it selects everything."""
    return {key: value for key, value in body.items() if key != "everything"}


def selection_of(selector: Mapping[str, Any], hooks: Hooks) -> Selection | None:
    """Return the selection; None if no job can be selected.

    Raises:
        RefusedRequestError: It selects by texts that the caller may not see: the count of the jobs would show them.
    """
    check_error_search(hooks, "errorContains" in selector or "errorPrefix" in selector)
    if not is_possible_name(selector.get("name", "any")):
        return None
    given = {
        attribute: moment_in(selector[key]) if key in _MOMENTS else selector[key]
        for key, attribute in _ATTRIBUTES.items()
        if key in selector
    }
    return None if _ends_before_it_begins(given) else cast("Selection", given)


def _ends_before_it_begins(given: Mapping[str, Any]) -> bool:
    """Return whether no job is of the age. The library refuses that, and the contract selects none, as lists do."""
    newer, older = given.get("newer_than"), given.get("older_than")
    return newer is not None and older is not None and newer >= older


def check_error_search(hooks: Hooks, searches: bool) -> None:  # noqa: FBT001
    """Refuse a search in error texts where a hook hides or changes them."""
    if searches and hooks.show_errors is not True:
        raise RefusedRequestError(400, HIDDEN_ERRORS)
