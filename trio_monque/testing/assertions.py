"""assert_enqueued and assert_not_enqueued: their errors show the most similar jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Unpack, overload

from ..checks import check_count
from ..client.monque import Monque
from ..jobs.job import Job
from .criteria import CheckedCriteria, Criteria, shown

# A test reads all jobs; MongoDB's limit is a 32-bit number.
_ALL: Final = 2**31 - 1

# An error shows this many other jobs with their differences, and counts the rest by name.
MOST_SHOWN: Final = 3


@overload
async def assert_enqueued(monque: Monque, *, count: None = None, **criteria: Unpack[Criteria]) -> Job: ...


@overload
async def assert_enqueued(monque: Monque, *, count: int, **criteria: Unpack[Criteria]) -> list[Job]: ...


async def assert_enqueued(monque: Monque, *, count: int | None = None, **criteria: Unpack[Criteria]) -> Job | list[Job]:
    """Assert that a job was enqueued, in any status: a scheduler may have run it already.

    Only the given criteria are compared. Works on trio and on every other backend of anyio.

    Args:
        monque: A client, or a scheduler.
        name: The job's name, or its worker.
        data: The stored data, as a handler would get it; for a dataclass, the document of its
            fields. It may contain objects that equal many things, such as `unittest.mock.ANY`.
        unique_key: The job's unique key; None for a job without one.
        meta: The whole meta of the job; `{}` for a job without one.
        run_at: When it is due (`next_run_at`), timezone-aware.
        status: The status, or several allowed ones. Any by default.
        count: The exact number of such jobs. At least one by default.

    Returns:
        The job that was enqueued first; with `count`, a list of all such jobs in the order in which they
        were enqueued.

    Raises:
        AssertionError: There is no such job, or another number of them. Shows the most similar jobs.
        InvalidOptionError, InvalidJobIdentifierError: No job could meet a criterion.
        MonqueConnectionError: The database did not answer.
    """
    __tracebackhide__ = True
    wanted = CheckedCriteria.of(criteria, monque._context.jobs.codec.callers)
    if count is not None:
        check_count("count", count, at_least=0)
    jobs = await _all_jobs(monque)
    found = [job for job in jobs if not wanted.differences(job)]
    if count is None:
        if not found:
            raise AssertionError(f"no job {wanted} was enqueued: {_there_is_instead(wanted, jobs)}")
        return found[0]
    if len(found) != count:
        others = [job for job in jobs if job not in found]
        lines = [f"{len(found)} jobs {wanted} were enqueued, not {count}", *(f"  {_described(job)}" for job in found)]
        if len(found) < count:
            lines.append(f"Beside {'them ' if found else ''}{_there_is_instead(wanted, others)}")
        raise AssertionError("\n".join(lines))
    return found


async def assert_not_enqueued(monque: Monque, **criteria: Unpack[Criteria]) -> None:
    """Assert that there is no such job; without criteria, no job at all. See `assert_enqueued`.

    A job that has run was enqueued, too: `status="pending"` asks only for jobs that still wait.

    Raises:
        AssertionError: Shows the jobs.
        InvalidOptionError, InvalidJobIdentifierError, MonqueConnectionError: As `assert_enqueued`.
    """
    __tracebackhide__ = True
    wanted = CheckedCriteria.of(criteria, monque._context.jobs.codec.callers)
    found = [job for job in await _all_jobs(monque) if not wanted.differences(job)]
    if found:
        listed = "\n".join(f"  {_described(job)}" for job in found[: 2 * MOST_SHOWN])
        raise AssertionError(f"{len(found)} jobs {wanted} were enqueued:\n{listed}{_counted(found[2 * MOST_SHOWN :])}")


async def _all_jobs(monque: Monque) -> Sequence[Job]:
    return sorted(await monque.get_jobs(limit=_ALL), key=lambda job: (job.created_at, job.id))


def _there_is_instead(wanted: CheckedCriteria, jobs: Sequence[Job]) -> str:
    if not jobs:
        return "there is no job at all" if wanted.criteria else "there is none"
    nearest = sorted(jobs, key=wanted.distance)
    lines = [f"there {'is one job' if len(jobs) == 1 else f'are {len(jobs)} jobs, the most similar first'}:"]
    for job in nearest[:MOST_SHOWN]:
        lines.append(f"  {_described(job)}")
        lines += (f"      {line}" for line in wanted.differences(job))
    return "\n".join(lines) + _counted(nearest[MOST_SHOWN:])


def _described(job: Job) -> str:
    key = "" if job.unique_key is None else f", unique_key={shown(job.unique_key)}"
    return f"{job}, due {job.next_run_at:%Y-%m-%d %H:%M:%S.%f}+00:00{key}, data={shown(job.data)}"


def _counted(jobs: Sequence[Job]) -> str:
    if not jobs:
        return ""
    names = Counter(job.name for job in jobs)
    return f"\n  and {len(jobs)} others: {', '.join(f'{count} {name}' for name, count in names.most_common())}"
