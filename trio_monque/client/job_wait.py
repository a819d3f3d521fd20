"""One wait for the ends of jobs: what it has found, and when it is over. No threads, and no commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal

from ..checks import check_seconds
from ..error_types import BrokenDocumentError, InvalidOptionError, MonqueConnectionError, MonqueError
from ..jobs.ended_job_errors import JobDeletedError, problem_of
from ..jobs.job import Job, made_of, result_reader
from ..jobs.job_query import object_id
from ..store.driver.types import ObjectId
from ..store.jobs.ended_jobs import EndedLook

Until = Literal["all", "first"]

ResultReaders = Mapping[ObjectId, Callable[[Any], Any]]
"""Maps job ids to functions that convert a stored result to the worker's declared type."""

NONE: Final[ResultReaders] = MappingProxyType({})

AGAIN_AFTER: Final = 0.025
"""Seconds after which a job is looked at again that the stream reported, and a majority did not show as ended yet."""


class JobWait:
    """One wait. Any thread may call it, one at a time: `EndWatcher` has the lock.

    Attributes:
        ids: The jobs, in the caller's order. A text that is not the id of any document stays a text.
        live: Those whose ends are not known yet.
    """

    def __init__(
        self, ids: Sequence[ObjectId | str], until: Until, *, check: bool, readers: ResultReaders = NONE
    ) -> None:
        self.ids = ids
        self._readers = readers
        self.live = {one for one in ids if isinstance(one, ObjectId)}
        self._until = until
        self._check = check
        self._ends: dict[ObjectId | str, Job | MonqueError] = {}
        self._failure: MonqueError | None = None
        for one in ids:
            if isinstance(one, str):
                self._note(one, JobDeletedError(one))

    @property
    def is_over(self) -> bool:
        """Whether `result` has an answer."""
        if self._failure is not None or not self.live:
            return True
        return self._until == "first" and bool(self._ends)

    def take(self, found: EndedLook, gone: Iterable[ObjectId] = ()) -> None:
        """Note what a look found, and which jobs are gone for certain."""
        for job_id, ended in found.ended.items():
            self._end(job_id, ended)
        for job_id in found.recurring:
            self.fail(
                InvalidOptionError("job", str(job_id), "is recurring: it never ends. Listen to the events of its runs"),
                job_id,
            )
        for job_id in gone:
            self._end(job_id, JobDeletedError(job_id))

    def fail(self, error: MonqueError, job_id: ObjectId | None = None) -> None:
        """End the wait with this error; with an id, only if it waits for that job."""
        if (job_id is None or job_id in self.live) and self._failure is None:
            self._failure = error

    def _end(self, job_id: ObjectId, ended: Job | MonqueError) -> None:
        if job_id not in self.live:
            return
        self.live.discard(job_id)
        if isinstance(ended, Job) and self._check:
            ended = problem_of(ended) or ended
        self._note(job_id, ended)

    def _note(self, job_id: ObjectId | str, ended: Job | MonqueError) -> None:
        self._ends[job_id] = ended
        if isinstance(ended, BrokenDocumentError) or (isinstance(ended, MonqueError) and self._until == "all"):
            # There is nothing to wait for any more: the result would be this error in the end.
            self.fail(ended)

    def timed_out(self, timeout: float, fault: MonqueConnectionError | None) -> TimeoutError:
        """Return the error of a wait that was not over in time. `fault` is why the last look failed, if it did."""
        live = next(one for one in self.ids if one in self.live)
        if len(self.ids) == 1:
            what = f"gave up waiting for job {live} after {timeout:g} s; the job continues"
        else:
            what = f"gave up waiting for {len(self.live)} of {len(self.ids)} jobs after {timeout:g} s, such as {live}"
        error = TimeoutError(what if fault is None else f"{what}; the last query failed: {fault}")
        error.__cause__ = fault
        return error

    def result(self) -> Sequence[Job]:
        """Return the jobs that have ended, in the caller's order, or raise the error of the first that has one.

        The result of a job that was enqueued with its worker is of the type that the worker declares.

        Raises:
            UnreadablePayloadError: It cannot be read as that type.
        """
        if self._failure is not None:
            raise self._failure
        ended = [self._ends[job_id] for job_id in self.ids if job_id in self._ends]
        if self._until == "first":
            ended = ended[:1]
        jobs = []
        for one in ended:
            if isinstance(one, MonqueError):
                raise one
            read = self._readers.get(one.id)
            if read is not None and one.result is not None:
                one = made_of({**vars(one), "result": read(one.result)})
            jobs.append(one)
        return jobs


def job_wait(jobs: Iterable[Job | ObjectId | str], until: str, timeout: float | None, *, check: bool) -> JobWait:
    """Return the wait of a call.

    Raises:
        InvalidOptionError: An argument is invalid; the message names it.
    """
    if until not in ("all", "first"):
        raise InvalidOptionError("until", until, 'must be "all" or "first"')
    if timeout is not None:
        check_seconds("timeout", timeout, zero=True)
    if isinstance(jobs, str | bytes | Job | ObjectId):
        raise InvalidOptionError("jobs", jobs, "must be a list of jobs or of their ids")
    given = list(jobs)
    ids = list(dict.fromkeys(id_of(one) for one in given))
    readers = {one.id: read for one in given if isinstance(one, Job) and (read := result_reader(one)) is not None}
    if until == "first" and not ids:
        raise InvalidOptionError("jobs", ids, 'is empty: no job could be the first. until="all" allows that')
    return JobWait(ids, "all" if until == "all" else "first", check=check, readers=readers)


def id_of(job: Job | ObjectId | str) -> ObjectId | str:
    """Return the id of a job, or the given text if it cannot be one: `get_job` does not find such a job either.

    Raises:
        InvalidOptionError: It is neither a job, nor an id, nor a text.
    """
    given: object = job
    if isinstance(given, Job):
        return given.id
    if not isinstance(given, ObjectId | str):  # ObjectId(None) would be a new id.
        raise InvalidOptionError("job", job, "must be a job or its id")
    return object_id(given) or str(given)


OnEnd = Callable[[], object]
"""Called once, in any thread, when a wait is over: it resumes the caller."""
