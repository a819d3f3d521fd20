"""Enqueue: checks a new job before anything is sent, and inserts it, exactly once if the database answers. Blocking.

The race is with a lost answer: the connection breaks after the insert was sent, and the insert may or may not have been
applied, or be applied later. What makes it safe to send again:

- *The id is made here*, before the first insert. A look for the id shows whether the job is stored. If it is not, the
  same document is sent again; should the first insert arrive late, the server refuses the second copy of the id.
- *A unique key*: the second insert finds the job that has the key, which may be our own, stored late.
- *Replacing and debouncing*: nothing shows whether a first sending changed another job, so it is sent again. If the
  job has run in between, it runs once more.
- *In the caller's transaction* nothing is looked up or sent again: an error there aborts the transaction, and only the
  caller can repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar, Unpack

from ..checks import check_known
from ..error_types import MonqueConnectionError, MonqueError
from ..jobs.enqueued import Enqueued, EnqueueOutcome
from ..jobs.job import Job, with_result_reader
from ..jobs.meta import checked_meta
from ..jobs.new_job import Draft, JobOptions, Named, NewJob, NewSchedule, check_keeps, check_new, name_of
from ..jobs.stored_value_limits import TypedWorker, check_payload, plain_data, result_reader_of, takes_data, unpacked
from ..log import logger_of
from ..store.codec import document_of
from ..store.driver.types import ClientSession, ObjectId
from ..store.jobs import indexes, inserting, replacing
from ..store.jobs.inserting import Parcel
from ..store.jobs.replacing import Replacement
from .client_context import ClientContext
from .fleet import read_instances
from .operation import Operation, Read

T = TypeVar("T")

logger = logger_of("client")

OPTIONS: Final = frozenset(JobOptions.__annotations__)


class Enqueue(Operation[Job]):
    """One new job.

    Attributes:
        draft: The job, completely checked.
        can_share: The job may be sent in one statement with the jobs of other callers.
        outcome: What became of it, once the operation is over.
    """

    outcome: EnqueueOutcome = "created"

    def __init__(
        self,
        context: ClientContext,
        draft: Draft,
        session: ClientSession | None,
        read_result: Callable[[Any], Any] | None = None,
    ) -> None:
        super().__init__()
        self.draft = draft
        self._read_result = read_result
        # A session belongs to one caller, and a unique key needs a statement of its own (an upsert).
        self.can_share = session is None and draft.new.unique_key is None
        self._context = context
        self._session = self.caused.session = session
        self.caused.are_new = True

    def step(self) -> None:
        enqueued = put(self._context, self.draft, self._session)
        self.outcome = enqueued.outcome
        # The second announcement of a new job is dropped. A replaced job may be due at another time than announced.
        self.caused.are_new = self.outcome not in ("replaced", "again")
        self.stored(enqueued.job)

    def stored(self, job: Job) -> None:
        """Note the job that is stored now. Also called for a job that was sent with those of other callers."""
        self.caused.jobs = [job]
        self.finish(job if self._read_result is None else with_result_reader(job, self._read_result))


class EnqueueWithOutcome(Operation[Enqueued[Any]]):
    """One new job, and what became of it.

    Attributes:
        enqueue: The same without the outcome.
    """

    def __init__(self, enqueue: Enqueue) -> None:
        super().__init__()
        self.enqueue = enqueue
        self.caused = enqueue.caused

    def step(self) -> None:
        self.enqueue.step()
        self.stored(self.enqueue.result)

    def stored(self, job: Job) -> None:
        """Note the job that is stored now."""
        self.finish(Enqueued(job, self.enqueue.outcome))


def enqueue(
    context: ClientContext,
    worker: str | TypedWorker[Any],
    data: Any = None,
    *,
    session: ClientSession | None = None,
    **options: Unpack[JobOptions],
) -> Enqueue:
    """Check a new job; see `Monque.enqueue`."""
    if not options.keys() <= OPTIONS:
        check_known(options, OPTIONS, "enqueue")
    if session is not None:
        inserting.check_session(context.jobs, session)
    new = NewJob(name=name_of(worker), data=data, **options)
    if session is not None:
        check_keeps(new, "cannot be combined with a session: call it before or after your transaction")
    return Enqueue(context, draft_of(context, new, worker), session, result_reader_of(worker))


def enqueue_with_outcome(
    context: ClientContext, worker: str | TypedWorker[Any], data: Any = None, **options: Unpack[JobOptions]
) -> EnqueueWithOutcome:
    """Check a new job; see `Monque.enqueue_with_outcome`."""
    check_known(options, OPTIONS, "enqueue_with_outcome")
    return EnqueueWithOutcome(enqueue(context, worker, data, **options))


def document(
    context: ClientContext, worker: str | TypedWorker[Any], data: Any = None, **options: Unpack[JobOptions]
) -> Operation[dict[str, Any]]:
    """Check a new job, and make its document; see `Monque.document`."""
    check_known(options, OPTIONS, "document")
    new = NewJob(name=name_of(worker), data=data, **options)
    check_keeps(new, "is for a job that is sent: a document does not say what your insert does with another one")
    draft = draft_of(context, new, worker)

    def make() -> dict[str, Any]:
        ensure_indexes_for(context, draft.new)
        return document_of(draft.at(context.now()))

    return Read(make)


def draft_of(context: ClientContext, new: NewJob | NewSchedule, worker: str | Named | None = None) -> Draft:
    """Check a new job completely, and encode its data. Nothing is sent.

    Raises:
        InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError,
        InvalidCronError: The job is invalid; the message names what is wrong.
    """
    is_checked = takes_data(worker) or (isinstance(new, NewJob) and new.is_checked)
    data = plain_data(worker, new.data)
    if data is not new.data:
        new = replace(new, data=data)
    if new.meta is not None:
        new = replace(new, meta=checked_meta(new.meta))
    check_new(new)
    codec_options = context.jobs.codec.callers
    payload = check_payload(data, context.config.max_payload_size, codec_options)
    if not is_checked and context.worker_here and (known := context.worker_here(new.name)) is not None:
        # Enqueued by name: otherwise, ten attempts would fail before anyone reads why.
        known.check_stored(unpacked(payload, codec_options))
    return Draft(ObjectId(), new, payload)


# --- Sending ---


def put(context: ClientContext, draft: Draft, session: ClientSession | None = None) -> Enqueued[Any]:
    """Insert one job, or do what its `on_conflict` says to the one that has its unique key."""
    if isinstance(draft.new, NewJob) and draft.new.on_conflict != "keep":
        replaced = replace_unique(context, draft)
        notice_unserved(context, [draft])
        return replaced
    job = insert(context, draft, session)
    if session is None:
        notice_unserved(context, [draft])
    if job.id == draft.id:
        return Enqueued(job, "created")
    logger.debug("enqueued nothing: job %s has the unique key %r", job, job.unique_key)
    return Enqueued(job, "kept")


def notice_unserved(context: ClientContext, drafts: Iterable[Draft]) -> None:
    """Warn about the names of these jobs that no live instance runs, once a name. Only the first one costs a look."""
    if new := {draft.new.name for draft in drafts} - context.unserved.settled:
        context.unserved.notice(new, partial(read_instances, context), context.jobs.collection.full_name)


def ensure_indexes_for(context: ClientContext, *new: NewJob | NewSchedule) -> None:
    """Create the indexes that these jobs need, if that was not done yet."""
    also = []
    for one in new:
        if isinstance(one, NewJob):
            if one.start_by is not None:
                also.append(indexes.START_BY)
            if one.on_conflict != "keep":
                also.append(indexes.RUN_AGAIN)
        else:
            also.append(indexes.SCHEDULES)
    if also or not context.are_indexes_there:
        context.ensure_indexes(*also)


def insert(context: ClientContext, draft: Draft, session: ClientSession | None = None) -> Job:
    """Insert one job, or return the one that has its unique key; in the caller's transaction, if any."""
    # Without the session: indexes cannot be made inside a transaction.
    if session is not None and session.in_transaction:
        # A new index cannot be created beside the transaction either: it would wait for the locks of the transaction.
        context.ensure_indexes()
    else:
        ensure_indexes_for(context, draft.new)
    new = inserting.parcel(draft.at(context.now()), draft.payload)
    if session is not None and session.in_transaction:
        return inserting.insert_within(context.jobs, new, session)
    if new.job.unique_key is not None:
        return insert_unique(context, new, session)
    for error in insert_parcels(context, [new], session).values():
        raise error
    return new.job


