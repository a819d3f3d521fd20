"""How new jobs come in: drafted before anything is sent, sent once, and looked up where the answer was lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from ..errors import MonqueConnectionError, MonqueError
from ..jobs.job import Job
from ..jobs.new_job import Draft, Named, NewJob, NewSchedule, check_new
from ..jobs.payload import check_payload, plain_data
from ..store import inserting
from ..store.inserting import Parcel
from ..store.types import ClientSession, ObjectId
from .context import ClientContext

T = TypeVar("T")


class Intake:
    """Drafts are made at once, in the caller's task; sending them blocks, in whatever thread it is called."""

    def __init__(self, context: ClientContext) -> None:
        self._context = context

    # --- Without I/O ---

    def draft(self, new: NewJob | NewSchedule, worker: str | Named | None = None) -> Draft:
        """Checks all that can be wrong with a new job, and encodes its data. Asks the database for nothing.

        Raises:
            InvalidJobIdentifierError, InvalidPayloadError, PayloadTooLargeError, InvalidOptionError,
            InvalidCronError: It cannot be.
        """
        data = plain_data(worker, new.data)
        if data is not new.data:
            new = replace(new, data=data)
        check_new(new)
        context = self._context
        payload = check_payload(data, context.config.max_payload_size, context.jobs.codec.callers)
        return Draft(ObjectId(), new, payload)

    def check_session(self, session: ClientSession | None) -> None:
        """Raises InvalidOptionError for a session that cannot be used with this client."""
        if session is not None:
            inserting.check_session(self._context.jobs, session)

    # --- Blocking ---

    def send(self, draft: Draft, session: ClientSession | None = None) -> Job:
        """Enqueues one job, or returns the one that has its unique key; in the caller's transaction, if any."""
        context = self._context
        # Outside of the session: an index cannot be made in a transaction.
        context.ensure_indexes()
        new = inserting.parcel(draft.at(context.now()), draft.payload)
        if session is not None and session.in_transaction:
            return inserting.insert_within(context.jobs, new, session)
        if new.job.unique_key is not None:
            return self.send_unique(new, session)
        for error in self.send_parcels([new], session).values():
            raise error
        return new.job

    def send_all(self, drafts: Sequence[Draft]) -> Sequence[Job | MonqueError]:
        """Enqueues jobs without unique keys in one statement; each job, or why there is none."""
        self._context.ensure_indexes()
        now = self._context.now()
        parcels = inserting.parcels((draft.at(now), draft.payload) for draft in drafts)
        refused = self.send_parcels(parcels)
        return [refused.get(place, parcel.job) for place, parcel in enumerate(parcels)]

    def send_parcels(
        self, parcels: Sequence[Parcel], session: ClientSession | None = None
    ) -> Mapping[int, MonqueError]:
        """Inserts jobs without unique keys; which were not inserted, or may not have been, by place."""
        jobs = self._context.jobs
        try:
            return inserting.insert_all(jobs, parcels, session)
        except MonqueConnectionError as error:
            if len(parcels) > 1 and not (error.transient or error.unknown_outcome):
                # The server would not have the statement, for the sake of one of them perhaps: each goes alone.
                return {place: one for place, parcel in enumerate(parcels) for one in self._alone(parcel, session)}
            there = looked_up(error, lambda: inserting.stored(jobs, [parcel.job.id for parcel in parcels]))
        missing = [place for place, parcel in enumerate(parcels) if parcel.job.id not in there]
        if not missing:
            return {}
        try:
            refused = inserting.insert_all(jobs, [parcels[place] for place in missing], session)
        except MonqueConnectionError as error:
            error.unknown_outcome = True  # The first sending may be applied yet.
            return dict.fromkeys(missing, error)
        return {missing[place]: error for place, error in refused.items()}

    def _alone(self, parcel: Parcel, session: ClientSession | None) -> list[MonqueError]:
        try:
            return list(self.send_parcels([parcel], session).values())
        except MonqueError as error:
            return [error]

    def send_unique(self, new: Parcel, session: ClientSession | None = None) -> Job:
        """Inserts a job with a unique key, or returns the one that has it."""
        jobs = self._context.jobs
        insert = partial(inserting.insert_unless_key_is_in_use, jobs, new, session)
        try:
            return self._context.with_indexes(insert)
        except MonqueConnectionError as error:
            there = looked_up(error, lambda: inserting.stored_job(jobs, new.job.id))
        if there is not None:
            return there
        try:
            return self._context.with_indexes(insert)
        except MonqueConnectionError as error:
            error.unknown_outcome = True
            raise


def looked_up(error: MonqueConnectionError, look: Callable[[], T]) -> T:
    """After a sending that failed so: what the look finds. The error again, where it is clear or the look fails."""
    if not error.unknown_outcome:
        raise error
    try:
        return look()
    except MonqueConnectionError:
        raise error from error.__cause__
