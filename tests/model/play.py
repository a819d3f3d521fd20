"""One sequence of operations, played on both sides: what there is to act on, and what each instance remembers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, NamedTuple

from bson import ObjectId

from trio_monque import events
from trio_monque.client.event_delivery import EventDelivery
from trio_monque.client.job_wait_polling import EndWatcher
from trio_monque.client.sync_monque import SyncMonque
from trio_monque.jobs.claim_stamps_and_fences import ClaimId, claim_id
from trio_monque.jobs.job import Job
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs.settling import Statement

from .context import SetContext
from .model import Ending, Model
from .node import Node
from .state import ModelJob, check_equal, check_same

MOST_ENDED: Final = 6
"""How many copies of claims that ended or were lost an instance remembers, to use them once more."""


class Copy(NamedTuple):
    """A job as a client read it, on both sides."""

    model: ModelJob
    real: Job

    @property
    def claim(self) -> ClaimId:
        """Which claim on it, where it was claimed."""
        return claim_id(self.real)


class Batch(NamedTuple):
    """Ends that were sent together, on both sides."""

    copies: Sequence[Copy]
    endings: Sequence[Ending]
    statements: Sequence[Statement]


@dataclass
class Instance:
    """What one scheduler remembers: candidates, claims that it believes to hold, claims that it knows are gone."""

    id: str
    candidates: list[Copy] = field(default_factory=list)
    held: list[Copy] = field(default_factory=list)
    ended: list[Copy] = field(default_factory=list)
    sent: Batch | None = None

    def forget(self, copy: Copy) -> None:
        if copy in self.held:
            self.held.remove(copy)
            self.ended = [*self.ended, copy][-MOST_ENDED:]


def turned(copies: Sequence[Copy], first: int, count: int) -> list[Copy]:
    """Some of these, each claim once; a lost claim and the next one on the same job may both be among them."""
    order = [copies[(first + place) % len(copies)] for place in range(len(copies))]
    return list({copy.claim: copy for copy in order}.values())[:count]


class Play:
    """Both sides of one sequence."""

    def __init__(self, jobs: JobCollection) -> None:
        self.jobs = jobs
        self.model = Model()
        self.node = Node(jobs.collection, self.model)
        self.instances = (Instance("us-1"), Instance("us-2"))
        self.context = SetContext(jobs, self.model.now)
        self.reported: list[events.Event] = []
        event_delivery = EventDelivery()
        event_delivery.on(events.Event, self.reported.append)
        self.client = SyncMonque(self.context, event_delivery, EndWatcher(self.jobs), blocks_loops=True)
        self.read: list[Copy] = []
        self.gone: list[ObjectId] = []
        self._count = 0

    def number(self) -> int:
        """A new one each time, for ids, tokens and receipts: a sequence is the same whenever it is played."""
        self._count += 1
        return self._count

    def instance(self, a: int) -> Instance:
        return self.instances[a % 2]

    def copy(self, job: Job) -> Copy:
        """A job that was just read, beside the model's."""
        return Copy(self.model.jobs[job.id].copy(), job)

    def job(self, a: int, *preferred: str) -> ObjectId | None:
        """One of the jobs there are, three times of four one in such a status, if any; at times one that is gone."""
        if a % 16 == 15 and self.gone:
            return self.gone[a // 16 % len(self.gone)]
        among = list(self.model.jobs)
        for status in reversed(preferred if a % 4 != 3 else ()):
            among = [job.id for job in self.model.jobs.values() if job.status == status] or among
        return among[a // 4 % len(among)] if among else None

    def pass_time(self, step: timedelta) -> None:
        self.model.now += step
        self.context.clock.moment = self.model.now

    def check_all(self) -> None:
        """Compares everything that is stored."""
        documents = {document["_id"]: document for document in self.jobs.collection.find()}
        check_equal("the jobs there are", sorted(self.model.jobs), sorted(documents))
        for job_id, expected in self.model.jobs.items():
            check_same("as stored", expected, self.jobs.codec.decode(documents[job_id]))
