"""What `enqueue` does if its unique key is in use, and what it reports about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar, get_args

from .job import Job

R = TypeVar("R")

OnConflict = Literal["keep", "replace", "debounce"]
"""What happens if a pending or processing job has the unique key; see `Monque.enqueue`."""

ON_CONFLICT: Final[tuple[str, ...]] = get_args(OnConflict)

EnqueueOutcome = Literal["created", "kept", "replaced", "again"]
"""What became of a job that was enqueued; see Enqueued."""


@dataclass(frozen=True)
class Enqueued(Generic[R]):
    """What `enqueue_with_outcome` returns.

    Attributes:
        job: The job that has the unique key now.
        outcome: "created": the call stored a new job. "kept": another job has the key, and the call changed nothing.
            "replaced": a pending job has the key, and it has the data and the due date of this call now. "again": a
            running job has the key. It goes on with its own data, and then runs once more with those of this call.
    """

    job: Job[R]
    outcome: EnqueueOutcome