def insert_group(context: ClientContext, drafts: Sequence[Draft]) -> Sequence[Job | MonqueError]:
    """Insert jobs without unique keys in one statement; for each, return the job or why it was not stored."""
    ensure_indexes_for(context, *(draft.new for draft in drafts))
    now = context.now()
    parcels = inserting.parcels((draft.at(now), draft.payload) for draft in drafts)
    refused = insert_parcels(context, parcels)
    if not refused:
        notice_unserved(context, drafts)
    return [refused.get(place, parcel.job) for place, parcel in enumerate(parcels)]


def insert_parcels(
    context: ClientContext, parcels: Sequence[Parcel], session: ClientSession | None = None
) -> Mapping[int, MonqueError]:
    """Insert jobs without unique keys. Return an error for each that was not inserted, or may not be, by place."""
    jobs = context.jobs
    try:
        return inserting.insert_all(jobs, parcels, session)
    except MonqueConnectionError as error:
        if len(parcels) > 1 and not (error.transient or error.unknown_outcome):
            # The server refused the whole statement, perhaps because of one job: send each job alone.
            return {
                place: one for place, parcel in enumerate(parcels) for one in _insert_alone(context, parcel, session)
            }
        there = looked_up(error, lambda: inserting.stored(jobs, [parcel.job.id for parcel in parcels]))
    missing = [place for place, parcel in enumerate(parcels) if parcel.job.id not in there]
    if not missing:
        return {}
    try:
        # A job that the first statement inserts after all is refused here by its id, and counts as inserted.
        refused = inserting.insert_all(jobs, [parcels[place] for place in missing], session)
    except MonqueConnectionError as error:
        error.unknown_outcome = True  # The server may still apply the first statement.
        return dict.fromkeys(missing, error)
    return {missing[place]: error for place, error in refused.items()}


