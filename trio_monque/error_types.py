"""The exceptions of the library, for every room; callers import them from `errors.py`. All derive from MonqueError, and
from a built-in exception where one fits.

They are in three groups: a value that the caller passed, a state that does not allow the request, and a database that
cannot be reached or used. Each message has what happened, the value, and what to do.
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
    "ClientClosedError",
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
    "MiddlewareError",
    "MissingIndexError",
    "MonqueConnectionError",
    "MonqueError",
    "PartialBulkError",
    "PartialEnqueueError",
    "PayloadTooLargeError",
    "ScheduleEndedError",
    "ShortageError",
    "TransactionTimeoutError",
    "UnknownTimeZoneError",
    "UnreadablePayloadError",
    "UnsafeExceptionError",
    "WorkerRegistrationError",
]


class MonqueError(Exception):
    """The base class of every exception that this library raises on purpose."""


# --- A value that the caller passed ---


class InvalidOptionError(MonqueError, ValueError):
    """Raised for an invalid option or argument, or for two that contradict each other. The message names it.

    Attributes:
        option: The name of the option, as it is spelled in the call.
        value: The value that was passed.
    """

    def __init__(self, option: str, value: object, problem: str) -> None:
        super().__init__(f"{option}={shown(value)}: {problem}")
        self.option = option
        self.value = value


class InvalidDatabaseError(MonqueError, TypeError):
    """Raised if the database that was passed is not a `pymongo.database.Database`."""


class InvalidJobIdentifierError(MonqueError, ValueError):
    """Raised for an invalid job name or unique key.

    Attributes:
        field: "name" or "unique_key".
        value: The value that was passed.
    """

    def __init__(self, field: str, value: object, problem: str) -> None:
        super().__init__(f"{field}={shown(value, 80)}: {problem}")
        self.field = field
        self.value = value


class InvalidPayloadError(MonqueError, ValueError):
    """Raised for data that its worker does not accept, or for data, a result or progress that cannot be stored.

    The message has the path of the invalid value and what to store instead. `__cause__` is the encoder's or decoder's
    error; None for data that are nested too deeply for MongoDB.
    """


class UnreadablePayloadError(MonqueError):
    """Raised if the worker's `payload` cannot read the stored data of a job. The message has the path of the value.

    It counts as a failed attempt, which backs off: a newer release may read what an older one cannot. `retry_on` does
    not apply to it. With `discard_on=UnreadablePayloadError`, such jobs fail at once.
    """


class UnsafeExceptionError(MonqueError):
    """Stands for an exception of a handler whose class replaces what Python itself uses of it, `__class__` for example.

    Such an attribute may raise or lie where trio or asyncio ask for it, and would end the scheduler. `retry_on` and
    `discard_on` apply to the class of the exception that was raised.

    Attributes:
        raised_type: That class.
    """

    def __init__(self, raised_type: type[BaseException], name: str, attribute: str, message: str) -> None:
        super().__init__(
            f"{name} was raised, whose class defines {attribute}: remove that attribute, so that the exception itself "
            f"can be handled and reported. Its message: {message or '(none)'}"
        )
        self.raised_type = raised_type


class PayloadTooLargeError(InvalidPayloadError):
    """Raised if the data of a job, its result, its checkpoint or its progress is larger than allowed.

    Attributes:
        actual: The size in bytes, as BSON.
        maximum: The limit in bytes (`max_payload_size`, or what a MongoDB document can hold).
    """

    def __init__(self, actual: int, maximum: int, what: str = "data", *, can_be_raised: bool = True) -> None:
        reference = "enqueue a reference to it" if what == "data" else "give a reference to it instead"
        super().__init__(
            f"the job's {what} is {actual} bytes as BSON, more than the {maximum} allowed: "
            f"store it elsewhere and {reference}{', or raise max_payload_size' if can_be_raised else ''}"
        )
        self.actual = actual
        self.maximum = maximum


class InvalidCronError(MonqueError, ValueError):
    """Raised for an invalid cron expression or an unknown time zone.

    Attributes:
        expression: The expression that was passed.
    """

    def __init__(self, expression: object, problem: str, *, is_of_fields: bool = True) -> None:
        advice = (
            ". Five fields are expected (minute hour day-of-month month day-of-week), for example '0 9 * * 1-5'"
            if is_of_fields
            else ""
        )
        super().__init__(f"cron expression {shown(expression)}: {one_line(problem)}{advice}")
        self.expression = expression


class UnknownTimeZoneError(InvalidCronError):
    """Raised for a time zone that this machine does not know. A machine with another time zone database may know it."""


class ScheduleEndedError(InvalidCronError):
    """A recurring job failed for good: this library does not understand its stored cron expression or time zone.

    `__cause__` is the error of the last run; None if that run succeeded.
    """

    def __init__(self, invalid: InvalidCronError, last_run: str) -> None:
        MonqueError.__init__(
            self,
            f"the schedule has ended ({last_run}), because its next run cannot be computed: {invalid}. "
            "Declare the schedule again, with an expression of this form",
        )
        self.expression = invalid.expression


class InvalidCursorError(MonqueError, ValueError):
    """Raised for a cursor that is not the cursor of a page, or that belongs to another sort order."""


class CallContextError(MonqueError, RuntimeError):
    """Raised for an async call without a running event loop, or a blocking call in one. Nothing was done."""


class AsyncWithError(MonqueError, TypeError, AttributeError):
    """Raised if an object that needs `async with` is used without it."""


class WorkerRegistrationError(MonqueError, ValueError):
    """Raised if a worker cannot be registered: its name is taken, or its handler cannot be called with a job.

    Attributes:
        name: The worker's name.
    """

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(f"worker {shown(name)}: {problem}")
        self.name = name


class MiddlewareError(MonqueError, RuntimeError):
    """Raised in a run whose middleware does not call `run()`, calls it twice, or does not wait for its end.

    It counts as a failed attempt.
    """


# --- A state that does not allow what was asked ---


class JobStateError(MonqueError):
    """Raised if the status of a job does not allow the action.

    Attributes:
        job_id: The job's id, as a hex string.
        status: The job's status.
        action: The action that was requested, such as "cancel".
    """

    def __init__(self, job_id: object, status: str, action: str, because: str = "") -> None:
        super().__init__(f"cannot {action} job {job_id}: " + (because or f"its status is {str(status)!r}"))
        self.job_id = str(job_id)
        self.status = status
        self.action = action


class ClaimLostError(MonqueError):
    """Raised if this instance lost the claim: the write that needs it was not made."""


class TransactionTimeoutError(MonqueError, TimeoutError):
    """Raised if the function of a transaction takes longer than it may. Nothing was committed.

    It counts as a failed attempt if it ends the handler.

    Attributes:
        limit: How many seconds the function had.
    """

    def __init__(self, item: str, limit: float) -> None:
        super().__init__(
            f"the transaction function of {item} took longer than {limit:.3g} s: nothing was committed. It may take "
            "what is left of the lease of its claim, and at most 60 s: do less in it, or raise heartbeat_interval"
        )
        self.limit = limit


class FilterStillMatchesError(MonqueError):
    """Raised if a finished document still matches the filter of its claims: it would be claimed again and again.

    Attributes:
        document_id: Its `_id`.
        filter: The filter.
    """

    def __init__(self, document_id: object, filter: object) -> None:  # noqa: A002  # As it is called everywhere.
        super().__init__(
            f"document {shown(document_id)} was finished but still matches {shown(filter)}: it would be claimed "
            "again and again. Finish with an update that makes the filter false, for example "
            "finish({'$set': {'status': 'done'}}) for {'status': 'new'}"
        )
        self.document_id = document_id
        self.filter = filter


class MissingIndexError(MonqueError):
    """Raised if no index serves the filter of claims on a large collection."""


class InvalidUpdateError(MonqueError, ValueError):
    """Raised if the server refuses to apply an update to the claimed document. The claim is held as before."""


class BrokenDocumentError(MonqueError, ValueError):
    """Raised for a document in the jobs collection that is not a job: a field is missing or has the wrong type.

    Attributes:
        document_id: Its `_id`.
        problem: What is wrong with it.
    """

    def __init__(self, document_id: object, problem: str) -> None:
        # Another program wrote the document. Its content must not bring secrets or line breaks into a log.
        problem = one_line(without_secrets(problem[: 4 * LONGEST_TEXT]))
        advice = "Repair it (`trio-monque repair ID --set FIELD=VALUE`) or delete it"
        super().__init__(f"document {one_line(str(document_id), 80)} is not a job: {problem}. {advice}")
        self.document_id = document_id
        self.problem = problem


# --- A database that cannot be reached or used ---


class MonqueConnectionError(MonqueError):
    """Raised if the database did not carry out a call. `__cause__` is the driver's error.

    With neither `transient` nor `permanent`, the call may succeed after a repair (of rights, credentials, a full disk).
    A scheduler treats that as an outage: it retries until it recovers.

    Attributes:
        transient: The same call may succeed later without a repair.
        permanent: The same call can never succeed: the server does not understand it. It ends a scheduler.
        unknown_outcome: A write may have been applied, although no answer arrived.
    """

    def __init__(
        self, message: str, *, transient: bool = False, permanent: bool = False, unknown_outcome: bool = False
    ) -> None:
        super().__init__(message)
        self.transient = transient
        self.permanent = permanent
        self.unknown_outcome = unknown_outcome


class ClientClosedError(MonqueConnectionError):
    """Raised if the program has closed the MongoClient that the call uses. It is permanent, and ends a scheduler."""

    def __init__(self, message: str, *, unknown_outcome: bool = False) -> None:
        super().__init__(message, permanent=True, unknown_outcome=unknown_outcome)


class ShortageError(MonqueConnectionError):
    """Raised if this process has too little memory, or cannot start a thread. The call was not sent.

    It is transient. With `unknown_outcome`, the shortage may have come after a write was sent.
    """

    def __init__(self, message: str, *, unknown_outcome: bool = False) -> None:
        super().__init__(message, transient=True, unknown_outcome=unknown_outcome)


def is_shortage(error: BaseException) -> bool:
    """Whether the process is short of memory, or of threads (CPython has no exception for that, only a message)."""
    # By the type alone: it may be an exception of a user, whose attributes must not be asked.
    return issubclass(type(error), MemoryError) or (
        type(error) is RuntimeError and error.args[:1] == ("can't start new thread",)
    )


def is_outage(error: Exception) -> bool:
    """Whether a loop of a scheduler retries after this error. Any other error is a bug, and ends the scheduler."""
    if isinstance(error, MonqueConnectionError):
        return not error.permanent
    return is_shortage(error)


class PartialEnqueueError(MonqueConnectionError):
    """Raised if only some of the jobs of one call were enqueued. `__cause__` is the first error.

    Attributes:
        enqueued: The jobs that are stored: index in the list -> job id, as a hex string.
        unknown: The jobs that may be stored, because no answer arrived: index in the list -> the id it would have.
    """

    def __init__(self, total: int, enqueued: Mapping[int, str], unknown: Mapping[int, str], first: MonqueError) -> None:
        super().__init__(
            f"{len(enqueued)} of {total} jobs were enqueued, and {len(unknown)} may have been: {first}",
            transient=isinstance(first, MonqueConnectionError) and first.transient,
            unknown_outcome=bool(unknown),
        )
        self.enqueued = enqueued
        self.unknown = unknown


class PartialBulkError(MonqueConnectionError):
    """Raised if a bulk action ended early, because the database did not answer. `__cause__` is the first error.

    Attributes:
        count: How many jobs were changed or deleted for certain.
        unknown: How many more may have been changed or deleted, because no answer arrived.
    """

    def __init__(self, action: str, count: int, unknown: int, first: MonqueConnectionError) -> None:
        super().__init__(
            f"could not {action} all of the jobs: {count} are done, and {unknown} may be: {first}",
            transient=first.transient,
            unknown_outcome=bool(unknown) or first.unknown_outcome,
        )
        self.count = count
        self.unknown = unknown


class DocumentRefusedError(MonqueConnectionError):
    """Raised if the server refuses a write to a document: it would exceed 16 MiB, or violate the validator."""


class AggregationTimeoutError(MonqueConnectionError):
    """Raised if the server needs longer than `operation_timeout` for a statistic."""


class InstanceCollisionError(MonqueConnectionError):
    """Raised if another live scheduler uses the same instance id.

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
    """Raised if the embedded MongoDB server could not be found, started or kept running.

    Attributes:
        log_tail: The last lines of the server's log, if it has one.
    """

    def __init__(self, message: str, *, log_tail: Sequence[str] = ()) -> None:
        tail = "".join(f"\n    {line}" for line in log_tail)
        super().__init__(f"{message}\n  Last lines of the server's log:{tail}" if tail else message)
        self.log_tail = tuple(log_tail)


for _name in __all__:
    # Where callers import them from: this is what tracebacks name.
    globals()[_name].__module__ = "trio_monque.errors"
