"""Enqueue many jobs: all are checked first, then sent in slices, one in flight at a time. Blocking."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from ..error_types import InvalidOptionError, MonqueConnectionError, MonqueError, PartialEnqueueError
from ..jobs.job import Job
from ..jobs.new_job import Draft, NewJob, check_keeps
from ..store.jobs import inserting
from ..store.jobs.inserting import Parcel
from ..threads_and_frozen_time import starting_thread
from .client_context import ClientContext
from .enqueue import draft_of, ensure_indexes_for, insert_parcels, insert_unique, looked_up, notice_unserved
from .operation import Operation

# A slice is at most one statement for jobs without unique keys and one for jobs with them. Larger slices gain little,
# and each must finish within one operation timeout. A message of the driver holds 48 MB.
MOST_JOBS: Final = 1000
MOST_BYTES: Final = 16 * 1024 * 1024

# A slice is packed while the one before is sent, with a pause of GIVE_WAY seconds before each PIECE jobs. With four
# times as many jobs in a piece, statements were sent later than without a packing thread (measured). A pause of 0
# seconds does not always let another thread run.
PIECE: Final = 25
GIVE_WAY: Final = 1e-5

_Key = tuple[str, str | None]


class EnqueueMany(Operation[list[Job]]):
    """A list of new jobs.

    Attributes:
        drafts: The jobs, completely checked.
    """

    def __init__(self, context: ClientContext, drafts: Sequence[Draft]) -> None:
        super().__init__()
        self.drafts = drafts
        self._context = context
        self.caused.are_new = True
        if not drafts:
            self.finish([])

    def step(self) -> None:
        jobs = _send(self._context, self.drafts)
        self.caused.jobs = jobs
        self.finish(jobs)


def enqueue_many(context: ClientContext, new_jobs: Sequence[NewJob]) -> Operation[list[Job]]:
    """Store many jobs with few statements.

    All are checked before anything is sent. Of several jobs with one unique key, in the list or in the collection,
    one is stored, and the result has it in the place of each. The call is not one transaction. Cancelled after the
    first statement was sent, it sends the rest and waits for the answers.

    Returns:
        The jobs, in the order of the list.

    Raises:
        PartialEnqueueError: The database did not store all; the error has the ids of those that it stored, and of
            those that it may have stored.
        InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError: A job is invalid; a
            note of the error says which. Nothing was sent.
    """
    return EnqueueMany(context, checked(context, new_jobs))


def checked(context: ClientContext, new_jobs: Any) -> Sequence[Draft]:
    """Return a draft of each job. The error of an invalid job has a note with its place. Nothing is sent."""
    if not isinstance(new_jobs, Iterable) or isinstance(new_jobs, str | Mapping):
        raise InvalidOptionError("new_jobs", new_jobs, "must be a list of NewJob")
    new_jobs = list(new_jobs)
    drafts: list[Draft] = []
    for place, new in enumerate(new_jobs):
        try:
            if not isinstance(new, NewJob):
                raise InvalidOptionError(
                    "new_jobs", new, "must hold instances of NewJob, for example NewJob(name='greet', data=1)"
                )
            check_keeps(new, "cannot be sent with many jobs: call enqueue for each job with this option")
            drafts.append(draft_of(context, new))
        except MonqueError as error:
            error.add_note(f"It is number {place} (from 0) of {len(new_jobs)} jobs, and nothing was sent.")
            raise
    return drafts


@dataclass
class _SentJobs:
    """The stored jobs, and the errors of the others, by their place in the list."""

    jobs: dict[int, Job] = field(default_factory=dict)
    errors: dict[int, MonqueError] = field(default_factory=dict)


def _send(context: ClientContext, drafts: Sequence[Draft]) -> list[Job]:
    """Send the jobs slice by slice; return them in the order of the list. Several with one unique key are one job.

    Raises:
        PartialEnqueueError: Some were not stored; it has the ids of the others. Later slices were not sent.
        ShortageError: The process cannot start the packing thread. Nothing was sent.
    """
    first_of = _first_of_each_key(drafts)
    slices = _slices(drafts, [place for place in range(len(drafts)) if first_of.get(place, place) == place])
    ensure_indexes_for(context, *(draft.new for draft in drafts))
    now = context.now()
    sent = _SentJobs()
    with ThreadPoolExecutor(1, "monque-enqueue-many") as packer:
        parcels = _packed(drafts, now, next(slices))
        while True:
            # Pack the next slice while the server works on this one.
            following = next(slices, None)
            packing = None if following is None else _packing(packer, drafts, now, following)
            _send_slice(context, parcels, sent)
            if packing is None or sent.errors:
                break
            parcels = packing.result()
    for place, first in first_of.items():
        if first in sent.jobs:
            sent.jobs[place] = sent.jobs[first]
    if sent.errors:
        raise _partly(drafts, sent)
    notice_unserved(context, drafts)
    return [sent.jobs[place] for place in range(len(drafts))]


def _first_of_each_key(drafts: Sequence[Draft]) -> Mapping[int, int]:
    """Map the place of each job with a unique key to the place of the first job in the list that has the key."""
    first: dict[_Key, int] = {}
    return {
        place: first.setdefault((draft.new.name, draft.new.unique_key), place)
        for place, draft in enumerate(drafts)
        if draft.new.unique_key is not None
    }


def _slices(drafts: Sequence[Draft], places: Sequence[int]) -> Iterator[Sequence[int]]:
    piece: list[int] = []
    size = 0
    for place in places:
        more = len(drafts[place].payload)
        if piece and (len(piece) == MOST_JOBS or size + more > MOST_BYTES):
            yield piece
            piece, size = [], 0
        piece.append(place)
        size += more
    if piece:
        yield piece


def _packed(
    drafts: Sequence[Draft], now: datetime, places: Sequence[int], *, beside: bool = False
) -> dict[int, Parcel]:
    """Encode the jobs of a slice; return their parcels by place. `beside`: another thread sends, and has priority."""
    in_turn = _giving_way(places) if beside else places
    parcels = inserting.parcels((drafts[place].at(now), drafts[place].payload) for place in in_turn)
    return dict(zip(places, parcels, strict=True))


def _packing(
    packer: ThreadPoolExecutor, drafts: Sequence[Draft], now: datetime, places: Sequence[int]
) -> Future[dict[int, Parcel]]:
    # The thread starts with the second slice, before the first one is sent, and stays.
    with starting_thread(partial(_packed, drafts, now, places, beside=True)) as started:
        return packer.submit(started)


def _giving_way(places: Sequence[int]) -> Iterator[int]:
    # The thread that sends releases the GIL several times before its statement is on the way, and gets it back when
    # this thread pauses. Without pauses, the statement would wait until the whole slice is packed, and the server be
    # idle.
    for number, place in enumerate(places):
        if number % PIECE == 0:
            time.sleep(GIVE_WAY)
        yield place


def _send_slice(context: ClientContext, parcels: Mapping[int, Parcel], sent: _SentJobs) -> None:
    plain = [place for place, parcel in parcels.items() if parcel.job.unique_key is None]
    unique = [place for place, parcel in parcels.items() if parcel.job.unique_key is not None]
    if plain:
        try:
            refused = insert_parcels(context, [parcels[place] for place in plain])
        except MonqueError as error:
            refused = dict.fromkeys(range(len(plain)), error)
        for number, place in enumerate(plain):
            if number in refused:
                sent.errors[place] = refused[number]
            else:
                sent.jobs[place] = parcels[place].job
    if unique and not sent.errors:
        _send_unique(context, {place: parcels[place] for place in unique}, sent)


def _send_unique(context: ClientContext, parcels: Mapping[int, Parcel], sent: _SentJobs) -> None:
    jobs = context.jobs
    places = list(parcels)
    winners: Mapping[_Key, Job] = {}
    # Whether the server may still apply the first statement, whatever becomes of a second one.
    may_be_applied = False
    try:
        try:
            insert = partial(inserting.insert_where_keys_are_free, jobs, list(parcels.values()))
            numbers = context.with_indexes(insert)
            sent.jobs.update({places[number]: parcels[places[number]].job for number in numbers})
        except MonqueConnectionError as error:
            may_be_applied = error.unknown_outcome
            there = looked_up(error, lambda: inserting.stored(jobs, [parcel.job.id for parcel in parcels.values()]))
            sent.jobs.update({place: parcel.job for place, parcel in parcels.items() if parcel.job.id in there})
        else:
            winners = inserting.holders(jobs, [parcels[place].job for place in places if place not in sent.jobs])
    except MonqueConnectionError as error:
        sent.errors.update({place: error for place in places if place not in sent.jobs})
        return
    for place, parcel in parcels.items():
        winner = winners.get((parcel.job.name, parcel.job.unique_key))
        if place in sent.jobs:
            continue
        if winner is not None:
            sent.jobs[place] = winner
            continue
        # The job that had the key ended meanwhile, or is not known because the answer was lost: send this one alone.
        try:
            sent.jobs[place] = insert_unique(context, parcel)
        except MonqueError as error:
            sent.errors[place] = error
            if isinstance(error, MonqueConnectionError) and (may_be_applied or error.transient):
                if may_be_applied:
                    error.unknown_outcome = True
                    sent.errors.update({other: error for other in places if other not in sent.jobs})
                return
            # Any other error is about this job alone: the server refuses it, or a broken document has its key.


def _partly(drafts: Sequence[Draft], sent: _SentJobs) -> PartialEnqueueError:
    unknown = {
        place: str(drafts[place].id)
        for place, error in sorted(sent.errors.items())
        if isinstance(error, MonqueConnectionError) and error.unknown_outcome
    }
    enqueued = {place: str(job.id) for place, job in sorted(sent.jobs.items())}
    first = sent.errors[min(sent.errors)]
    error = PartialEnqueueError(len(drafts), enqueued, unknown, first)
    error.__cause__ = first
    return error
