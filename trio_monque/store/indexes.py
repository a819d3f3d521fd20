"""The indexes, each with the queries that it serves.

They live beside Monque's for Node: no index here has the name, or the keys and options, of one of
Monque's, as either would make the second library fail to start. The exception is the unique one, which
is the same in keys, options and name.

Two are partial on the statuses at rest. What runs is in none of them: a claim only takes an entry out of
each, a renewal touches none although it changes `updated_at`, and the end of a claim puts one in. What runs is
little, and `HELD` has it. What each costs, and what was tried instead, is in docs/reference/indexes.md; it is measured
by `python -m benchmarks.indexes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pymongo import ASCENDING, IndexModel
from pymongo import errors as driver

from ..errors import MonqueConnectionError
from ..jobs.job import JobStatus
from ..options import Retention
from .commands import command
from .fields import FIELD
from .job_collection import JobCollection

T = TypeVar("T")


def _index(name: str, *attributes: str, **options: Any) -> IndexModel:
    return IndexModel([(FIELD[attribute], ASCENDING) for attribute in attributes], name=name, **options)


AT_REST: Final = tuple(status for status in JobStatus if status is not JobStatus.PROCESSING)
_AT_REST: Final = {FIELD["status"]: {"$in": [status.value for status in AT_REST]}}

# The look for due jobs, name by name, earliest first. MongoDB uses it only where the query spells the status.
# And by name: get_jobs, pages by next_run_at, counts, and which names there are. Of all names, too: their ranges are
# merged. An index of its own for that, {status, nextRunAt, _id}, cost a claim and its end a tenth more (measured).
CLAIM: Final = _index("trio_monque_claim", "name", "status", "next_run_at", "id", partialFilterExpression=_AT_REST)

# What runs: for claims whose answer was lost, and whose ids are not known; for the search for dead ones; and what runs
# of the jobs that a page or a count asks for. All its keys stay as they are while a claim lasts.
HELD: Final = _index(
    "trio_monque_held",
    "status",
    "claimed_by",
    "locked_at",
    "name",
    partialFilterExpression={FIELD["status"]: "processing"},
)

# At most one live job for each key of a name. Monque's own index, to the letter.
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

# get_jobs and pages by next_run_at, of all jobs: earliest first, with the id as tie-break. Of some statuses where there
# are too many names.
LISTING: Final = _index("trio_monque_listing", "next_run_at", "id")

# Pages by created_at. Nothing but an enqueue and a delete touches it.
CREATED: Final = _index("trio_monque_created", "created_at", "id")

# Pages by updated_at, of all jobs or of some statuses; counts by status, and the latest completed jobs. Monque's
# documented look for due jobs of any name.
UPDATED: Final = _index("trio_monque_updated", "status", "updated_at", "id", partialFilterExpression=_AT_REST)

ALL: Final = (CLAIM, HELD, UNIQUE_KEY, LISTING, CREATED, UPDATED)


def name_of(index: IndexModel) -> str:
    """For a hint."""
    name = index.document["name"]
    assert isinstance(name, str)
    return name


# Retention: what ended before a moment; and with `keep_last`, the newest of each name. Only where it is configured.
# With the id the choice is answered by the index alone: a job that is to be deleted is not read for it.
_IS_ENDED: Final = {FIELD["status"]: {"$in": ["completed", "failed", "cancelled"]}}
ENDED: Final = _index("trio_monque_ended", "status", "updated_at", "id", partialFilterExpression=_IS_ENDED)
ENDED_BY_NAME: Final = _index(
    "trio_monque_ended_by_name", "status", "name", "updated_at", "id", partialFilterExpression=_IS_ENDED
)


def of_retention(retention: Retention) -> IndexModel:
    """The one that it needs."""
    return ENDED if retention.keep_last is None else ENDED_BY_NAME


_BAD_VALUE: Final = 2

# BadValue, NoQueryExecutionPlans: what the server says to a hint for an index that is not there.
_NO_SUCH_INDEX: Final = frozenset({_BAD_VALUE, 291})


# IndexOptionsConflict, IndexKeySpecsConflict: an index of that name, or with these keys, is there and is another.
_CONFLICTS: Final = frozenset({85, 86})


class IndexesGoneError(MonqueConnectionError):
    """Nothing was done: the index that was named is not there. The collection was dropped, renamed or replaced."""


def hint(jobs: JobCollection, index: IndexModel) -> str | None:
    """The name of the index, for a command that must not be done without it.

    Naming it costs the server nothing, and is how a collection that lost its indexes is noticed where no
    change stream tells: a look by poll, and an enqueue with a unique key, fail instead of doing without.
    """
    return index.document["name"] if jobs.has_indexes else None


def hinting(hint: str | None) -> dict[str, Any]:
    """For a command that accepts no None."""
    return {} if hint is None else {"hint": hint}


def hinted(index: IndexModel | str, read: Callable[[str | None], T]) -> T:
    """Read with the hint, or without it where that index is not there (yet, or because an operator makes them)."""
    try:
        return read(index if isinstance(index, str) else name_of(index))
    except driver.OperationFailure as error:
        if error.code != _BAD_VALUE or "hint" not in str(error):
            raise
        return read(None)


@contextmanager
def relied_on() -> Iterator[None]:
    """Raises IndexesGoneError where the server says that the index of a hint is not there."""
    try:
        yield
    except driver.OperationFailure as error:
        codes = {error.code}
        if isinstance(error, driver.BulkWriteError):
            codes = {entry["code"] for entry in error.details["writeErrors"]}
        if codes & _NO_SUCH_INDEX:
            raise IndexesGoneError(
                "the jobs collection has lost its indexes, again and again: some program drops, renames or replaces it",
                transient=True,
            ) from error
        raise


@command("create the indexes")
def ensure(jobs: JobCollection, retention: Retention | None = None) -> None:
    """Creates what is missing, in one command; indexes that exist are left as they are.

    Raises:
        MonqueConnectionError: One of them exists with other keys or options; says what to do.
    """
    try:
        jobs.collection.create_indexes([*ALL, *([] if retention is None else [of_retention(retention)])])
    except driver.OperationFailure as error:
        if error.code not in _CONFLICTS:
            raise
        raise MonqueConnectionError(
            f"could not create the indexes: one of {jobs.collection.full_name} has the name of one of trio_monque's, "
            "and other keys or options, as another version makes it. Drop it when no scheduler runs "
            f"(dropIndex in mongosh), and start again; it is made anew. The server says: {error.details or error}",
            permanent=True,
        ) from error
