"""Every error of the library's own. All derive from MonqueError, and from the fitting built-in where there is one.

They are divided by whose fault it is: a value that the caller passed, a state that does not allow what
was asked, or a database that cannot be reached or used. The message says what happened, with which
value, and what to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .safe_text import LONGEST_TEXT, one_line, shown, without_secrets

__all__ = [
    "AggregationTimeoutError",
    "AsyncWithError",
    "BrokenDocumentError",
    "CallContextError",
    "ClaimLostError",
    "DocumentRefusedError",
    "EmbeddedServerError",
    "FilterStillMatchesError",
    "InstanceCollisionError",
    "InvalidCronError",
    "InvalidCursorError",
    "InvalidDatabaseError",
    "InvalidJobIdentifierError",
    "InvalidOptionError",
    "InvalidPayloadError",
    "InvalidUpdateError",
    "JobStateError",
    "MissingIndexError",
    "MonqueConnectionError",
    "MonqueError",
    "PartialBulkError",
    "PartialEnqueueError",
    "PayloadTooLargeError",
    "ScheduleEndedError",
    "ShortageError",
    "UnreadablePayloadError",
    "WorkerRegistrationError",
]


class MonqueError(Exception):
    """The root of every error that this library raises on purpose."""


# --- A value that the caller passed ---


class InvalidOptionError(MonqueError, ValueError):
    """An option has a value that cannot work, alone or beside another.

    Attributes:
        option: The name of the option, as it is spelled in the call.
        value: What was given.
    """

    def __init__(self, option: str, value: object, problem: str) -> None:
        super().__init__(f"{option}={shown(value)}: {problem}")
        self.option = option
        self.value = value


class InvalidDatabaseError(MonqueError, TypeError):
    """What was given as the database is not a `pymongo.database.Database`."""


class InvalidJobIdentifierError(MonqueError, ValueError):
    """A job name or a unique key that cannot be stored.

    Attributes:
        field: "name" or "unique_key".
        value: What was given.
    """

    def __init__(self, field: str, value: object, problem: str) -> None:
        super().__init__(f"{field}={shown(value, 80)}: {problem}")
        self.field = field
        self.value = value


class InvalidPayloadError(MonqueError, ValueError):
    """The data of a job is not what its worker takes; or it, or what its handler gave, cannot be stored or read again.

    The message says which value inside is wrong, and what to store instead. The encoder's or decoder's error is the
    cause. Data that are nested too deeply for MongoDB have no cause.
    """


class UnreadablePayloadError(MonqueError):
    """The stored data of a job is not what its worker's `payload` reads; the message names the path.

    It is a failed try, which backs off: a newer release that is being deployed may read what an older one
    cannot. `retry_on` does not concern it; `discard_on=UnreadablePayloadError` gives such jobs up at once.
    """


class PayloadTooLargeError(InvalidPayloadError):
    """The data of a job, or what its handler gave to be stored, is larger than allowed.

    Attributes:
        actual: Size in bytes, as BSON.
        maximum: The limit in bytes (`max_payload_size`, or what a MongoDB document can hold).
    """

    def __init__(self, actual: int, maximum: int, what: str = "data") -> None:
        reference = "enqueue a reference to it" if what == "data" else "give a reference to it instead"
        super().__init__(
            f"the job's {what} is {actual} bytes as BSON, more than the {maximum} allowed: "
            f"store it elsewhere and {reference}, or raise max_payload_size"
        )
        self.actual = actual
        self.maximum = maximum


class InvalidCronError(MonqueError, ValueError):
    """A cron expression, or its time zone, that cannot be understood.

    Attributes:
        expression: What was given.
    """

    def __init__(self, expression: object, problem: str) -> None:
        super().__init__(
            f"cron expression {shown(expression)}: {one_line(problem)}. Five fields are expected "
            "(minute hour day-of-month month day-of-week), for example '0 9 * * 1-5'"
        )
        self.expression = expression


class ScheduleEndedError(InvalidCronError):
    """A recurring job has failed for good: this library does not understand its stored cron expression or time zone.

    `__cause__` is the error of the last run; None where that run succeeded.
    """

    def __init__(self, invalid: InvalidCronError, last_run: str) -> None:
        MonqueError.__init__(
            self,
            f"the schedule has ended ({last_run}), as its next run cannot be computed: {invalid}. "
            "Declare the schedule again, with an expression of this form",
        )
        self.expression = invalid.expression


class InvalidCursorError(MonqueError, ValueError):
    """A page cursor that this library did not make, or that belongs to another sort order."""


class CallContextError(MonqueError, RuntimeError):
    """An async call where no event loop runs, or a blocking one in a task of an event loop. Nothing was done."""


class AsyncWithError(MonqueError, TypeError, AttributeError):
    """What is entered by `async with` was used without."""


class WorkerRegistrationError(MonqueError, ValueError):
    """A worker cannot be registered: its name is taken, or its handler is of no use.

    Attributes:
        name: The worker's name.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"worker {shown(name)}: {problem}")
        self.name = name


# --- A state that does not allow what was asked ---


class JobStateError(MonqueError):
    """The job's state does not allow the action.

    Attributes:
        job_id: The job's id, as a hex string.
        status: The status that it has.
        action: What was asked for.
    """

    def __init__(self, job_id: object, status: str, action: str, because: str = "") -> None:
        super().__init__(f"cannot {action} job {job_id}: " + (because or f"its status is {str(status)!r}"))
        self.job_id = str(job_id)
        self.status = status
        self.action = action


