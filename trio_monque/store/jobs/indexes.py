"""The indexes of the jobs collection, each with the queries that it serves.

Monque for Node may have its indexes on the same collection. If an index here had the name of one of Monque's, or the
same keys and options, the library that starts second would fail. Only the unique index is the same in both, name and
all.

`CLAIM` and `UPDATED` have jobs at rest only (all statuses but `processing`). A claim removes one entry from each,
the end of the claim adds one, and a renewal changes neither, although it writes `updated_at`. The running jobs are few,
and `HELD` has them. docs/reference/indexes.md has the cost of each index, and what was tried instead; `python -m
benchmarks.indexes` measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from bson.errors import InvalidBSON
from pymongo import ASCENDING, IndexModel
from pymongo import errors as driver

from ...error_types import MonqueConnectionError
from ...jobs.field_conditions import is_field_path
from ...jobs.job import JobStatus
from ...options_and_defaults import Retention
from ..driver.commands import command
from ..driver.driver_errors import UNAUTHORIZED
from ..fields import FIELD, field_of
from ..job_collection import JobCollection

T = TypeVar("T")


def _index(name: str, *attributes: str, **options: Any) -> IndexModel:
    return IndexModel([(FIELD[attribute], ASCENDING) for attribute in attributes], name=name, **options)


AT_REST: Final = tuple(status for status in JobStatus if status is not JobStatus.PROCESSING)
_AT_REST: Final = {FIELD["status"]: {"$in": [status.value for status in AT_REST]}}

# The look for due jobs, name by name, earliest first. MongoDB uses it only if the query has the status. Also: get_jobs
# and pages by next_run_at, counts by name, and the names of all jobs. A page of all names merges the ranges of the
# names: a separate index {status, nextRunAt, _id} made a claim and its end a tenth dearer (measured).
CLAIM: Final = _index("trio_monque_claim", "name", "status", "next_run_at", "id", partialFilterExpression=_AT_REST)

# Running jobs: for claims whose answer was lost, so that their ids are not known; for the search for dead claims; and
# for the running jobs of a page or a count. No renewal changes a key of this index.
HELD: Final = _index(
    "trio_monque_held",
    "status",
    "claim.by",
    "claim.since",
    "name",
    partialFilterExpression={FIELD["status"]: "processing"},
)

# At most one pending or processing job for each key of a name. The same index as Monque's.
UNIQUE_KEY: Final = _index(
    "name_1_uniqueKey_1",
    "name",
    "unique_key",
    unique=True,
    partialFilterExpression={
        FIELD["unique_key"]: {"$exists": True},
        FIELD["status"]: {"$in": ["pending", "processing"]},
    },
)

# get_jobs and pages by next_run_at, of all jobs: earliest first, with the id as tie-break. Also of some statuses, if
# there are too many names for `CLAIM`.
LISTING: Final = _index("trio_monque_listing", "next_run_at", "id")

# Pages by created_at. Nothing but an enqueue and a delete touches it.
CREATED: Final = _index("trio_monque_created", "created_at", "id")

# Pages by updated_at, of all jobs or of some statuses; counts by status, and the latest completed jobs. Monque's
# documented look for due jobs of any name.
UPDATED: Final = _index("trio_monque_updated", "status", "updated_at", "id", partialFilterExpression=_AT_REST)

ALL: Final = (CLAIM, HELD, UNIQUE_KEY, LISTING, CREATED, UPDATED)


def name_of(index: IndexModel) -> str:
    """Return the name of the index, for a hint."""
    name = index.document["name"]
    assert isinstance(name, str)
    return name


# Retention: jobs that ended before a moment, and with `keep_last` the newest of each name. Created only if retention is
# configured. With the id in it, the index alone shows which jobs to delete: the server does not read them.
_IS_ENDED: Final = {FIELD["status"]: {"$in": ["completed", "failed", "cancelled"]}}
ENDED: Final = _index("trio_monque_ended", "status", "updated_at", "id", partialFilterExpression=_IS_ENDED)
ENDED_BY_NAME: Final = _index(
    "trio_monque_ended_by_name", "status", "name", "updated_at", "id", partialFilterExpression=_IS_ENDED
)


def of_retention(retention: Retention) -> IndexModel:
    """Return the index that this retention needs."""
    return ENDED if retention.keep_last is None else ENDED_BY_NAME


# Follow-ups: jobs that owe one, by their names; those that were chosen and not released; and parked ones. In the order
# of BSON types, these are apart. Created by the first scheduler that has a worker with `then`: no other job is in it.
FOLLOW_UPS: Final = _index(
    "trio_monque_follow_ups",
    "follow_up",
    "name",
    "status",
    "id",
    partialFilterExpression={FIELD["follow_up"]: {"$exists": True}},
)

# Pending jobs that must start by a moment. Created by the first client that enqueues one: no other job is in it, and
# yet each insert would pay for it (4 % of `enqueue_many`, measured).
START_BY: Final = _index(
    "trio_monque_start_by",
    "limits.start_by",
    partialFilterExpression={FIELD["limits.start_by"]: {"$exists": True}, FIELD["status"]: "pending"},
)

# Ended jobs that a call has replaced while they ran, and that another library ended, which does not know of it. Created
# by the first client that replaces or debounces one: no other job is in it.
RUN_AGAIN: Final = _index(
    "trio_monque_run_again",
    "again.call",
    partialFilterExpression={
        FIELD["again.call"]: {"$exists": True},
        FIELD["status"]: {"$in": [JobStatus.COMPLETED.value, JobStatus.FAILED.value]},
    },
)

# Recurring jobs, by their next run. Created by the first client that declares a schedule: no other job is in it.
SCHEDULES: Final = _index(
    "trio_monque_schedules",
    "next_run_at",
    "id",
    partialFilterExpression={FIELD["schedule.cron"]: {"$exists": True}},
)

# Live children of job nurseries, by their scopes. Created by the first client that opens a nursery: no other job is in
# it. Both live statuses are in the filter and none is in the keys, so a claim of a child writes nothing here.
SCOPES: Final = _index(
    "trio_monque_scopes",
    "child.scope",
    "child.parent",
    "id",
    partialFilterExpression={
        FIELD["child.scope"]: {"$exists": True},
        FIELD["status"]: {"$in": [JobStatus.PENDING.value, JobStatus.PROCESSING.value]},
    },
)

IF_NEEDED: Final = (ENDED, ENDED_BY_NAME, FOLLOW_UPS, START_BY, RUN_AGAIN, SCHEDULES, SCOPES)

_OF_A_FIELD: Final = "trio_monque_by_"


def of_field(path: str) -> IndexModel:
    """Return the index of a field of the meta or the data, for pages of its values by `created_at`.

    Only operators create one: each costs an insert and a delete more, and only they know which field is asked for.
    """
    field = field_of(path)
    keys = [(field, ASCENDING), (FIELD["created_at"], ASCENDING), (FIELD["id"], ASCENDING)]
    return IndexModel(keys, name=f"{_OF_A_FIELD}{path}", partialFilterExpression={field: {"$exists": True}})


def path_of(name: str) -> str | None:
    """Return the path of the field whose index has this name; None for other names."""
    path = name.removeprefix(_OF_A_FIELD)
    return path if path != name and is_field_path(path) else None


_BAD_VALUE: Final = 2

# BadValue, NoQueryExecutionPlans: the errors for a hint that names a missing index.
NO_SUCH_INDEX: Final = frozenset({_BAD_VALUE, 291})


# IndexOptionsConflict, IndexKeySpecsConflict: another index has that name, or these keys.
_CONFLICTS: Final = frozenset({85, 86})


class IndexesGoneError(MonqueConnectionError):
    """The index of a hint is missing, so the command did nothing. The collection was dropped, renamed or replaced."""


def hint(jobs: JobCollection, index: IndexModel) -> str | None:
    """Return the name of the index, for a command that must not run without it; None before the indexes are created.

    The hint costs the server nothing. It shows that a collection has lost its indexes, also without a change stream: a
    look by polling, or an enqueue with a unique key, then fails.
    """
    return index.document["name"] if jobs.has_indexes else None


def hinting(hint: str | None) -> dict[str, Any]:
    """Return the arguments for a command that does not accept `hint=None`."""
    return {} if hint is None else {"hint": hint}


class NoSuchIndexError(Exception):
    """The index of a hint is missing, and without it the read would be another one."""


def hinted(index: IndexModel | str, read: Callable[[str | None], T], *, is_needed: bool = False) -> T:
    """Call `read` with the name of the index as its hint, or with None if that index is missing.

    It is missing if it is not created yet, or if an operator creates the indexes.

    Raises:
        NoSuchIndexError: It is missing, and needed.
    """
    try:
        return read(index if isinstance(index, str) else name_of(index))
    except driver.OperationFailure as error:
        # The server has the same code for other mistakes: only its message names the hint.
        if error.code != _BAD_VALUE or "hint" not in str(error):
            raise
    except InvalidBSON:
        # That message quotes the query, and the server may cut it in the middle of a character: then the driver cannot
        # read the answer.
        pass
    if is_needed:
        raise NoSuchIndexError
    return read(None)


@contextmanager
def relied_on() -> Iterator[None]:
    """Raise IndexesGoneError instead of the server's error for a hint that names a missing index."""
    try:
        yield
    except driver.OperationFailure as error:
        codes = {error.code}
        # The code of a group says only that a statement has failed.
        if isinstance(error, driver.BulkWriteError):
            codes = {entry["code"] for entry in error.details["writeErrors"]}
        if codes & NO_SUCH_INDEX:
            raise IndexesGoneError(
                "the jobs collection has lost its indexes, again and again: some program drops, renames or replaces it",
                transient=True,
            ) from error
        raise


