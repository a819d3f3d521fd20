"""What a test says about a job: how it is compared with what is stored, and described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict

from ..checks import checked_moment
from ..errors import InvalidPayloadError
from ..jobs.job import Job, JobStatus
from ..jobs.job_selector import checked_statuses
from ..jobs.new_job import Named, name_of
from ..jobs.payload import plain_data, snapshot
from ..store.types import CodecOptions
from .differences import agreements, differences, shown


class Criteria(TypedDict, total=False):
    """What a test may say about a job; see `assert_enqueued`. What it does not say is not compared."""

    name: str | Named
    data: Any
    unique_key: str | None
    run_at: datetime
    status: JobStatus | str | Iterable[JobStatus | str]


@dataclass(frozen=True)
class Wanted:
    """The criteria that were given, by what they are called in the call.

    Attributes:
        criteria: Each as it compares with what a job has.
    """

    criteria: Mapping[str, Any]

    @classmethod
    def of(cls, said: Criteria, codec_options: CodecOptions[Any]) -> Wanted:
        """Raises InvalidOptionError or InvalidJobIdentifierError for a criterion that no job could meet."""
        criteria: dict[str, Any] = {}
        if "name" in said:
            criteria["name"] = name_of(said["name"])
        if "data" in said:
            criteria["data"] = _as_stored(said.get("name"), said["data"], codec_options)
        if "unique_key" in said:
            criteria["unique_key"] = said["unique_key"]
        if "run_at" in said:
            criteria["run_at"] = checked_moment("run_at", said["run_at"])
        if "status" in said:
            criteria["status"] = checked_statuses(said["status"])
        return cls(criteria)

    def differences(self, job: Job) -> list[str]:
        """One line for each place in which the job is another; none where it is meant."""
        lines = []
        for criterion, expected in self.criteria.items():
            if criterion == "status":
                if job.status not in expected:
                    lines.append(f"status: {job.status.value!r} instead of {_statuses(expected)}")
            else:
                lines += differences(criterion, expected, _attribute(job, criterion))
        return lines

    def distance(self, job: Job) -> tuple[int, ...]:
        """How far a job is from what was meant: another name is farther than anything else."""
        apart = [name for name in self.criteria if Wanted({name: self.criteria[name]}).differences(job)]
        alike = agreements(self.criteria["data"], job.data) if "data" in self.criteria else 0
        return "name" in apart, len(apart), -alike, len(self.differences(job))

    def __str__(self) -> str:
        said = [
            f"{name}={_statuses(value) if name == 'status' else shown(value)}" for name, value in self.criteria.items()
        ]
        return f"with {', '.join(said)}" if said else "at all"


def _attribute(job: Job, criterion: str) -> Any:
    return getattr(job, "next_run_at" if criterion == "run_at" else criterion)


def _statuses(statuses: Iterable[JobStatus]) -> str:
    return " or ".join(repr(status.value) for status in statuses)


def _as_stored(worker: object, data: Any, codec_options: CodecOptions[Any]) -> Any:
    """As it would be read; what BSON does not know (`unittest.mock.ANY`, say) makes it compared as it is."""
    try:
        data = plain_data(worker, data)
    except InvalidPayloadError:  # Not what the worker takes: perhaps it is what is stored.
        data = plain_data(None, data)
    try:
        return snapshot(data, None, codec_options)
    except InvalidPayloadError:
        return data
