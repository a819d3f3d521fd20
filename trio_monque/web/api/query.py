"""The query of a request, as the clients of Monque spell it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ...error_types import InvalidOptionError
from ...jobs.job import JobStatus
from ...jobs.job_query import JobFilter, JobSort
from ...jobs.job_selector import LONGEST_TEXT
from ..answers import INVALID_INPUT, INVALID_LIMIT, RefusedRequestError
from .moments import moment_in

MOST_ON_A_PAGE: Final = 100
USUAL_ON_A_PAGE: Final = 50

_SORTS: Final = {"identifier": "id", "createdAt": "created_at", "updatedAt": "updated_at", "nextRunAt": "next_run_at"}
_MOMENTS: Final = {
    "createdAtFrom": "created_from",
    "createdAtTo": "created_to",
    "updatedAtFrom": "updated_from",
    "updatedAtTo": "updated_to",
    "nextRunAtFrom": "run_from",
    "nextRunAtTo": "run_to",
}
OF_LIST: Final = frozenset({"cursor", "limit", "name", "sortBy", "sortDirection", *_MOMENTS})
OF_STATS: Final = frozenset({"name"})
STATUS: Final = "status"

# `status`, `status[]`, and `status[0]`: the official client numbers the values of a list.
_STATUS_KEY: Final = re.compile(r"status(\[\d{0,3}\])?", re.ASCII)
# What Number() of JavaScript reads as a decimal number.
_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_SPACES: Final = " \t\n\v\f\r\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"  # noqa: E501


@dataclass(frozen=True, kw_only=True)
class Listing:
    """What a list of jobs is asked for.

    Attributes:
        filter: The conditions; None if no job can match them.
        sort: The order.
        cursor: Where the page begins; None for the beginning.
        limit: As it was given, or None: it is read only when the caller may read.
    """

    filter: JobFilter | None
    sort: JobSort
    cursor: str | None
    limit: str | None


def single_values(pairs: Iterable[tuple[str, str]], allowed: frozenset[str]) -> Mapping[str, str]:
    """Return the values by key. Raise RefusedRequestError (400) for an unknown key, or one that is given twice."""
    found: dict[str, str] = {}
    for key, value in pairs:
        if key not in allowed or key in found:
            raise RefusedRequestError(400, INVALID_INPUT)
        found[key] = value
    return found


def listing_in(pairs: Iterable[tuple[str, str]]) -> Listing:
    """Return what the query asks for. Raise RefusedRequestError (400) if it has not the shape of one."""
    pairs = list(pairs)
    statuses = [value for key, value in pairs if _STATUS_KEY.fullmatch(key)]
    given = single_values([(key, value) for key, value in pairs if not _STATUS_KEY.fullmatch(key)], OF_LIST)
    sort_by, direction = given.get("sortBy", "createdAt"), given.get("sortDirection", "desc")
    if sort_by not in _SORTS or direction not in ("asc", "desc") or not set(statuses) <= set(JobStatus):
        raise RefusedRequestError(400, INVALID_INPUT)
    moments: dict[str, datetime] = {}
    for key, attribute in _MOMENTS.items():
        if key in given:
            if (moment := moment_in(given[key])) is None:
                raise RefusedRequestError(400, INVALID_INPUT)
            moments[attribute] = moment
    conditions: dict[str, Any] = {**moments, **({"status": statuses} if statuses else {})}
    if "name" in given:
        conditions["name"] = given["name"]
    return Listing(
        filter=_filter_of(conditions),
        sort=JobSort(by=_SORTS[sort_by], direction=direction),  # type: ignore[arg-type]  # They were checked.
        cursor=given.get("cursor"),
        limit=given.get("limit"),
    )


def _filter_of(conditions: Mapping[str, Any]) -> JobFilter | None:
    if "name" in conditions and not is_possible_name(conditions["name"]):
        return None
    try:
        return JobFilter(**conditions)
    except InvalidOptionError:  # A range that ends before it begins.
        return None


def is_possible_name(name: str) -> bool:
    """Return whether a job can have this name. The library refuses others, and the contract finds no job for them."""
    return 0 < len(name) <= LONGEST_TEXT


def limit_in(text: str | None) -> int:
    """Return the limit of a page, as JavaScript reads the text.

    Raises:
        RefusedRequestError: It is not a whole number of at least 1.
    """
    if text is None:
        return USUAL_ON_A_PAGE
    digits = text.strip(_SPACES)
    number = float(digits) if _NUMBER.fullmatch(digits) else 0.0
    if number < 1 or not number.is_integer():  # Infinity is not whole.
        raise RefusedRequestError(400, INVALID_LIMIT)
    return int(min(number, MOST_ON_A_PAGE))
