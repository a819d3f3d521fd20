"""The criteria of a test for a job: how they are checked, compared with a stored job, and described."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypedDict, TypeGuard

from ..checks import checked_moment
from ..error_types import InvalidPayloadError
from ..jobs.job import Job, JobStatus
from ..jobs.job_selector import checked_statuses
from ..jobs.new_job import Named, name_of
from ..jobs.stored_value_limits import plain_data, snapshot
from ..store.driver.types import CodecOptions

_NOTHING: Final = object()

# Python 3.11 has no way to say this in one call.
_short = reprlib.Repr()
_short.maxlevel = 4
_short.maxdict = _short.maxlist = _short.maxtuple = _short.maxset = 12
_short.maxstring = _short.maxother = _short.maxlong = 120


def shown(value: object) -> str:
    """The value as Python spells it; long ones are shortened."""
    return "nothing" if value is _NOTHING else _short.repr(value)


def differences(path: str, expected: Any, actual: Any) -> Iterator[str]:
    """One line for each place in which the values differ; none if they are equal.

    Compares mappings and sequences part by part, and all else with `==`, so that the expected value can
    contain `unittest.mock.ANY` anywhere.
    """
    if expected is not _NOTHING and expected == actual:
        return
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        for key in [*expected, *(key for key in actual if key not in expected)]:
            yield from differences(f"{path}[{key!r}]", expected.get(key, _NOTHING), actual.get(key, _NOTHING))
    elif _is_sequence(expected) and _is_sequence(actual):
        for place in range(max(len(expected), len(actual))):
            yield from differences(f"{path}[{place}]", _at(expected, place), _at(actual, place))
    else:
        yield f"{path}: {shown(actual)} instead of {shown(expected)}"


def agreements(expected: Any, actual: Any) -> int:
    """In how many places the values agree: how similar a value is to the expected one."""
    if isinstance(expected, Mapping) and isinstance(actual, Mapping):
        return sum(agreements(value, actual.get(key, _NOTHING)) for key, value in expected.items())
    if _is_sequence(expected) and _is_sequence(actual):
        return sum(agreements(one, other) for one, other in zip(expected, actual, strict=False))
    return int(bool(expected == actual))


def _is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _at(values: Sequence[Any], place: int) -> Any:
    return values[place] if place < len(values) else _NOTHING


class Criteria(TypedDict, total=False):
    """The criteria of a test; see `assert_enqueued`. Only those that are given are compared."""

    name: str | Named
    data: Any
    unique_key: str | None
    meta: Mapping[str, str]
    run_at: datetime
    status: JobStatus | str | Iterable[JobStatus | str]


@dataclass(frozen=True)
class CheckedCriteria:
    """Checked criteria, by the names of the arguments.

    Attributes:
        criteria: Each in the form that is compared with the attribute of a job.
    """

    criteria: Mapping[str, Any]

    @classmethod
    def of(cls, said: Criteria, codec_options: CodecOptions[Any]) -> CheckedCriteria:
        """Raises InvalidOptionError or InvalidJobIdentifierError for a criterion that no job could meet."""
        criteria: dict[str, Any] = {}
        if "name" in said:
            criteria["name"] = name_of(said["name"])
        if "data" in said:
            criteria["data"] = _as_stored(said.get("name"), said["data"], codec_options)
        if "unique_key" in said:
            criteria["unique_key"] = said["unique_key"]
        if "meta" in said:
            criteria["meta"] = said["meta"]
        if "run_at" in said:
            criteria["run_at"] = checked_moment("run_at", said["run_at"])
        if "status" in said:
            criteria["status"] = checked_statuses(said["status"])
        return cls(criteria)

    def differences(self, job: Job) -> list[str]:
        """One line for each place in which the job differs from the criteria; none if it meets them."""
        lines = []
        for criterion, expected in self.criteria.items():
            if criterion == "status":
                if job.status not in expected:
                    lines.append(f"status: {job.status.value!r} instead of {_statuses(expected)}")
            else:
                lines += differences(criterion, expected, _attribute(job, criterion))
        return lines

    def distance(self, job: Job) -> tuple[int, ...]:
        """How far a job is from the criteria; another name is farther than all other differences."""
        apart = [name for name in self.criteria if CheckedCriteria({name: self.criteria[name]}).differences(job)]
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
    """The data as it would be read. Data that BSON cannot encode (`unittest.mock.ANY`, say) is compared as it is."""
    try:
        data = plain_data(worker, data)
    except InvalidPayloadError:  # Invalid for the worker: the test may mean what is stored.
        data = plain_data(None, data)
    try:
        return snapshot(data, None, codec_options)
    except InvalidPayloadError:
        return data
