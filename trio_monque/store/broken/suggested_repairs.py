"""Suggests how to repair a document that is not a job, where a value is evident. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from ...error_types import BrokenDocumentError
from ...jobs.job import JobStatus
from ..decoding import job_of
from ..fields import FIELD

_DATES: Final = tuple(FIELD[name] for name in ("next_run_at", "created_at", "updated_at"))
# MongoDB adds to no null, and a job without the field has 0.
_COUNTERS: Final = tuple(FIELD[name] for name in ("fail_count", "attempts", "rescues"))
_OWNER: Final = FIELD["claim.by"]
_ANY_DATE: Final = datetime(2026, 1, 1, tzinfo=UTC)


def suggested_repair(document: Mapping[str, Any]) -> str | None:
    """Return the options with which `trio-monque repair` makes a job of the document; None if no value is evident.

    They are such as "--set nextRunAt=now", or "--unset claimedBy" for a pending document with an owner. None as well
    for a document that would still not be a job, such as one without a name, and for one that is a job.
    """
    dates = [field for field in _DATES if not isinstance(document.get(field), datetime)]
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
            *(f"--set {field}=now" for field in dates),
            *(f"--set {field}=0" for field in counters),
            *(f"--unset {field}" for field in removed),
        ]
    )
