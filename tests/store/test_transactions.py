"""One transaction of a job: its effects and the end of its claim are written together or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pymongo
import pytest
from bson import ObjectId
from pymongo import errors as driver

from tests.support.interception import Recorder
from tests.support.interference import Failing
from tests.support.jobs_in_memory import flat
from tests.support.store import PAST, claim, claim_due, handle
from tests.support.transactions import Commits, JobEnd, balance, deposit
from trio_monque.errors import MonqueConnectionError, MonqueError, TransactionTimeoutError
from trio_monque.jobs import transitions
from trio_monque.jobs.claim_stamps_and_fences import fence
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store.codec import filter_of
from trio_monque.store.driver.transaction_attempts import LONGEST_PAUSE, MOST_QUESTIONS, end_on_server, run_transaction
from trio_monque.store.driver.transaction_terms import CommitFate, FoundCommit
from trio_monque.store.driver.types import ClientSession, Collection, Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import job_changes, leases
from trio_monque.store.jobs.settling import Fate
from trio_monque.store.reads import queries

LATER = PAST + timedelta(minutes=1)
RECEIPT = "tx:a"


@dataclass
class Terms:
    """The bounds of a transaction in these tests. No pause takes time."""

    seconds: float = 30.0
    cancelled: bool = False
    is_given_up: bool = False
    too_late: MonqueError | None = None
    sessions: list[ClientSession] = field(default_factory=list)
    last_beat: datetime = LATER
    pauses: list[float] = field(default_factory=list)

    def begin(self, session: ClientSession) -> bool:
        self.sessions.append(session)
        return not self.is_given_up

    def seconds_left(self) -> float:
        return self.seconds

    def overdue(self) -> MonqueError | None:
        return self.too_late

    def may_end(self) -> bool:
        return not self.cancelled

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def leave(self) -> None:
        pass

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


def run(
    store: JobCollection,
    job: Job,
    function: Callable[[ClientSession], Any],
    terms: Terms | None = None,
    kind: type[JobEnd] = JobEnd,
) -> Seen:
    def decide(result: Any) -> Any:
        return transitions.complete(job, LATER, result)

    end = kind(store, job, decide, RECEIPT)
    ended = run_transaction(end, function, terms or Terms())
    fates = {
        CommitFate.COMMITTED: Fate.WRITTEN,
        CommitFate.REFUSED: Fate.REFUSED,
        CommitFate.UNKNOWN: Fate.LOST,
        CommitFate.GIVEN_UP: None,
    }
    fate = end.read_fate() if ended.fate is CommitFate.UNMATCHED else fates[ended.fate]
    return Seen(fate, ended.value, ended.fate is CommitFate.UNKNOWN)


def stored(store: JobCollection, job_id: ObjectId) -> Job:
    job = queries.get_job(store, job_id)
    assert job is not None
    return job


def test_effects_and_completion_are_committed(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    ended = run(store, job, partial(deposit, accounts))
    after = stored(store, job.id)
    assert (ended.fate, ended.value, ended.is_unclear) == (Fate.WRITTEN, 42, False)
    assert (after.status, after.result, after.internals.receipt) == (JobStatus.COMPLETED, 42, RECEIPT)
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
    assert flat(stored(store, job.id)).claim_token == flat(other).claim_token


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


def test_function_that_returns_work_instead_of_doing_it_commits_nothing(
    store: JobCollection, accounts: Collection
) -> None:
    (job,) = claim(store, 1)

    def move(session: ClientSession) -> Iterator[int]:
        yield deposit(accounts, session)

    def move_later(session: ClientSession) -> Future[int]:
        deposit(accounts, session)
        return Future()

    async def move_never(session: ClientSession) -> AsyncIterator[int]:
        yield deposit(accounts, session)

    for function in (move, move_later, move_never):
        with pytest.raises(TypeError, match=r"the function of a transaction, .* returned (the|an|a) "):
            run(store, job, function)
    assert (balance(accounts), store.collection.count_documents(filter_of(fence(job)))) == (0, 1)


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


# --- The time ---


def test_transaction_without_time_sends_nothing_that_waits(store: JobCollection, accounts: Collection) -> None:
    """To the driver, a timeout of 0 means that there is none."""
    (job,) = claim(store, 1)

    def take_long(session: ClientSession) -> None:
        for _ in range(1000):  # One of these may be answered within the millisecond that there is.
            deposit(accounts, session)

    # Of the driver, if it has not sent the command; of the library, if the connection broke within that moment.
    with pytest.raises((driver.PyMongoError, MonqueConnectionError)):
        run(store, job, take_long, Terms(seconds=0.0))
    assert (balance(accounts), stored(store, job.id).status) == (0, JobStatus.PROCESSING)
    # A command whose connection broke may have begun the transaction after its abort had come. The server keeps that
    # for a minute, and the end of this test would wait for it.
    accounts.database.client.admin.command("killAllSessions", [])


def test_error_of_the_driver_behind_the_limit_is_that_of_the_limit(store: JobCollection, accounts: Collection) -> None:
    """Also one that says that the transaction may be made again."""
    (job,) = claim(store, 1)
    terms = Terms()

    def meet(session: ClientSession) -> None:
        accounts.find_one({"_id": "a"}, session=session)
        accounts.update_one({"_id": "a"}, {"$inc": {"balance": 10}})
        terms.too_late = TransactionTimeoutError("it", 5)
        deposit(accounts, session)

    with pytest.raises(TransactionTimeoutError) as caught:
        run(store, job, meet, terms)
    assert isinstance(caught.value.__cause__, driver.PyMongoError)
    assert (len(terms.sessions), balance(accounts)) == (1, 10)


def test_transaction_that_is_given_up_is_not_begun_again(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    terms = Terms()

    def meet(session: ClientSession) -> None:
        accounts.find_one({"_id": "a"}, session=session)
        accounts.update_one({"_id": "a"}, {"$inc": {"balance": 10}})
        terms.is_given_up = True
        deposit(accounts, session)

    assert run(store, job, meet, terms).fate is None
    assert (len(terms.sessions), balance(accounts)) == (1, 10)


def test_transaction_that_is_given_up_before_its_begin_calls_nothing(store: JobCollection) -> None:
    (job,) = claim(store, 1)
    calls: list[ClientSession] = []
    assert run(store, job, calls.append, Terms(is_given_up=True)).fate is None
    assert calls == []


def test_server_aborts_a_transaction_whose_thread_goes_on(store: JobCollection, accounts: Collection) -> None:
    (job,) = claim(store, 1)
    terms = Terms()
    end = JobEnd(store, job, lambda _: transitions.complete(job, LATER))

    def outlive(session: ClientSession) -> None:
        deposit(accounts, session)
        end_on_server(end, terms.sessions[-1].session_id)
        with pymongo.timeout(2):  # It is locked no more.
            accounts.update_one({"_id": "a"}, {"$inc": {"balance": 10}})
        terms.too_late = TransactionTimeoutError("it", 5)
        deposit(accounts, session)

    with pytest.raises(TransactionTimeoutError):
        run(store, job, outlive, terms)
    # The session goes back to the pool of the client, and serves again.
    assert run(store, job, partial(deposit, accounts)).fate is Fate.WRITTEN
    assert balance(accounts) == 11


# --- The lock on the document ---


@pytest.mark.full
@pytest.mark.parametrize("is_repeated", [False, True])
def test_document_is_locked_from_the_second_call_on(
    store: JobCollection, accounts: Collection, *, is_repeated: bool
) -> None:
    (job,) = claim(store, 1)
    changed: list[bool] = []

    def others_change(session: ClientSession) -> None:
        deposit(accounts, session)
        if len(changed) == 5:
            return
        try:
            with pymongo.timeout(0.3):
                store.collection.update_one({"_id": job.id}, {"$inc": {"rev": 1}})
        except driver.PyMongoError:
            changed.append(False)
        else:
            changed.append(True)

    end = JobEnd(store, job, lambda _: transitions.complete(job, LATER), RECEIPT)
    ended = run_transaction(end, others_change, Terms(), is_repeated=is_repeated)
    assert ended.fate is CommitFate.COMMITTED
    assert changed == ([False] if is_repeated else [True, False])


def test_hold_leaves_a_request_to_cancel_to_the_end(store: JobCollection) -> None:
    """Others may take long with what they do to such a job, and must not wait for it."""
    (job,) = claim(store, 1)
    store.collection.update_one({"_id": job.id}, {"$set": {"cancelRequestedAt": LATER}})
    end = JobEnd(store, job, lambda _: transitions.complete(job, LATER))
    with store.collection.database.client.start_session() as session, session.start_transaction():
        end.hold(LATER, session)
        with pymongo.timeout(2):
            assert store.collection.update_one({"_id": job.id}, {"$inc": {"rev": 1}}).modified_count


# --- What is asked of the server ---


@pytest.fixture
def recorded(db: Database) -> Iterator[tuple[JobCollection, Recorder]]:
    """The jobs by a client whose commands are recorded. Its writes wait for one member alone."""
    recorder = Recorder()
    host, port = db.client.address or ("", 0)
    with pymongo.MongoClient[Any](
        host, port, tz_aware=True, event_listeners=[recorder], directConnection=True
    ) as client:
        yield handle(client[db.name], write_concern=1), recorder


def sent(recorder: Recorder, name: str) -> list[Any]:
    return [command for each, command in recorder.commands if each == name]


def test_transaction_reads_a_snapshot_and_commits_by_a_majority(
    recorded: tuple[JobCollection, Recorder], accounts: Collection
) -> None:
    store, recorder = recorded
    (job,) = claim(store, 1)
    recorder.commands.clear()
    accounts_there = store.collection.database.accounts
    assert run(store, job, partial(deposit, accounts_there)).fate is Fate.WRITTEN
    first, *_ = sent(recorder, "update")
    assert (first["startTransaction"], first["readConcern"]["level"]) == (True, "snapshot")
    (commit,) = sent(recorder, "commitTransaction")
    assert commit["writeConcern"]["w"] == "majority"


def test_question_about_a_commit_is_by_a_majority_and_in_one_session(
    recorded: tuple[JobCollection, Recorder],
) -> None:
    store, recorder = recorded
    (job,) = claim(store, 1)
    store.collection.update_one({"_id": job.id}, {"$set": {"status": "completed"}})
    recorder.commands.clear()
    end = JobEnd(store, job, lambda _: transitions.complete(job, LATER))
    assert end.find_out(LATER) is FoundCommit.UNKNOWN
    (renewal,), (look,) = sent(recorder, "update"), sent(recorder, "find")
    assert renewal["writeConcern"]["w"] == "majority"
    assert look["readConcern"]["level"] == "majority"
    assert "afterClusterTime" in look["readConcern"]
    assert look["lsid"] == renewal["lsid"]


def test_abort_takes_two_seconds_at_most(recorded: tuple[JobCollection, Recorder]) -> None:
    """The thread of the transaction waits for it."""
    store, recorder = recorded
    (job,) = claim(store, 1)
    end = JobEnd(store, job, lambda _: transitions.complete(job, LATER))
    with store.collection.database.client.start_session() as session:
        end_on_server(end, session.session_id)
    (abort,) = sent(recorder, "killSessions")
    assert 0 < abort["maxTimeMS"] <= 2000


@pytest.mark.parametrize("seconds", [30.0, 0.0])
def test_thread_waits_two_seconds_at_most_for_its_own_abort(
    recorded: tuple[JobCollection, Recorder], accounts: Collection, seconds: float
) -> None:
    """Also if the time of its transaction is over, and with it all that the driver would send in that time."""
    store, recorder = recorded
    (job,) = claim(store, 1)
    accounts_there, terms = store.collection.database.accounts, Terms()

    def fail(session: ClientSession) -> None:
        deposit(accounts_there, session)
        terms.seconds = seconds
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(store, job, fail, terms)
    (abort,) = sent(recorder, "abortTransaction")
    assert 0 < abort["maxTimeMS"] <= 2000


def test_fate_of_a_claim_is_read_by_a_majority(recorded: tuple[JobCollection, Recorder]) -> None:
    store, recorder = recorded
    (job,) = claim(store, 1)
    job_changes.report_if_held(store, transitions.release(job, LATER))
    recorder.commands.clear()
    assert run(store, job, lambda _session: None).fate is Fate.LOST
    assert sent(recorder, "find")[-1]["readConcern"]["level"] == "majority"


# --- Errors ---


def test_fate_that_cannot_be_read_leaves_no_doubt_that_nothing_was_committed(store: JobCollection) -> None:
    (job,) = claim(store, 1)
    job_changes.report_if_held(store, transitions.release(job, LATER))
    store.interference.append(Failing("read the outcome of a claim"))
    with pytest.raises(MonqueConnectionError, match="could not read the outcome of a claim") as caught:
        run(store, job, lambda _session: None)
    assert not caught.value.unknown_outcome


class Unwritable(JobEnd):
    """The end of a claim that the server does not understand."""

    def write(self, _value: Any, session: ClientSession) -> bool:
        self.collection.database.command("nonsense", session=session)
        raise AssertionError("unreachable")


class FailsInside(JobEnd):
    """The end of a claim at which the server fails inside: outside of a transaction, it may be written."""

    def write(self, _value: Any, session: ClientSession) -> bool:
        super().write(_value, session)
        raise driver.OperationFailure("unknown error", 8)


@pytest.mark.parametrize("kind", [Unwritable, FailsInside])
def test_error_of_the_end_is_one_of_the_library_and_its_outcome_is_known(
    store: JobCollection, accounts: Collection, kind: type[JobEnd]
) -> None:
    (job,) = claim(store, 1)
    with pytest.raises(MonqueConnectionError, match="end the claim in its transaction") as caught:
        run(store, job, partial(deposit, accounts), kind=kind)
    assert not caught.value.unknown_outcome
    assert balance(accounts) == 0


class Silent(JobEnd):
    """The end of a claim about which the database does not answer."""

    def find_out(self, beat: datetime) -> FoundCommit:
        raise MonqueConnectionError("no answer", transient=True)


def test_commit_whose_outcome_nothing_shows_raises_an_unknown_outcome(
    store: JobCollection, accounts: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job,) = claim(store, 1)
    terms = Terms()
    Commits(monkeypatch, 1000, applied=True)
    with pytest.raises(MonqueConnectionError, match="unknown whether") as caught:
        run(store, job, partial(deposit, accounts), terms, Silent)
    assert caught.value.unknown_outcome
    assert isinstance(caught.value.__cause__, MonqueConnectionError)
    # Longer and longer pauses, but none that is longer than a second.
    assert len(terms.pauses) == MOST_QUESTIONS
    assert terms.pauses == sorted(terms.pauses)
    assert 0 < terms.pauses[0] < terms.pauses[-1] == LONGEST_PAUSE
