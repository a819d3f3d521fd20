"""Jobs of a query, decoded batch by batch, up to a number of bytes.

A job may have 16 MiB: the hundred jobs of a page would be 1.6 GB, in memory and in one answer.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Final

from ...jobs.job import Job
from ..driver.raw_batches import RawBatches, number_in
from ..job_collection import JobCollection

MOST_BYTES: Final = 32 * 2**20
"""After this many bytes no further batch is read. The server sends batches of at most 16 MiB."""


@dataclass(frozen=True, slots=True)
class ReadJobs:
    """What was read of a query.

    Attributes:
        jobs: In the order of the query.
        number: How many documents there were, with those that are not jobs.
        is_cut: There may be more: the reading stopped at the limit of bytes, and there is at least one job.
    """

    jobs: list[Job]
    number: int
    is_cut: bool


def read_jobs(jobs: JobCollection, batches: RawBatches, most_bytes: int | None = MOST_BYTES) -> ReadJobs:
    """Decode what the query finds, up to a limit of bytes; None for no limit. A part of a command.

    Documents that are not jobs are left out, and logged once.
    """
    found: list[Job] = []
    number = size = 0
    with closing(batches):
        for batch in batches:
            found += jobs.decoded_batch(batch)
            number += number_in(batch)
            size += len(batch)
            # Not before the first job: a place to go on from is the place of a job.
            if most_bytes is not None and size >= most_bytes and found and batches.alive:
                return ReadJobs(found, number, is_cut=True)
    return ReadJobs(found, number, is_cut=False)