def _insert_alone(context: ClientContext, parcel: Parcel, session: ClientSession | None) -> list[MonqueError]:
    """Return the error if the job was not inserted, or may not be; otherwise nothing."""
    try:
        return list(insert_parcels(context, [parcel], session).values())
    except MonqueError as error:
        return [error]


def insert_unique(context: ClientContext, new: Parcel, session: ClientSession | None = None) -> Job:
    """Insert a job with a unique key, or return the one that has it."""
    jobs = context.jobs
    insert = partial(inserting.insert_unless_key_is_in_use, jobs, new, session)
    try:
        return context.with_indexes(insert)
    except MonqueConnectionError as error:
        there = looked_up(error, lambda: inserting.stored_job(jobs, new.job.id))
    if there is not None:
        return there
    try:
        # Returns our own job, if the first insert arrives only now.
        return context.with_indexes(insert)
    except MonqueConnectionError as error:
        error.unknown_outcome = True  # The server may still apply the first statement.
        raise


def replace_unique(context: ClientContext, draft: Draft) -> Enqueued[Any]:
    """Insert a job with a unique key, or give its data and its due date to the job that has the key."""
    assert isinstance(draft.new, NewJob)
    ensure_indexes_for(context, draft.new)
    jobs = context.jobs
    new = Replacement(draft.at(context.now()), draft.payload, draft.new.max_wait)
    send = partial(replacing.replace_or_insert, jobs, new)
    try:
        return context.with_indexes(send)
    except MonqueConnectionError as error:
        # If the first sending has inserted our job, it is not sent again: that would undo what others replaced since.
        there = looked_up(error, lambda: inserting.stored_job(jobs, draft.id))
    if there is not None:
        return Enqueued(there, "created")
    try:
        return context.with_indexes(send)
    except MonqueConnectionError as error:
        error.unknown_outcome = True  # The server may still apply the first statement.
        raise


def looked_up(error: MonqueConnectionError, look: Callable[[], T]) -> T:
    """Return what a look finds after a statement failed; raise the error if its outcome is known or the look fails."""
    if not error.unknown_outcome:
        raise error
    try:
        return look()
    except MonqueConnectionError:
        raise error from error.__cause__
