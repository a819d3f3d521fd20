"""Suggests how to repair a document that is not a job, where a value is evident. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ...error_types import BrokenDocumentError
from ...jobs.job import JobStatus
from ..decoding import job_of
from ..fields import FIELD

_DUE: Final = FIELD["next_run_at"]
# Nothing depends on these two.
_OTHER_DATES: Final = tuple(FIELD[name] for name in ("created_at", "updated_at"))
# MongoDB adds to no null, and a job without the field has 0.
_COUNTERS: Final = tuple(FIELD[name] for name in ("fail_count", "attempts", "rescues"))
_OWNER: Final = FIELD["claim.by"]
_ANY_DATE: Final = datetime(2026, 1, 1, tzinfo=UTC)


def suggested_repair(document: Mapping[str, Any]) -> str | None:
    """Return the options with which `trio-monque repair` makes a job of the document; None if no value is evident.

    They are such as "--set nextRunAt=now", or "--unset claimedBy" for a pending document with an owner. A due date that
    is text stays the date that the text is; of one that is anything else, nothing is evident: the job may be due in
    years. None as well for a document that would still not be a job, such as one without a name, and for one that is a
    job.
    """
    dates = {field: "now" for field in _OTHER_DATES if not isinstance(document.get(field), datetime)}
    if not isinstance(due := document.get(_DUE), datetime):
        meant = _due_date_in(due)
        if meant is None:
            return None
        dates = {_DUE: meant, **dates}
    counters = [field for field in _COUNTERS if document.get(field, 0) is None]
    has_owner = document.get(FIELD["status"]) == JobStatus.PENDING and document.get(_OWNER) is not None
    removed = [_OWNER] if has_owner else []
    if not (dates or counters or removed):
        return None
    repaired = {**document, **dict.fromkeys(dates, _ANY_DATE), **dict.fromkeys(counters, 0)}
    for field in removed:
        del repaired[field]
    try:
        job_of(repaired)
    except BrokenDocumentError:
        return None
    return " ".join(
        [
            *(f"--set {field}={moment}" for field, moment in dates.items()),
            *(f"--set {field}=0" for field in counters),
            *(f"--unset {field}" for field in removed),
        ]
    )


def _due_date_in(stored: object) -> str | None:
    """Return the due date that a stored value means, as the command takes it; None if that is not evident."""
    if stored is None:
        return "now"
    if type(stored) is not str:
        return None
    try:
        moment = datetime.fromisoformat(stored.strip())
    except ValueError:
        return None
    in_utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return in_utc.isoformat(timespec="milliseconds")
