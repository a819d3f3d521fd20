"""Was it enqueued? With an answer that says what there is instead."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final, Unpack, overload

from ..checks import check_count
from ..client.monque import Monque
from ..jobs.job import Job
from .differences import shown
from .wanted import Criteria, Wanted

# A test looks at all there is; MongoDB's limit is a 32-bit number.
_ALL: Final = 2**31 - 1

# Of the jobs that are not the one: this number with what is different about them, the others counted by name.
MOST_SHOWN: Final = 3


@overload
async def assert_enqueued(monque: Monque, *, count: None = None, **criteria: Unpack[Criteria]) -> Job: ...


@overload
async def assert_enqueued(monque: Monque, *, count: int, **criteria: Unpack[Criteria]) -> list[Job]: ...


async def assert_enqueued(monque: Monque, *, count: int | None = None, **criteria: Unpack[Criteria]) -> Job | list[Job]:
    """Asserts that a job is there, whatever became of it since: with a scheduler it may have run already.

    Only what is given is compared. On trio and on every other backend of anyio.

    Args:
        monque: A client, or a scheduler.
        name: The job's, or its worker.
        data: Equal to what is stored, as a handler would get it; of a dataclass, the document of its
            fields. Objects that are equal to many things, such as `unittest.mock.ANY`, may stand in it.
        unique_key: The job's; None for a job that has none.
        run_at: When it is due (`next_run_at`), timezone-aware.
        status: One status, or several that are allowed. By default any.
        count: Exactly this number. By default at least one.

    Returns:
        The job, the first enqueued where there are several; with `count` a list of all, in the order in
        which they were enqueued.

    Raises:
        AssertionError: Says what there is instead, the most similar jobs first.
        InvalidOptionError, InvalidJobIdentifierError: No job could be so.
        MonqueConnectionError: The database did not answer.
    """
    __tracebackhide__ = True
    wanted = Wanted.of(criteria, monque._context.jobs.codec.callers)
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
        lines = [f"{len(found)} jobs {wanted} were enqueued, not {count}", *(f"  {_line_of(job)}" for job in found)]
        if len(found) < count:
            lines.append(f"Beside {'them ' if found else ''}{_there_is_instead(wanted, others)}")
        raise AssertionError("\n".join(lines))
    return found


async def assert_not_enqueued(monque: Monque, **criteria: Unpack[Criteria]) -> None:
    """Asserts that there is no such job, and without criteria no job at all. See `assert_enqueued`.

    A job that has run was enqueued: with `status="pending"` only one that still waits is a failure.

    Raises:
        AssertionError: Shows the jobs.
        InvalidOptionError, InvalidJobIdentifierError, MonqueConnectionError: As `assert_enqueued`.
    """
    __tracebackhide__ = True
    wanted = Wanted.of(criteria, monque._context.jobs.codec.callers)
    found = [job for job in await _all_jobs(monque) if not wanted.differences(job)]
    if found:
        lines = "\n".join(f"  {_line_of(job)}" for job in found[: 2 * MOST_SHOWN])
        raise AssertionError(f"{len(found)} jobs {wanted} were enqueued:\n{lines}{_counted(found[2 * MOST_SHOWN :])}")


async def _all_jobs(monque: Monque) -> Sequence[Job]:
    return sorted(await monque.get_jobs(limit=_ALL), key=lambda job: (job.created_at, job.id))


def _there_is_instead(wanted: Wanted, jobs: Sequence[Job]) -> str:
    if not jobs:
        return "there is no job at all" if wanted.criteria else "there is none"
    nearest = sorted(jobs, key=wanted.distance)
    lines = [f"there {'is one job' if len(jobs) == 1 else f'are {len(jobs)} jobs, the most similar first'}:"]
    for job in nearest[:MOST_SHOWN]:
        lines.append(f"  {_line_of(job)}")
        lines += (f"      {line}" for line in wanted.differences(job))
    return "\n".join(lines) + _counted(nearest[MOST_SHOWN:])


def _line_of(job: Job) -> str:
    key = "" if job.unique_key is None else f", unique_key={shown(job.unique_key)}"
    return f"{job}, due {job.next_run_at:%Y-%m-%d %H:%M:%S.%f}+00:00{key}, data={shown(job.data)}"


def _counted(jobs: Sequence[Job]) -> str:
    if not jobs:
        return ""
    names = Counter(job.name for job in jobs)
    return f"\n  and {len(jobs)} others: {', '.join(f'{count} {name}' for name, count in names.most_common())}"
