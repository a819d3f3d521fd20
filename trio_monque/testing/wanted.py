"""What a test says about a job: how it is compared with what is stored, and told to people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Final

from bson.codec_options import CodecOptions

from ..errors import InvalidPayloadError
from ..jobs.job import Job, JobStatus
from ..jobs.new_job import Named, checked_moment, name_of
from ..jobs.payload import plain_data, snapshot
from ..jobs.selection import job_query
from .differences import agreements, differences, shown


class Unsaid(Enum):
    """Stands for a criterion that was not given, as None means something for some."""

    UNSAID = "unsaid"

    def __repr__(self) -> str:
        return "UNSAID"


UNSAID: Final = Unsaid.UNSAID


@dataclass(frozen=True)
class Wanted:
    """The criteria that were given, by what they are called in the call.

    Attributes:
        criteria: Each as it compares with what a job has.
    """

    criteria: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        codec_options: CodecOptions[Any],
        *,
        name: str | Named | Unsaid,
        data: Any,
        unique_key: str | Unsaid | None,
        run_at: datetime | Unsaid,
        status: JobStatus | str | Iterable[JobStatus | str] | Unsaid,
    ) -> Wanted:
        """Raises InvalidOptionError or InvalidJobIdentifierError for a criterion that no job could meet."""
        given: dict[str, Any] = {}
        if name is not UNSAID:
            given["name"] = name_of(name)
        if data is not UNSAID:
            given["data"] = _as_stored(data, codec_options)
        if unique_key is not UNSAID:
            given["unique_key"] = unique_key
        if run_at is not UNSAID:
            given["run_at"] = checked_moment("run_at", run_at)
        if status is not UNSAID:
            given["status"] = job_query(None, status, limit=1, skip=0).statuses
        return cls(given)

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


def _as_stored(data: Any, codec_options: CodecOptions[Any]) -> Any:
    """As a handler would get it; what BSON does not know (`unittest.mock.ANY`, say) makes it compared as it is."""
    data = plain_data(None, data)
    try:
        return snapshot(data, None, codec_options)
    except InvalidPayloadError:
        return data
