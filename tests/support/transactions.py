"""What tests of transactions share: an account, its balance, how a job is stored and ends, and lost answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import pytest
from pymongo import errors as driver

from trio_monque import Monque, RunningJob
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.job import Job
from trio_monque.store.driver.transaction_terms import FoundCommit
from trio_monque.store.driver.types import ClientSession, Collection
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import transactions as job_transactions
from trio_monque.store.jobs.settling import Fate


def deposit(accounts: Collection, session: ClientSession) -> int:
    accounts.update_one({"_id": "a"}, {"$inc": {"balance": 1}}, session=session)
    return 42


def balance(accounts: Collection) -> int:
    document = accounts.find_one({"_id": "a"})
    assert document is not None
    return int(document["balance"])


async def stored(monque: Monque, job: Job) -> Job:
    found = await monque.get_job(job.id)
    assert found is not None
    return found


@dataclass(eq=False)
class JobEnd:
    """The end of a job in its transaction, without a run: `decide` says what it is."""

    jobs: JobCollection
    job: Job
    decide: Callable[[Any], Transition]
    receipt: str = "tx:of this test"
    decided: list[Transition] = field(default_factory=list)

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
        job_transactions.hold(self.jobs, self.job, beat, session)

    def write(self, value: Any, session: ClientSession) -> bool:
        self.decided.append(self.decide(value))
        return job_transactions.write_end(self.jobs, self.decided[-1], self.receipt, session)

    def find_out(self, beat: datetime) -> FoundCommit:
        return job_transactions.find_out(self.jobs, self.job, self.receipt, beat)

    def read_fate(self) -> Fate:
        return job_transactions.read_fate(self.jobs, self.job, self.decided[-1], self.receipt)


class Commits:
    """Stands for the driver's commit: the first `lost` answers are lost."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lost: int, *, applied: bool) -> None:
        self.count = 0
        self._lost = lost
        self._applied = applied
        self._real = ClientSession.commit_transaction
        commits = self

        def commit(session: ClientSession) -> None:
            commits.commit(session)

        monkeypatch.setattr(ClientSession, "commit_transaction", commit)

    def commit(self, session: ClientSession) -> None:
        self.count += 1
        if self.count > self._lost:
            self._real(session)
            return
        if self._applied:
            self._real(session)
        elif session.in_transaction:
            session.abort_transaction()
        # With a wrong label: it says that nothing is committed.
        raise driver.OperationFailure("no such transaction", 251, {"errorLabels": ["TransientTransactionError"]})


async def noting_errors(job: RunningJob[Any], function: Callable[[ClientSession], Any], told: list[Any]) -> None:
    """Call `job.transaction`. Note the class of what it raises, and why the run is cancelled, if it is."""
    try:
        await job.transaction(function)
    except BaseException as error:
        told.append((type(error), job.cancel_reason))
        raise
