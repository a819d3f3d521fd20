"""Starts the children of a job nursery, or finds those that an earlier run has started. Blocking.

It works in rounds: it reads the children, decides by `Asking.fate_of` what to do with each, does it, and reads again
those that it has changed. It inserts a child that does not exist. If the id exists after all (a first sending arrived
late, or a stale run was faster), the next round finds it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ..error_types import BrokenDocumentError, MonqueConnectionError, MonqueError
from ..jobs.ended_job_errors import JobDeletedError
from ..jobs.job import Job, JobStatus
from ..jobs.job_parts import ChildOf
from ..jobs.new_job import Draft, NewJob
from ..jobs.nursery_scopes import Asking, ChildFate, as_child
from ..store.codec import document_of
from ..store.driver.types import ObjectId
from ..store.jobs import indexes, inserting, nursery_children
from ..store.jobs.inserting import Parcel
from .client_context import ClientContext
from .enqueue import ensure_indexes_for, notice_unserved
from .local_wakeups import WITH_NURSERIES
from .operation import Caused

MOST_ROUNDS: Final = 10
"""A round fails for a child that changes between the read and the write that follows. Ten in a row are not chance."""


class ScopeLostError(Exception):
    """Raised if the calling run is stale: a newer run has taken the children over, or their parent has ended."""


@dataclass(frozen=True, slots=True)
class NewChild:
    """A child that a block starts.

    Attributes:
        draft: The job, completely checked.
        part: Its fields as a child.
        key: The text that its id is made of: from the key that was given, or from its name and data.
    """

    draft: Draft
    part: ChildOf
    key: str

    def job(self, context: ClientContext) -> Job:
        return as_child(self.draft.at(context.now()), self.part, self.key)

    def never_started(self, context: ClientContext) -> Job:
        """Return the same job without `start_by`: that may have passed, and `job` would refuse it."""
        assert isinstance(self.draft.new, NewJob), "children are not recurring"
        draft = replace(self.draft, new=replace(self.draft.new, start_by=None))
        return as_child(draft.at(context.now()), self.part, self.key)


Settled = Mapping[ObjectId, Job | MonqueError]


def start_children(
    context: ClientContext, asking: Asking, new: Mapping[ObjectId, NewChild], caused: Caused, *, is_resumed: bool
) -> Settled:
    """Start or find children; return them as they are now: live, or as they ended.

    Args:
        asking: The run that starts them.
        new: The children by their ids.
        caused: Receives the jobs that are pending now.
        is_resumed: Whether an earlier run may have started them.

    Raises:
        ScopeLostError: This run is stale.
        MonqueError: A child cannot be stored, or an earlier run has started it under another name.
    """
    context.ensure_indexes(indexes.SCOPES)
    WITH_NURSERIES.add(context.jobs.collection.full_name)
    ensure_indexes_for(context, *(one.draft.new for one in new.values()))
    found = _rounds(context, asking, new, set(new) if is_resumed else set(), caused)
    for job_id, child in new.items():
        earlier, name = found[job_id], child.draft.new.name
        if isinstance(earlier, Job) and earlier.name != name:
            raise MonqueError(
                f"child {child.part.key or job_id} of block {child.part.block!r} was started as {earlier.name!r} by an "
                f"earlier run, and is {name!r} now: give the new one another key"
            )
    notice_unserved(context, [child.draft for child in new.values()])
    return found


def look_again(context: ClientContext, asking: Asking, ids: Collection[ObjectId], caused: Caused) -> Settled:
    """Run children again that a stale run has cancelled, unless they have changed; return all as they are now."""
    return _rounds(context, asking, {}, set(ids), caused)


def prevent_deleted(context: ClientContext, deleted: Iterable[Job]) -> None:
    """Insert cancelled children in place of deleted ones, so that no later run of this try starts them again."""
    parcels = [Parcel(job, document_of(job)) for job in deleted]
    nursery_children.prevent(context.jobs, parcels, context.now(), None)


def prevent_children(context: ClientContext, epoch: int, new: Collection[NewChild]) -> None:
    """Make sure that the server does not store children any more whose start was not answered."""
    parcels = inserting.parcels((child.never_started(context), child.draft.payload) for child in new)
    nursery_children.prevent(context.jobs, parcels, context.now(), epoch)


def _rounds(
    context: ClientContext,
    asking: Asking,
    new: Mapping[ObjectId, NewChild],
    to_look: set[ObjectId],
    caused: Caused,
) -> Settled:
    jobs = context.jobs
    settled: dict[ObjectId, Job | MonqueError] = {}
    to_insert = new.keys() - to_look
    started: list[Job] = []
    inserted = 0
    was_unanswered = False
    for _ in range(MOST_ROUNDS):
        if to_look:
            found = nursery_children.look(jobs, to_look)
            absent = to_look - found.keys()
            to_insert |= absent & new.keys()
            settled.update((one, JobDeletedError(one)) for one in absent - new.keys())
            to_look = _decided(context, asking, found, settled, started)
        if to_insert:
            # Made only now: for a child that an earlier run has started, the options of this run do not count.
            made = [child for one, child in new.items() if one in to_insert]
            sent = inserting.parcels((child.job(context), child.draft.payload) for child in made)
            try:
                there, refused = nursery_children.start(jobs, sent)
            except MonqueConnectionError as error:
                if was_unanswered or not error.unknown_outcome:
                    raise
                was_unanswered = True
                there, refused = set(to_insert), {}  # The next round finds those that were stored.
            for refusal in refused.values():
                raise refusal
            stored = [one.job for one in sent if one.job.id not in there]
            settled.update((job.id, job) for job in stored)
            started += stored
            inserted += len(stored)
            to_look |= there
            to_insert = set()
        if not (to_look or to_insert):
            # Children that were found may have been announced before, and may be due at another time now.
            caused.jobs, caused.are_new = started, len(settled) == inserted
            return settled
    raise MonqueError(f"children of the job nursery kept changing: {len(to_look)} of {len(new)}; start them again")


def _decided(
    context: ClientContext,
    asking: Asking,
    found: nursery_children.Found,
    settled: dict[ObjectId, Job | MonqueError],
    started: list[Job],
) -> set[ObjectId]:
    """Do what the fate of each child requires; return the ids to read again."""
    adopted: list[ObjectId] = []
    again: list[Job] = []
    for job_id, child in found.items():
        if isinstance(child, BrokenDocumentError):
            settled[job_id] = child
            continue
        match asking.fate_of(child):
            case ChildFate.TAKE:
                settled[job_id] = child
                if child.status is JobStatus.PENDING:
                    started.append(child)
            case ChildFate.ADOPT:
                adopted.append(job_id)
            case ChildFate.RUN_AGAIN:
                again.append(child)
            case ChildFate.LOST:
                raise ScopeLostError
    if adopted:
        nursery_children.adopt(context.jobs, asking, adopted)
    if again:
        nursery_children.run_again(context.jobs, again, context.now(), asking.epoch)
    return {*adopted, *(child.id for child in again)}
