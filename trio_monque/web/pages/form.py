"""The form that a page posts, and the page that is shown after it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from urllib.parse import parse_qsl, urlencode

from ..answers import INVALID_INPUT, RefusedRequestError
from ..api.moments import moment_in
from .page_actions import DELETE, MOVE, PAGE_ACTIONS, PAUSE, READMIT, RESUME, PageAction

MOST_FIELDS: Final = 300
MOST_IDS: Final = 100
RESULT: Final = frozenset({"done", "n", "not"})
"""The keys that say what was done, in the query of the page that is shown after it."""

PACKED: Final = "asked"
"""The hidden field that has others in it."""

_ID: Final = re.compile(r"[0-9a-fA-F]{24}")
_BACK: Final = re.compile(
    r"(|jobs|jobs/[0-9a-fA-F]{24}|errors|schedules|instances|search|health|claims(/[A-Za-z0-9_][A-Za-z0-9._-]{0,99})?)"
)
_PARTS: Final = frozenset({"do", "id", "all", "target", "letter", "at", "back", "ok"})


@dataclass(frozen=True, slots=True)
class Form:
    """What a form asks for.

    Attributes:
        action: What is to be done.
        ids: To which jobs; empty for another target.
        is_all: To all jobs that match `query`.
        query: The filters of the screen Jobs, for `is_all`.
        target: The name that is paused or resumed, or the source of claims.
        letter: The document that is readmitted; None for all dead letters of the source.
        at: When the job that is moved is to be due; None while that is asked.
        back: The page that is shown after it: a path below the dashboard with its query.
        is_confirmed: A page has asked.
    """

    action: PageAction
    ids: Sequence[str]
    is_all: bool
    query: Mapping[str, str]
    target: str | None
    letter: str | None
    at: datetime | None
    back: str
    is_confirmed: bool

    @property
    def needs_confirmation(self) -> bool:
        """Whether a page asks first: for whatever cannot be undone, and for more than one job."""
        all_letters = self.action is READMIT and self.letter is None
        return self.action.asks or self.is_all or len(self.ids) > 1 or all_letters

    @property
    def place_after(self) -> str:
        """The page that is shown after it was done: `back`, unless that is the page of a job that is gone then."""
        is_gone = self.action is DELETE and self.back.partition("?")[0].lower() in {f"jobs/{one}" for one in self.ids}
        return "jobs" if is_gone else self.back

    @property
    def fields(self) -> Sequence[tuple[str, str]]:
        """All of it again, for the page that asks, without the filters."""
        ids = [("id", one) for one in self.ids]
        given = {"target": self.target, "letter": self.letter, "all": "1" if self.is_all else None}
        texts = [(key, value) for key, value in given.items() if value is not None]
        return [("do", self.action.key), *ids, *texts, ("back", self.back)]


def form_in(pairs: Sequence[tuple[str, str]]) -> Form:
    """Return what a form asks for.

    Raises:
        RefusedRequestError: No page has such a form (400).
    """
    if len(pairs) > MOST_FIELDS:
        raise RefusedRequestError(400, INVALID_INPUT)
    given = dict(pairs)
    ids = list(dict.fromkeys(value.lower() for key, value in pairs if key == "id"))
    action = PAGE_ACTIONS.get(given.get("do", ""))
    is_all, target = given.get("all") == "1", given.get("target")
    if action is None or len(ids) > MOST_IDS or not all(_ID.fullmatch(one) for one in ids):
        raise RefusedRequestError(400, INVALID_INPUT)
    if (bool(ids), is_all, target is not None).count(True) != 1:
        raise RefusedRequestError(400, "Choose at least one job")
    query = {key: value for key, value in pairs if key not in _PARTS and value}
    if (target is not None) != (action in (PAUSE, RESUME, READMIT)):
        raise RefusedRequestError(400, INVALID_INPUT)
    if action is MOVE and len(ids) != 1:
        raise RefusedRequestError(400, "One job is moved at a time")
    at = _moment(given["at"]) if "at" in given else None
    letter, back = given.get("letter") or None, place_in(given.get("back", ""))
    return Form(action, ids, is_all, query, target, letter, at, back, given.get("ok") == "1")


def _moment(text: str) -> datetime:
    """Return the moment of a field: in UTC, and without seconds where they are 0. The script sends all of it."""
    found = moment_in(text) or moment_in(f"{text}Z") or moment_in(f"{text}:00Z")
    if found is None:
        raise RefusedRequestError(400, "This is not a moment")
    return found


def packed(pairs: Iterable[tuple[str, str]]) -> str:
    """Return fields as the value of one hidden field, in ASCII.

    A page shows symbols in place of characters that cannot be seen, and a browser sends other line breaks than it was
    given. A name or an error with such characters would be another one when it comes back.
    """
    return urlencode(list(pairs), errors="replace")


def pairs_in(raw: bytes) -> Sequence[tuple[str, str]]:
    """Return the fields of a form that was posted, also packed ones. Raises RefusedRequestError (400) if it is none."""
    pairs = _parsed(raw)
    asked = [value for key, value in pairs if key == PACKED]
    return [*(one for value in asked for one in _parsed(value.encode())), *(one for one in pairs if one[0] != PACKED)]


def _parsed(raw: bytes) -> Sequence[tuple[str, str]]:
    try:
        return parse_qsl(
            raw.decode("utf-8"), keep_blank_values=True, strict_parsing=bool(raw), max_num_fields=MOST_FIELDS
        )
    except ValueError:  # Not UTF-8, too many fields, or without "=".
        raise RefusedRequestError(400, INVALID_INPUT) from None


def place_in(text: str) -> str:
    """Return the page of a form's `back`, or the overview: it may lead nowhere but to a page of the dashboard."""
    path, _, query = text.partition("?")
    if not _BACK.fullmatch(path):
        return ""
    pairs = [(key, value) for key, value in parse_qsl(query) if key not in RESULT]
    return path + (f"?{urlencode(pairs, errors='replace')}" if pairs else "")


def after(back: str, done: str, number: int, refused: int) -> str:
    """Return the page that is shown after something was done, with what came of it."""
    more = urlencode({"done": done, "n": number, **({"not": refused} if refused else {})})
    return f"{back}{'&' if '?' in back else '?'}{more}"
