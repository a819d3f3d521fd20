"""The indexes, each with the query that it serves.

They live beside Monque's for Node: no index here has the name, or the keys and options, of one of
Monque's, as either would make the second library fail to start. The exception is the unique one, which
is the same in keys, options and name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pymongo import ASCENDING, IndexModel
from pymongo import errors as driver

from ..errors import MonqueConnectionError
from ..options import Retention
from .codec import FIELD
from .connection import JobCollection
from .outcomes import command


def _index(name: str, *attributes: str, **options: Any) -> IndexModel:
    return IndexModel([(FIELD[attribute], ASCENDING) for attribute in attributes], name=name, **options)


# The look for due jobs, name by name, earliest first. Partial, so that completed history costs it
# nothing; MongoDB uses it only where the query spells status: "pending".
CLAIM: Final = _index("trio_monque_claim", "name", "next_run_at", partialFilterExpression={FIELD["status"]: "pending"})

# What an instance holds: for claims whose answer was lost, and whose ids nobody knows.
HELD: Final = _index(
    "trio_monque_held", "claimed_by", "locked_at", partialFilterExpression={FIELD["status"]: "processing"}
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

# get_jobs: pages of jobs, earliest first, with the id as tie-break.
LISTING: Final = _index("trio_monque_listing", "next_run_at", "id")

ALL: Final = (CLAIM, HELD, UNIQUE_KEY, LISTING)

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


# BadValue, NoQueryExecutionPlans: what the server says to a hint for an index that is not there.
_NO_SUCH_INDEX: Final = frozenset({2, 291})


class IndexesGoneError(MonqueConnectionError):
    """Nothing was done: the index that was named is not there. The collection was dropped, renamed or replaced."""


def hint(jobs: JobCollection, index: IndexModel) -> str | None:
    """The name of the index, for a command that must not be done without it.

    Naming it costs the server nothing, and is how a collection that lost its indexes is noticed where no
    change stream tells: a look by poll, and an enqueue with a unique key, fail instead of doing without.
    """
    return index.document["name"] if jobs.has_indexes else None


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
                "the jobs collection has lost its indexes, again and again: somebody drops, renames or replaces it",
                transient=True,
            ) from error
        raise


@command("create the indexes")
def ensure(jobs: JobCollection, retention: Retention | None = None) -> None:
    """Creates what is missing, in one command; indexes that exist are left as they are."""
    jobs.collection.create_indexes([*ALL, *([] if retention is None else [of_retention(retention)])])
