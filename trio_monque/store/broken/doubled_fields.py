"""Documents with two fields of one name: the server compares the first of them, and the driver reads the last.

No driver writes such a document by itself, but raw BSON and damaged imports do. This library reads one value, and the
server compares its conditional writes with the other: a claim, the end of a run, or a rescue then never matches. To
look for such fields in every document would make every job dearer. So this is done only after a write that should have
matched, by all that was read, did not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import bson
from bson import ObjectId
from bson.errors import BSONError

from ...error_types import BrokenDocumentError, MonqueConnectionError
from ...jobs.job import Job
from ...log import logger_of
from ..codec import LENIENT, OWN_OPTIONS, RawDocument, id_of
from ..decoding import job_of
from ..driver.commands import BY_ID, by_majority, command, of_ids
from ..fields import CLAIM, FIELD
from ..job_collection import JobCollection, name_in

logger = logger_of("store")

# The end of a recurring job's run is computed from these, and its guard compares them.
_SCHEDULE: Final = tuple(FIELD[name] for name in ("schedule.cron", "schedule.timezone", "schedule.on_exhausted"))
_PINNED: Final = (
    "name",
    "status",
    "next_run_at",
    "attempts",
    "fail_count",
    "rescues",
    "internals.rev",
    "claim.cancel_requested_at",
    "limits.start_by",
)

# The fields that conditional writes compare. Two fields of another name, such as `data`, do no harm.
_COMPARED: Final = frozenset({*(FIELD[name] for name in (*_PINNED, *CLAIM)), *_SCHEDULE})
_ENCODED: Final = tuple(field.encode() + b"\0" for field in _COMPARED)


class _FirstOfEach(dict[str, Any]):
    """A document as the server compares it: of two fields of one name, the first."""

    def __init__(self) -> None:
        super().__init__()
        self.doubled: list[str] = []

    def __setitem__(self, field: str, value: Any) -> None:
        if field in self:
            self.doubled.append(field)
        else:
            super().__setitem__(field, value)


AS_COMPARED: Final = LENIENT.with_options(document_class=_FirstOfEach)
"""Codec options that read what the server compares. Slower than a plain dict: for a few small documents."""

_JOB_AS_COMPARED: Final = OWN_OPTIONS.with_options(document_class=_FirstOfEach)


def doubled_fields(document: bytes) -> Sequence[str]:
    """Return the names of the compared fields that the document has twice."""
    # A cheap check first. It may find too many: the name may also stand in a value, or at the end of another name.
    if all(document.count(name) < 2 for name in _ENCODED):
        return ()
    try:
        read = bson.decode(document, AS_COMPARED)
    except BSONError:
        return ()  # A document that cannot be decoded is reported elsewhere.
    return [field for field in read.doubled if field in _COMPARED]


def problem_of(document: bytes) -> str | None:
    """Return what is wrong with a document that has a compared field twice; None if it has none."""
    doubled = doubled_fields(document)
    return f"it has two fields called {doubled[0]}" if doubled else None


def report_doubled(jobs: JobCollection, ids: Collection[ObjectId]) -> None:
    """Skip the documents that have a compared field twice from now on, and log each once.

    Does not raise if the database does not answer: the caller must not lose what it has claimed or rescued. The next
    write that does not match asks again.
    """
    with suppress(MonqueConnectionError):
        _report_doubled(jobs, ids)


@command("look for fields that documents have twice", writes=False)
def _report_doubled(jobs: JobCollection, ids: Collection[ObjectId]) -> None:
    for document in by_majority(jobs.raw).find(of_ids(ids), hint=BY_ID):
        problem = problem_of(document.raw)
        if problem is not None:
            error = BrokenDocumentError(id_of(document), problem)
            if jobs.report_broken(error.document_id, problem, name_in(document)):
                logger.warning("%s; it is skipped until then", error)


@command("read the schedule of the job", writes=False)
def current_schedule(jobs: JobCollection, job_id: ObjectId) -> tuple[Job, str | None] | None:
    """Return the job as the server compares it, and the name of a schedule field that it has twice, if there is one.

    Return None if there is no such job. Raises BrokenDocumentError if the document is not a job.
    """
    document = jobs.raw.find_one({"_id": job_id}, hint=BY_ID)
    if document is None:
        return None
    doubled = (field for field in doubled_fields(document.raw) if field in _SCHEDULE)
    return as_compared(document), next(doubled, None)


def as_compared(document: RawDocument) -> Job:
    """Return the job as the server compares it. Raises BrokenDocumentError if that is not a job."""
    try:
        return job_of(bson.decode(document.raw, _JOB_AS_COMPARED))
    except BSONError as error:
        raise BrokenDocumentError(id_of(document), f"it cannot be decoded ({error})") from error


def jobs_as_compared(documents: Iterator[RawDocument]) -> Iterator[Job]:
    """Yield the jobs among the documents, as the server compares them."""
    for document in documents:
        try:
            yield as_compared(document)
        except BrokenDocumentError:
            continue  # It is logged already, as broken.
