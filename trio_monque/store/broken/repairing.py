"""Repairs a document that is not a job: fields are set and removed, if that makes a job of it.

First the server returns what the change would make of the document, in an aggregation that writes nothing. That is
exact: a document that is decoded and encoded here again would lose text that is not UTF-8. Then the same change is
written if the document is still as it was. Otherwise it would overwrite what another program repaired meanwhile, or
change a job that has begun to run since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import bson
from pymongo import errors as driver

from ...jobs.job import Job
from ..codec import LENIENT
from ..driver.commands import BY_ID, command
from ..fields import FIELD, HEAVY
from ..job_collection import JobCollection
from ..jobs.job_changes import KeyInUseError
from .broken_documents import problem_of


@dataclass(frozen=True, slots=True)
class Repair:
    """The fields of a document to set and to remove."""

    set: Mapping[str, Any]
    unset: Sequence[str]

    @property
    def fields(self) -> Sequence[str]:
        """Those that it changes."""
        return (*self.set, *self.unset)

    @property
    def stages(self) -> list[dict[str, Any]]:
        """The change, for an aggregation and for an update."""
        # Literals: the server would evaluate a text with a dollar.
        stages: list[dict[str, Any]] = [{"$set": {field: {"$literal": value} for field, value in self.set.items()}}]
        return [*stages, {"$unset": list(self.unset)}] if self.unset else stages


@dataclass(frozen=True, slots=True)
class Trial:
    """What a repair would do.

    Attributes:
        repair: The repair.
        before, after: The document now, and with the change.
        problem: Why the document is not a job; None if it is one.
        remaining: Why it would still not be one; None if `job` is what it would be.
        job: The job that it would be.
        unchanged: The condition that the document is still the same.
    """

    repair: Repair
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    problem: str | None
    remaining: str | None
    job: Job | None
    unchanged: Mapping[str, Any]


@command("test the repair", writes=False)
def try_out(jobs: JobCollection, document_id: object, repair: Repair) -> Trial | None:
    """Return what the repair would do; None if the document is gone, or changes at this moment."""
    # Large fields are not compared: a document of 16 MB would have no room in a command. The write leaves them as they
    # are, unless the repair is about them.
    left_out = [field for field in (FIELD[name] for name in HEAVY) if field not in repair.fields]
    seen = jobs.raw.find_one({"_id": {"$eq": document_id}}, dict.fromkeys(left_out, False), hint=BY_ID)
    if seen is None:
        return None
    compared: Any = "$$ROOT"
    for field in left_out:
        compared = {"$unsetField": {"field": field, "input": compared}}
    unchanged = {"_id": {"$eq": document_id}, "$expr": {"$eq": [compared, {"$literal": seen}]}}
    before = jobs.raw.find_one(unchanged, hint=BY_ID)
    after = next(jobs.raw.aggregate([{"$match": unchanged}, *repair.stages], hint=BY_ID), None)
    if before is None or after is None:
        return None
    remaining = problem_of(jobs, after.raw, after)
    return Trial(
        repair=repair,
        before=bson.decode(before.raw, LENIENT),
        after=bson.decode(after.raw, LENIENT),
        problem=problem_of(jobs, before.raw, before),
        remaining=remaining,
        job=jobs.codec.decode(after) if remaining is None else None,
        unchanged=unchanged,
    )


@command("repair the document")
def repair_if_unchanged(jobs: JobCollection, trial: Trial) -> bool:
    """Make the change if the document is still as it was tried out; return whether it was.

    Raises:
        KeyInUseError: It would be a pending or running job, and another one has its unique key.
    """
    try:
        return bool(jobs.collection.update_one(trial.unchanged, trial.repair.stages, hint=BY_ID).matched_count)
    except driver.DuplicateKeyError as error:
        raise KeyInUseError("another pending or processing job has its unique key") from error
