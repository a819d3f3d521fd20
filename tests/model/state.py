"""What the model knows of a job, and how it is compared with a real one. Plain data: nothing here is the library's.

Only the type of a real job is the library's, and the names of its attributes, which the model borrows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import ObjectId

from tests.support.jobs_in_memory import flat
from trio_monque.jobs.job import Job
from trio_monque.store.jobs.job_json import NAMES

START: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)

# The two schedules there are, and the minute of each hour that they mean.
HOURLY: Final = "0 * * * *"
HALF_PAST: Final = "30 * * * *"
_MINUTE: Final = {HOURLY: 0, HALF_PAST: 30}


class Difference(AssertionError):  # noqa: N818  # The finding that all this is for.
    """The real thing did what the model would not have done."""


@dataclass(kw_only=True)
class ModelJob:
    """A job, attribute by attribute as the library names them.

    `token_of` has no counterpart: whose claim, and since when, the token in place was made for. The
    `receipt` is the settlement's number, with "/otherwise" where the cancellation was written instead.
    """

    id: ObjectId
    name: str
    data: Any = None
    status: str = "pending"
    next_run_at: datetime
    fail_count: int = 0
    created_at: datetime
    updated_at: datetime
    fail_reason: str | None = None
    repeat_interval: str | None = None
    unique_key: str | None = None
    claimed_by: str | None = None
    locked_at: datetime | None = None
    claim_token: str | None = None
    token_of: tuple[str, datetime] | None = None
    last_heartbeat: datetime | None = None
    heartbeat_interval: float | None = None
    renewed_at: datetime | None = None
    attempts: int = 0
    receipt: str | None = None
    rescues: int = 0
    rev: int = 0
    cancel_requested_at: datetime | None = None
    timezone: str | None = None
    schedule_version: int | None = None
    timeout: float | None = None
    max_attempts: int | None = None
    max_rescues: int | None = None
    on_exhausted: str | None = None
    result: Any = None
    progress: Any = None
    saved: Any = None
    saved_for: datetime | None = None
    occurrence: datetime | None = None
    resumes_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    errors: tuple[tuple[datetime, int, str], ...] = ()
    start_by: datetime | None = None
    meta: Mapping[str, str] = field(default_factory=dict)
    follows: ObjectId | None = None
    follow_up: Any = None
    debounced_since: datetime | None = None
    again: ObjectId | None = None
    again_data: Any = None
    again_at: datetime | None = None
    again_start_by: datetime | None = None
    again_since: datetime | None = None

    def copy(self) -> ModelJob:
        """As it is at this moment; what changes later does not change it."""
        return replace(self)

    def forget_again(self) -> None:
        """What was left for another run is taken, or dropped."""
        self.again = self.again_data = self.again_at = self.again_start_by = self.again_since = None

    @property
    def is_active(self) -> bool:
        """Whether it blocks its unique key."""
        return self.status in ("pending", "processing")

    @property
    def is_resumed(self) -> bool:
        """Whether this library gave the job its due date, for another try at what it tried before."""
        return self.resumes_at is not None and self.resumes_at == self.next_run_at

    @property
    def its_occurrence(self) -> datetime | None:
        """When what is due now was due for the first time; None for a one-off job."""
        if self.repeat_interval is None:
            return None
        return self.occurrence if self.is_resumed and self.occurrence is not None else self.next_run_at

    @property
    def deaths(self) -> int:
        """How many claims in a row died, as far as no one else ended a try since."""
        return 0 if self.resumes_at is not None and not self.is_resumed else self.rescues

    @property
    def is_claimed_by_us(self) -> bool:
        """Whether the token in place belongs to the claim in place."""
        return self.token_of is not None and self.token_of == (self.claimed_by, self.locked_at)


_COMPARED: Final = tuple(one.name for one in fields(ModelJob) if one.name != "token_of")
_OF_NURSERIES: Final = {
    name for name, path in NAMES.items() if path.startswith(("nursery.", "child.", "internals.last_scope"))
}
"""Models of their own are about these, and no operation here writes them."""

_FOR_OPERATORS: Final = {name for name, path in NAMES.items() if path.startswith("schedule.changed_")}
"""Nothing depends on these; tests/client/test_schedules.py is about them."""


def occurrence_after(now: datetime, repeat_interval: str) -> datetime:
    """The next full or half hour, strictly after now."""
    minute = _MINUTE[repeat_interval]
    following = now.replace(minute=minute, second=0, microsecond=0)
    return following if following > now else following + timedelta(hours=1)


def differences(expected: ModelJob, real: Job, but: frozenset[str] = frozenset()) -> list[str]:
    """In which attributes the two differ, but for some."""
    assert NAMES.keys() == {*_COMPARED, *_OF_NURSERIES, *_FOR_OPERATORS}
    shown = flat(real)
    found = [f"{name} should be None and is {getattr(shown, name)!r}" for name in _OF_NURSERIES if getattr(shown, name)]
    for name in _COMPARED:
        if name in but:
            continue
        wanted, got = getattr(expected, name), _comparable(name, getattr(shown, name))
        if wanted != got:
            found.append(f"{name} should be {wanted!r} and is {got!r}")
    return found


def check_same(what: str, expected: ModelJob | None, real: Job | None, but: frozenset[str] = frozenset()) -> None:
    """Raises Difference unless the job is as the model has it, in all its attributes."""
    if expected is None or real is None:
        if expected is not None or real is not None:
            raise Difference(f"{what}: should be {expected}, and is {real}")
        return
    if found := differences(expected, real, but):
        raise Difference(f"{what}: job {expected.id}: " + "; ".join(found))


def check_equal(what: str, expected: object, real: object) -> None:
    """Raises Difference unless the two are equal."""
    if expected != real:
        raise Difference(f"{what}: should be {expected!r}, and is {real!r}")


def _comparable(name: str, value: Any) -> Any:
    match name:
        case "receipt" if value is not None:
            # "s7.2/otherwise": the number within the batch depends on how statements were grouped.
            settlement, slash, suffix = value.partition("/")
            return settlement.partition(".")[0] + slash + suffix
        case "errors":
            return tuple(_entry(entry) for entry in value)
        case "status":
            return str(value)
    return value


def _entry(entry: Mapping[str, Any]) -> tuple[datetime, int, str]:
    return entry["at"], entry["attempt"], entry["error"]