@command("list the indexes", writes=False)
def in_use(jobs: JobCollection) -> Sequence[IndexModel]:
    """Return which of `IF_NEEDED` exist. Until one exists, no client has enqueued a job that is in it.

    For a user who may not list them, all: a look by an index that is missing finds nothing, at the price of a command
    that fails.
    """
    try:
        existing = jobs.collection.index_information()
    except driver.OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        return IF_NEEDED
    return [one for one in IF_NEEDED if name_of(one) in existing]


@command("create the indexes")
def ensure(jobs: JobCollection, retention: Retention | None = None, *, also: Sequence[IndexModel] = ()) -> None:
    """Create the missing indexes, in one command; existing ones are not changed.

    Args:
        jobs: The jobs collection.
        retention: What is deleted; None if nothing is.
        also: Indexes that only some clients need.

    Raises:
        MonqueConnectionError: An index exists with other keys or options; the message says what to do.
    """
    try:
        extra = [] if retention is None else [of_retention(retention)]
        jobs.collection.create_indexes([*ALL, *extra, *also])
    except driver.OperationFailure as error:
        if error.code not in _CONFLICTS:
            raise
        raise MonqueConnectionError(
            f"could not create the indexes: one of {jobs.collection.full_name} has the name of one of trio_monque's, "
            "and other keys or options, as another version makes it. Drop it when no scheduler runs "
            f"(dropIndex in mongosh), and start again; it is made anew. The server says: {error.details or error}",
            permanent=True,
        ) from error


_INDEX_NOT_FOUND: Final = 27


@command("drop the index")
def drop(jobs: JobCollection, name: str) -> None:
    """Drop the index of this name, if it is still there."""
    try:
        jobs.collection.drop_index(name)
    except driver.OperationFailure as error:
        if error.code != _INDEX_NOT_FOUND:
            raise
