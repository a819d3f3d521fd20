"""One transaction of a job: its effects and the end of its claim are written together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo import errors as driver

from tests.support.store import PAST, claim, claim_due, handle
from trio_monque.errors import MonqueConnectionError, MonqueError
from trio_monque.jobs import transitions
from trio_monque.jobs.fences import fence
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store import job_changes, leases, queries
from trio_monque.store.codec import filter_of
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.job_transactions import JobEnd
from trio_monque.store.settling import Fate
from trio_monque.store.transactions import CommitOutcome, run_transaction
from trio_monque.store.types import ClientSession, Collection, Database

LATER = PAST + timedelta(minutes=1)
RECEIPT = "tx:a"


@dataclass
class Terms:
    """The bounds of a transaction in these tests. No pause takes time."""

    seconds: float = 30.0
    cancelled: bool = False
    last_beat: datetime = LATER
    pauses: list[float] = field(default_factory=list)

    def seconds_left(self) -> float:
        return self.seconds

    def is_cancelled(self) -> bool:
        return self.cancelled

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def beat(self) -> datetime:
        self.last_beat += timedelta(milliseconds=1)
        return self.last_beat


@pytest.fixture
def store(db: Database) -> JobCollection:
    return handle(db)


@pytest.fixture
def accounts(db: Database) -> Collection:
    """Made before: two first writes to a new collection would conflict."""
    db.accounts.insert_one({"_id": "a", "balance": 0})
    return db.accounts


@dataclass
class Seen:
    """How a transaction ended. `fate` is what the job's document shows, None if the run was cancelled."""

    fate: Fate | None
    value: Any
    is_unclear: bool


def run(store: JobCollection, job: Job, function: Callable[[ClientSession], Any], terms: Terms | None = None) -> Seen:
    def decide(result: Any) -> Any:
        return transitions.complete(job, LATER, result)

    end = JobEnd(store, job, decide, RECEIPT)
    ended = run_transaction(end, function, terms or Terms())
    fates = {
        CommitOutcome.COMMITTED: Fate.WRITTEN,
        CommitOutcome.REFUSED: Fate.REFUSED,
        CommitOutcome.UNKNOWN: Fate.LOST,
        CommitOutcome.CANCELLED: None,
    }
    fate = end.read_fate() if ended.outcome is CommitOutcome.UNMATCHED else fates[ended.outcome]
    return Seen(fate, ended.value, ended.outcome is CommitOutcome.UNKNOWN)


def deposit(accounts: Collection, session: ClientSession) -> int:
    accounts.update_one({"_id": "a"}, {"$inc": {"balance": 1}}, session=session)
    return 42


def balance(accounts: Collection) -> int:
    document = accounts.find_one({"_id": "a"})
    assert document is not None
    return int(document["balance"])


def stored(store: JobCollection, job_id: ObjectId) -> Job:
    job = queries.get_job(store, job_id)
    assert job is not None
    return job


def test_effects_and_completion_are_committed(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    ended = run(store, job, partial(deposit, accounts))
    after = stored(store, job.id)
    assert (ended.fate, ended.value, ended.is_unclear) == (Fate.WRITTEN, 42, False)
    assert (after.status, after.result, after.receipt) == (JobStatus.COMPLETED, 42, RECEIPT)
    assert balance(accounts) == 1


def test_effects_are_not_seen_before_the_completion(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)

    def look(session: ClientSession) -> int:
        deposit(accounts, session)
        return balance(accounts)

    assert run(store, job, look).value == 0


def test_error_of_the_function_undoes_its_effects(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)

    def fail(session: ClientSession) -> None:
        deposit(accounts, session)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store, job, fail)
    assert (balance(accounts), stored(store, job.id).status) == (0, JobStatus.PROCESSING)


