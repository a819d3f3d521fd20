"""The end of a job, as its transaction writes it; `transactions.py` says when.

A receipt is written with the end: if the answer to the commit is lost, it shows whose end the document has.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from pymongo import WriteConcern

from ..jobs.conditional_write import Transition
from ..jobs.fences import claim_id, fence
from ..jobs.job import Job
from .codec import LENIENT, filter_of, update_of
from .commands import BY_ID, by_majority, causal_session, command
from .fields import FIELD
from .job_collection import JobCollection
from .leases import signs_of_life
from .settling import Fate, fate_of
from .settling_statements import Statement
from .transactions import Found
from .types import ClientSession, Collection

R = TypeVar("R")


@dataclass(slots=True, eq=False)
class JobEnd(Generic[R]):
    """A `ClaimEnd`.

    Attributes:
        decide: Returns the end of the claim, by what the function returned.
        receipt: Unique to this transaction.
    """

    jobs: JobCollection
    job: Job
    decide: Callable[[R], Transition]
    receipt: str = field(default_factory=lambda: f"tx:{secrets.token_hex(12)}")
    _transition: Transition | None = None

    @property
    def item(self) -> str:
        return f"job {self.job}"

    @property
    def collection(self) -> Collection:
        return self.jobs.collection

    @property
    def operation_timeout(self) -> float:
        return self.jobs.operation_timeout

    def hold(self, beat: datetime, session: ClientSession) -> None:
        # If a cancellation was requested, the renewal matches nothing. The write of the end finds that out.
        condition = filter_of({**fence(self.job), "cancel_requested_at": None})
        self.collection.update_one(condition, _renewal(beat), hint=BY_ID, session=session)

    def write(self, value: R, session: ClientSession) -> bool:
        transition = self._transition = self.decide(value)
        guard, update = filter_of(transition.guard), update_of(transition, self.receipt)
        return bool(self.collection.update_one(guard, update, hint=BY_ID, session=session).matched_count)

    def find_out(self, beat: datetime) -> Found:
        return _find_out(self.jobs, self.job, self.receipt, beat)

    def read_fate(self) -> Fate:
        """Return why the end matched nothing. After the transaction was aborted."""
        assert self._transition is not None, "it was written"
        return _read_fate(self.jobs, self.job, Statement(self._transition, self.receipt, [claim_id(self.job)]))


def _renewal(beat: datetime) -> dict[str, Any]:
    return {"$max": signs_of_life(beat), "$set": {FIELD["updated_at"]: beat}}


@command("read what became of a claim", writes=False)
def _read_fate(jobs: JobCollection, job: Job, statement: Statement) -> Fate:
    document = by_majority(jobs.collection, LENIENT).find_one({"_id": job.id}, hint=BY_ID)
    return Fate.LOST if document is None else fate_of(statement, document)


@command("find out about a transaction")
def _find_out(jobs: JobCollection, job: Job, receipt: str, beat: datetime) -> Found:
    # By a majority, whatever the writes of this collection ask for: an election must not undo this one.
    writer = jobs.collection.with_options(write_concern=WriteConcern("majority"))
    with causal_session(jobs.collection) as session:
        if writer.update_one(filter_of(fence(job)), _renewal(beat), hint=BY_ID, session=session).matched_count:
            return Found.NOT_COMMITTED
        # In the session: a primary that was replaced meanwhile cannot answer this one.
        reader = by_majority(jobs.collection, LENIENT)
        document = reader.find_one({"_id": job.id}, [FIELD["receipt"]], hint=BY_ID, session=session)
    is_ours = document is not None and document.get(FIELD["receipt"]) == receipt
    return Found.COMMITTED if is_ours else Found.UNKNOWN
