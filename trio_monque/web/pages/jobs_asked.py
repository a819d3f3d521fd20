"""What the URL of the screen Jobs asks for: the tab, the filters, the place. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, Literal

from ...jobs.job import JobStatus
from ...jobs.job_query import JobFilter, JobSort
from ...jobs.job_selector import LIVE
from ..answers import RefusedRequestError
from ..api.field_filters import fields_in, is_field_key
from ..api.moments import moment_in
from ..words.lengths import moment
from .form import RESULT


@dataclass(frozen=True, slots=True)
class Tab:
    """One tab: the jobs of one state, as people call it.

    Attributes:
        key: In the URL.
        text: On the page.
        status: Of its jobs.
        sort: The order of its list, which an index has.
        order: That order in words.
        due: Whether they are due; None for both.
    """

    key: str
    text: str
    status: JobStatus
    sort: str
    order: str
    due: bool | None = None


TABS: Final[Sequence[Tab]] = (
    Tab("due", "Due", JobStatus.PENDING, "next_run_at", "longest wait first", due=True),
    Tab("later", "Later", JobStatus.PENDING, "next_run_at", "next one first", due=False),
    Tab("running", "Running", JobStatus.PROCESSING, "-updated_at", "newest change first"),
    Tab("failed", "Failed", JobStatus.FAILED, "-updated_at", "newest change first"),
    Tab("done", "Done", JobStatus.COMPLETED, "-updated_at", "newest change first"),
    Tab("cancelled", "Cancelled", JobStatus.CANCELLED, "-updated_at", "newest change first"),
)
OF_KEY: Final = {tab.key: tab for tab in TABS}

SPANS: Final[Mapping[str, timedelta]] = {
    "10m": timedelta(minutes=10),
    "1h": timedelta(hours=1),
    "24h": timedelta(hours=24),
    "7d": timedelta(days=7),
}
"""How far back "changed since" can go by one choice, as the URL has it."""

TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "name": ("name", "Name"),
    "error": ("fail_reason_prefix", "Error begins"),
    "text": ("fail_reason", "Error has"),
    "key": ("unique_key", "Key"),
    "prefix": ("unique_key_prefix", "Key begins"),
    "instance": ("instance", "Held by"),
    "parent": ("parent", "Children of"),
}
"""The filters by a text: each with the attribute of a JobFilter, and what its chip is called."""
_LABELS: Final[Mapping[str, str]] = dict(TEXTS.values())

BY_DUE_DATE: Final = ("-next_run_at", "latest due date first")

PLACE: Final = frozenset({"cursor", "back"})
OWN_KEYS: Final = frozenset({"status", "since", "by", *PLACE, *TEXTS})

ON_A_PAGE: Final = 50


@dataclass(frozen=True, slots=True)
class Chip:
    """One filter that is on, with the query that the page has without it."""

    label: str
    text: str
    without: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class JobsAsked:
    """What a URL asks for.

    Attributes:
        query: All of it but the place, by key: every link of the page has it.
        tab: The tab; None for jobs of every state.
        conditions: Of a JobFilter, beside those of the tab.
        cursor, direction: The place.
        by_due: The jobs are to be sorted by when they are due.
    """

    query: Mapping[str, str]
    tab: Tab | None
    conditions: Mapping[str, Any]
    cursor: str | None = None
    direction: Literal["forward", "backward"] = "forward"
    by_due: bool = False
    chips: Sequence[Chip] = field(default_factory=list)

    @property
    def of_tab(self) -> dict[str, Any]:
        """The conditions of the tab."""
        if self.tab is None:
            return {}
        return {"status": self.tab.status, **({} if self.tab.due is None else {"due": self.tab.due})}

    @property
    def filter(self) -> JobFilter:
        """All conditions. Raises InvalidOptionError if they contradict each other."""
        return JobFilter(**{**self.of_tab, **self.conditions})

    @property
    def selection(self) -> Mapping[str, Any] | None:
        """The same for a bulk action, which has no conditions on fields and holders; None if they need one."""
        given = {**self.of_tab, **self.conditions}
        return None if given.keys() & {"fields", "instance", "parent"} else given

    @property
    def sort(self) -> JobSort:
        """The order of the list."""
        name = self._order[0]
        return JobSort(by=name.removeprefix("-"), direction="desc" if name[0] == "-" else "asc")  # type: ignore[arg-type]

    @property
    def order(self) -> str:
        """The order in words."""
        return self._order[1]

    @property
    def _order(self) -> tuple[str, str]:
        if self.by_due and not (self.tab and self.tab.due is not None):
            return BY_DUE_DATE
        if self.tab is not None:
            return self.tab.sort, self.tab.order
        # The index by name has the due date next: by the time of enqueuing, a rare name would need a long search.
        return BY_DUE_DATE if "name" in self.conditions else ("-created_at", "newest first")

    @property
    def contradiction(self) -> str | None:
        """Why no job can match, in the words of the page; None if there is no such reason."""
        given = self.conditions.keys()
        for one, other in (("fail_reason_prefix", "fail_reason"), ("unique_key", "unique_key_prefix")):
            if given >= {one, other}:
                return f"{_LABELS[one]} and {_LABELS[other]} cannot be combined: remove one of them."
        status = None if self.tab is None else self.tab.status
        if given & {"unique_key", "unique_key_prefix"}:
            if "name" not in given:
                return "A key belongs to a name: add the name to the filters."
            if status not in (None, *LIVE):
                return "Jobs are found by their key while they are due, later or running: choose another tab."
        if "instance" in given and status not in (None, JobStatus.PROCESSING):
            return "Only running jobs are held by an instance: choose another tab."
        for one in ("instance", "unique_key", "unique_key_prefix"):
            if given >= {"parent", one}:
                return f"{_LABELS['parent']} and {_LABELS[one]} cannot be combined: remove one of them."
        return None

    @property
    def names_only(self) -> bool:
        """Whether nothing but a name is filtered by: the counts of the tabs are those of an overview then."""
        return self.conditions.keys() <= {"name"}


def jobs_asked(pairs: Iterable[tuple[str, str]], now: datetime) -> JobsAsked:
    """Return what the query asks for.

    Raises:
        RefusedRequestError: It has a key or a value that is none (400).
    """
    given = {key: value for key, value in pairs if value and key not in RESULT}
    if unknown := [key for key in given if key not in OWN_KEYS and not is_field_key(key)]:
        raise RefusedRequestError(400, f"This page has no filter {unknown[0]!r}")
    tab = OF_KEY.get(given.get("status", ""))
    if tab is None and "status" in given:
        raise RefusedRequestError(400, f"Jobs have no state {given['status']!r}: choose one of the tabs")
    query = {key: value for key, value in given.items() if key not in PLACE}
    conditions: dict[str, Any] = {attribute: given[key] for key, (attribute, _) in TEXTS.items() if key in given}
    if "since" in given:
        conditions["updated_from"] = since_of(given["since"], now)
    if fields := fields_in([(key, value) for key, value in given.items() if is_field_key(key)]):
        conditions["fields"] = fields
    return JobsAsked(
        query=query,
        tab=tab,
        conditions=conditions,
        cursor=given.get("cursor"),
        direction="backward" if "back" in given else "forward",
        by_due=given.get("by") == "due",
        chips=[_chip(key, value, query) for key, value in query.items() if key not in ("status", "by")],
    )


def since_of(text: str, now: datetime) -> datetime:
    """Return the moment that a text stands for: a span back from now, or a moment.

    Raises:
        RefusedRequestError: It is neither (400).
    """
    found = now - SPANS[text] if text in SPANS else moment_in(text)
    if found is None:
        raise RefusedRequestError(400, f"{text!r} is neither a moment nor one of {', '.join(SPANS)}")
    return found


def _chip(key: str, value: str, query: Mapping[str, str]) -> Chip:
    label = "Changed in the last" if key == "since" and value in SPANS else "Changed since" if key == "since" else key
    if key in TEXTS:
        label = TEXTS[key][1]
    since = moment_in(value) if key == "since" else None
    shown = value if since is None else moment(since)
    return Chip(label, shown, {one: text for one, text in query.items() if one != key})