def test_refused_write_of_the_function_is_its_own_error(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    calls = []

    def insert_again(session: ClientSession) -> None:
        calls.append(1)
        accounts.insert_one({"_id": "a"}, session=session)

    with pytest.raises(driver.DuplicateKeyError):
        run(store, job, insert_again)
    assert len(calls) == 1


def test_lost_claim_undoes_the_effects(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    job_changes.report_if_held(store, transitions.release(job, LATER))
    (other,) = claim_due(store, {"greet": 1}, now=LATER)
    ended = run(store, job, partial(deposit, accounts))
    assert (ended.fate, ended.is_unclear, balance(accounts)) == (Fate.LOST, False, 0)
    assert stored(store, job.id).claim_token == other.claim_token


def test_claim_that_is_taken_during_the_function_undoes_its_effects(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)

    def rescued_meanwhile(session: ClientSession) -> None:
        deposit(accounts, session)
        job_changes.report_if_held(store, transitions.release(job, LATER))

    terms = Terms()
    ended = run(store, job, rescued_meanwhile, terms)
    assert (ended.fate, balance(accounts)) == (Fate.LOST, 0)
    assert len(terms.pauses) == 1  # The first attempt met a conflict, the second found the claim gone.


def test_cancellation_before_the_settlement_undoes_the_effects(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    ended = run(store, job, partial(deposit, accounts), Terms(cancelled=True))
    assert (ended.fate, balance(accounts), stored(store, job.id).status) == (None, 0, JobStatus.PROCESSING)


def test_conflict_is_tried_again(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    calls: list[int] = []

    def meet(session: ClientSession) -> int:
        calls.append(1)
        accounts.find_one({"_id": "a"}, session=session)
        if len(calls) < 3:
            accounts.update_one({"_id": "a"}, {"$inc": {"balance": 10}})
        return deposit(accounts, session)

    assert run(store, job, meet).fate is Fate.WRITTEN
    assert (len(calls), balance(accounts)) == (3, 21)


def test_conflicts_end_with_the_time(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    terms = Terms()

    def meet(session: ClientSession) -> None:
        accounts.find_one({"_id": "a"}, session=session)
        accounts.update_one({"_id": "a"}, {"$inc": {"balance": 10}})
        if len(terms.pauses) == 3:
            terms.seconds = 0.0
        deposit(accounts, session)

    with pytest.raises(MonqueConnectionError, match="4 attempts") as caught:
        run(store, job, meet, terms)
    assert (balance(accounts), stored(store, job.id).status) == (40, JobStatus.PROCESSING)
    assert not caught.value.unknown_outcome


def test_renewals_of_neighbours_go_on_while_the_function_works(store: JobCollection, accounts: Collection) -> None:
    job, neighbour = claim(store, 2)

    def renewed_meanwhile(session: ClientSession) -> int:
        deposit(accounts, session)
        found = leases.renew(store, [neighbour], LATER)
        return len(found.lost) + len(found.refused)

    assert run(store, job, renewed_meanwhile).value == 0


def test_locks_of_an_attempt_without_time_are_released(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)

    def wait_for_itself(session: ClientSession) -> None:
        deposit(accounts, session)
        accounts.update_one({"_id": "a"}, {"$inc": {"balance": 10}})  # Without the session: it waits for that lock.

    with pytest.raises(driver.PyMongoError):
        run(store, job, wait_for_itself, Terms(seconds=0.3))
    with pymongo.timeout(2.0):
        accounts.update_one({"_id": "a"}, {"$inc": {"balance": 1}})
    assert balance(accounts) == 1


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


@pytest.mark.parametrize("lost", [1, 2])
def test_commit_whose_answer_is_lost_counts_once(
    store: JobCollection, accounts: Collection, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    (job,) = claim(store, 1)
    commits = Commits(monkeypatch, lost, applied=True)
    ended = run(store, job, partial(deposit, accounts))
    assert (ended.fate, ended.is_unclear) == (Fate.WRITTEN, False)
    assert (commits.count, balance(accounts), stored(store, job.id).status) == (2, 1, JobStatus.COMPLETED)


def test_commit_that_was_not_applied_is_tried_again(
    store: JobCollection, accounts: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = claim(store, 1)
    terms = Terms()
    Commits(monkeypatch, 2, applied=False)
    assert run(store, job, partial(deposit, accounts), terms).fate is Fate.WRITTEN
    assert (balance(accounts), stored(store, job.id).status) == (1, JobStatus.COMPLETED)
    assert len(terms.pauses) == 1


def test_commit_is_unclear_when_another_claim_has_come_since(
    store: JobCollection, accounts: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = claim(store, 1)
    commits = Commits(monkeypatch, 2, applied=True)
    real = commits.commit

    def settled_again(session: ClientSession) -> None:
        try:
            real(session)
        finally:
            store.collection.update_one({"_id": job.id}, {"$set": {"receipt": "of another"}})

    monkeypatch.setattr(commits, "commit", settled_again)
    ended = run(store, job, partial(deposit, accounts))
    assert (ended.fate, ended.is_unclear) == (Fate.LOST, True)


def test_function_must_not_end_the_transaction(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)

    def abort(session: ClientSession) -> None:
        deposit(accounts, session)
        session.abort_transaction()

    with pytest.raises(MonqueError, match="raise an exception to abort"):
        run(store, job, abort)
    assert store.collection.count_documents(filter_of(fence(job))) == 1


def test_async_function_is_refused(store: JobCollection) -> None:
    (job,) = claim(store, 1)

    async def function(_session: ClientSession) -> None: ...

    with pytest.raises(TypeError, match="must be a plain function"):
        run(store, job, function)
    assert store.collection.count_documents(filter_of(fence(job))) == 1


def test_what_ran_out_of_time_is_aborted_and_locks_nothing(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)

    def go_on_until_the_time_is_over(session: ClientSession) -> None:
        deposit(accounts, session)
        while True:
            accounts.find_one({"_id": "a"}, session=session)

    with pytest.raises(driver.PyMongoError) as caught:
        run(store, job, go_on_until_the_time_is_over, Terms(seconds=0.1))
    assert caught.value.timeout
    with pymongo.timeout(2):  # By itself, the server would abort it after a minute.
        accounts.update_one({"_id": "a"}, {"$inc": {"balance": 1}})
    assert balance(accounts) == 1
