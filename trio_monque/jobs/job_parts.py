"""The parts of a job: values that belong together, and that most jobs do not have. Frozen.

A part exists only in a job that has something of it, and jobs of one claim share their JobClaim. In MongoDB the fields
of all parts stand flat beside the others: `store/fields.py` has their names there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final

from bson import ObjectId


@dataclass(frozen=True, slots=True, kw_only=True)
class JobClaim:
    """The claim on a job. Attributes that its holder has not written are None.

    Attributes:
        by: The id of the instance that holds it.
        since: When the instance claimed the job.
        token: The fencing token; None in claims of other libraries.
        last_heartbeat: When the claim was renewed last.
        heartbeat_interval: Seconds between renewals.
        renewed_at: When the holder renewed the claim last, or made it. Another process with the same instance id may
            write `last_heartbeat`, but not this.
        cancel_requested_at: When a caller requested that this run be cancelled.
    """

    by: str | None = None
    since: datetime | None = None
    token: str | None = None
    last_heartbeat: datetime | None = None
    heartbeat_interval: float | None = None
    renewed_at: datetime | None = None
    cancel_requested_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The schedule of a recurring job.

    Attributes:
        cron: A cron expression of five fields.
        timezone: The IANA name of its time zone; None for UTC.
        version: The `version` of its declaration; None for none.
        on_exhausted: "fail" if it ends with an occurrence that has used up its attempts. Otherwise it goes on.
        changed_from: The expression and the time zone that it had before the last declaration that changed them, such
            as "0 9 * * * (UTC)". None if there was none, or if a higher `version` decided it. Only for operators.
        changed_at: When that was.
        changed_by: The instance that declared it, or the process of another client.
    """

    cron: str
    timezone: str | None = None
    version: int | None = None
    on_exhausted: str | None = None
    changed_from: str | None = None
    changed_at: datetime | None = None
    changed_by: str | None = None

    @property
    def in_words(self) -> str:
        """The expression and the time zone, such as "0 9 * * * (UTC)"."""
        return f"{self.cron} ({self.timezone or 'UTC'})"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobLimits:
    """Limits of one job, in place of those of its worker and scheduler. None for those.

    Attributes:
        timeout: Seconds that one run may take.
        max_attempts: The job is `failed` after this number of failures.
        max_rescues: How many deaths in a row it may cause.
        start_by: If no run has begun by then, the job is cancelled. None after the first run.
    """

    timeout: float | None = None
    max_attempts: int | None = None
    max_rescues: int | None = None
    start_by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAgain:
    """What a running job does once it has ended: another run, that a call wants by its `on_conflict`.

    Attributes:
        call: The id of that call.
        data, next_run_at, start_by, debounced_since: What the job has in that run.
    """

    call: ObjectId
    data: Any = None
    next_run_at: datetime | None = None
    start_by: datetime | None = None
    debounced_since: datetime | None = None


@dataclass(frozen=True, slots=True)
class FollowUpOwed:
    """The worker of the job has a `then`: once the job has completed or failed, its follow-up is enqueued."""


@dataclass(frozen=True, slots=True)
class FollowUpChosen:
    """The follow-up is stored, and is about to be released.

    Attributes:
        id: The id of the follow-up.
    """

    id: ObjectId


@dataclass(frozen=True, slots=True)
class FollowUpParked:
    """The job is itself a follow-up, and is not released yet.

    Attributes:
        attempt: The `attempts` of the job that it follows.
        due: The due date that it gets.
    """

    attempt: int
    due: datetime


FollowUp = FollowUpOwed | FollowUpChosen | FollowUpParked


@dataclass(frozen=True, slots=True, kw_only=True)
class NurseryScope:
    """The fields of a job that has opened a job nursery. Its later runs find its children by them.

    Attributes:
        id: The id of the scope, which its children have, too.
        occurrence: The occurrence of a recurring job that it belongs to; None for a one-off job.
        since_attempt: The `attempts` of the first run of this try. A retry by hand begins a new try, and unsets it.
        failed: The blocks that have failed in this try, each with the ids of the children that had failed.
        steps: The results of `job.step`, by their keys.
    """

    id: ObjectId | None = None
    occurrence: datetime | None = None
    since_attempt: int | None = None
    failed: Mapping[str, Any] | None = None
    steps: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOf:
    """The fields of a child of a job nursery. `jobs/nursery_scopes.py` explains how they are used.

    Attributes:
        scope: The scope of its parent.
        parent: The id of its parent.
        block: The key of the block that started it, or its number.
        key: Its own key in the block, if one was given.
        run: The `attempts` of the parent in the run that started it last.
        cancelled_by: The `attempts` of the run whose block cancelled it, or of the parent if a sweeper did.
    """

    scope: ObjectId | None = None
    parent: ObjectId | None = None
    block: str | None = None
    key: str | None = None
    run: int | None = None
    cancelled_by: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInternals:
    """What the library notes in a job for itself. It may change with each version.

    Attributes:
        rev: Grows with every edit of a pending job's content.
        receipt: Identifies the settlement, or the batch of a bulk action, that was written last.
        occurrence: The occurrence of a recurring job that is tried again: the date at which it was first due.
        resumes_at: The due date that this library wrote last for another attempt at the same occurrence.
        saved_for: The occurrence in which a recurring job's handler saved: the date at which it was first due.
        last_scope: The id of the scope that it had last. A scope ends with the work, and this lists the children
            afterwards, too. Nothing decides by it.
    """

    rev: int = 0
    receipt: str | None = None
    occurrence: datetime | None = None
    resumes_at: datetime | None = None
    saved_for: datetime | None = None
    last_scope: ObjectId | None = None


NO_CLAIM: Final = JobClaim()
NO_LIMITS: Final = JobLimits()
NO_INTERNALS: Final = JobInternals()

EMPTY: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "claim": NO_CLAIM,
        "limits": NO_LIMITS,
        "internals": NO_INTERNALS,
        "nursery": NurseryScope(),
        "child": ChildOf(),
    }
)
"""The parts that may change inside, with nothing in them. The others change as a whole."""

PARTS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "claim": JobClaim,
        "schedule": Schedule,
        "limits": JobLimits,
        "again": RunAgain,
        "internals": JobInternals,
        "nursery": NurseryScope,
        "child": ChildOf,
    }
)
"""The attributes of a job that are parts, and their classes. (`follow_up` is a single field of the document.)"""

IN_PARTS: Final[Mapping[str, tuple[str, str]]] = MappingProxyType(
    {f"{part}.{one.name}": (part, one.name) for part, kind in PARTS.items() for one in fields(kind)}
)
"""The paths of all attributes of parts, such as "claim.token", and what each path consists of."""