class ClaimLostError(MonqueError):
    """The claim is no longer ours: what was asked for under it was not written."""


class FilterStillMatchesError(MonqueError):
    """A document that was finished still matches the filter of its claims: it would be claimed again and again.

    Attributes:
        document_id: Its `_id`.
        filter: The filter.
    """

    def __init__(self, document_id: object, filter: object) -> None:  # noqa: A002  # As it is called everywhere.
        super().__init__(
            f"document {shown(document_id)} was finished and still matches {shown(filter)}: it would be claimed "
            "without end. Finish with an update that makes the filter false, for example "
            "finish({'$set': {'status': 'done'}}) for {'status': 'new'}"
        )
        self.document_id = document_id
        self.filter = filter


class MissingIndexError(MonqueError):
    """No index serves a filter of claims, and the collection is large."""


class InvalidUpdateError(MonqueError, ValueError):
    """The server refuses to apply an update to its document; the claim is held as before."""


class BrokenDocumentError(MonqueError, ValueError):
    """A document in the jobs collection is not a job: a field that every job has is missing or of the wrong type.

    Attributes:
        document_id: Its `_id`.
        problem: What is wrong with it.
    """

    def __init__(self, document_id: object, problem: str) -> None:
        # What it holds was written by others: an error must be as fit for a log as any other.
        problem = one_line(without_secrets(problem[: 4 * LONGEST_TEXT]))
        super().__init__(f"document {one_line(str(document_id), 80)} is not a job: {problem}. Mend it, or delete it")
        self.document_id = document_id
        self.problem = problem


# --- A database that cannot be reached or used ---


class MonqueConnectionError(MonqueError):
    """The database did not do what was asked; the driver's error is the cause.

    With neither `transient` nor `permanent`, the call may succeed after a repair: of rights, credentials,
    a full disk. A scheduler treats that as an outage: it retries and recovers.

    Attributes:
        transient: True where the same call may succeed later without anybody changing anything.
        permanent: True where the same call can never succeed: the server does not understand it. Ends a scheduler.
        unknown_outcome: True where a write may have been applied although no answer came.
    """

    def __init__(
        self, message: str, *, transient: bool = False, permanent: bool = False, unknown_outcome: bool = False
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.permanent = permanent
        self.unknown_outcome = unknown_outcome


class ShortageError(MonqueConnectionError):
    """This process has too little memory, or cannot start a thread, at the moment: the database was not asked.

    It is transient. With an `unknown_outcome` the shortage may have come after a write was sent.
    """

    def __init__(self, message: str, *, unknown_outcome: bool = False) -> None:
        super().__init__(message, transient=True, unknown_outcome=unknown_outcome)


def is_shortage(error: BaseException) -> bool:
    """Whether an error means that the process is short of memory, or of threads, for which CPython has only a text."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and error.args[:1] == ("can't start new thread",)
    )


def is_outage(error: Exception) -> bool:
    """Whether a loop of a scheduler retries after this error. Any other error is a bug, and ends the scheduler."""
    if isinstance(error, MonqueConnectionError):
        return not error.permanent
    return is_shortage(error)


class PartialEnqueueError(MonqueConnectionError):
    """Of several jobs that were enqueued at once, not all were; the first error is the cause.

    Attributes:
        enqueued: Those that are stored: place in the list -> job id, as a hex string.
        unknown: Those that may be stored: place in the list -> the id that the job has then.
    """

    def __init__(self, total: int, enqueued: Mapping[int, str], unknown: Mapping[int, str], first: MonqueError) -> None:
        super().__init__(
            f"{len(enqueued)} of {total} jobs were enqueued, and of {len(unknown)} it is not known: {first}",
            transient=isinstance(first, MonqueConnectionError) and first.transient,
            unknown_outcome=bool(unknown),
        )
        self.enqueued = enqueued
        self.unknown = unknown


class PartialBulkError(MonqueConnectionError):
    """A bulk action ended early, as the database did not answer; the first error is the cause.

    Attributes:
        count: How many jobs it had changed or deleted, for certain.
        unknown: Of how many nobody can tell.
    """

    def __init__(self, action: str, count: int, unknown: int, first: MonqueConnectionError) -> None:
        super().__init__(
            f"could not {action} all of the jobs: {count} are done, and of {unknown} it is not known: {first}",
            transient=first.transient,
            unknown_outcome=bool(unknown) or first.unknown_outcome,
        )
        self.count = count
        self.unknown = unknown


class DocumentRefusedError(MonqueConnectionError):
    """The server refuses a write to one document: it would exceed 16 MiB, or the collection's validator refuses it."""


class AggregationTimeoutError(MonqueConnectionError):
    """A statistic took the server longer than `operation_timeout`."""


class InstanceCollisionError(MonqueConnectionError):
    """Another live scheduler uses the same instance id.

    Attributes:
        instance_id: The id.
    """

    def __init__(self, instance_id: str, evidence: str) -> None:
        super().__init__(
            f"instance_id={instance_id!r} is in use ({evidence}): leave the option out, or give each instance its own",
            permanent=True,
        )
        self.instance_id = instance_id


class EmbeddedServerError(MonqueError):
    """The embedded MongoDB server could not be found, started or kept running.

    Attributes:
        log_tail: The last lines of the server's log, where there is one.
    """

    def __init__(self, message: str, *, log_tail: Sequence[str] = ()) -> None:
        tail = "".join(f"\n    {line}" for line in log_tail)
        super().__init__(f"{message}\n  The server's last words:{tail}" if tail else message)
        self.log_tail = tuple(log_tail)
