"""Reads that decide what became of a write: each one asks for what a majority has, after the write of its session.

A local read on a primary that is cut off finds writes that are rolled back later. One member cannot show that, so
these tests read what is sent to the server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import pytest
from bson.codec_options import DatetimeConversion
from pymongo import MongoClient

from tests.support import locked as letters
from tests.support.interception import Recorder
from tests.support.reads_of_the_store import reads_by_function
from tests.support.store import PAST, claim, handle, insert, stamp
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs import transitions
from trio_monque.jobs.bulk_changes import cancel_selected
from trio_monque.jobs.job_selector import JobSelector
from trio_monque.locks_and_dead_letters import Lock, freed
from trio_monque.store import documents
from trio_monque.store.codec import document_of
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.documents.rescuing import Takeaway
from trio_monque.store.documents.settling_statements import DocumentWrite
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import bulk_writes, claiming, inserting, job_changes, leases, settling

LATER: Final = PAST + timedelta(minutes=1)

Act = Callable[[], object]

# --- Every read of the store, found in its source ---

MAJORITY: Final = "majority"
AFTER_A_WRITE: Final = "majority, in a session"

# What is reported, counted as an end, or never looked at again must be what a majority has. If it is about a write of
# the same call, it must also come after that write.
DECIDES: Final[Mapping[str, Sequence[str]]] = {
    "jobs.bulk_writes._gone": [AFTER_A_WRITE],
    "jobs.bulk_writes._receipts": [AFTER_A_WRITE],
    "jobs.change_stream.open_watch": [MAJORITY],
    "jobs.claiming.read_back": [AFTER_A_WRITE],
    "jobs.claiming.resolve": [AFTER_A_WRITE],
    "documents.claiming.read_back": [AFTER_A_WRITE, AFTER_A_WRITE],
    "documents.locked_collection.locks_by_majority": [AFTER_A_WRITE],
    "broken.doubled_fields._report_doubled": [MAJORITY],
    "jobs.ended_jobs.are_live": [MAJORITY],  # Of a test, which asks again.
    "jobs.ended_jobs._time_of_primary": ["linearizable, in a session"],  # It proves what a write proves.
    "jobs.ended_jobs.gone_among": [AFTER_A_WRITE],  # After that proof.
    "jobs.ended_jobs.look_at": [AFTER_A_WRITE],  # After the opening of the stream.
    "jobs.ended_jobs.open_end_stream": [MAJORITY, AFTER_A_WRITE],
    "jobs.follow_up_writes.choose": [AFTER_A_WRITE],
    "jobs.follow_up_writes.chosen": [
        AFTER_A_WRITE,
        AFTER_A_WRITE,
    ],  # The second must not be older.
    "jobs.follow_up_writes.not_chosen": [AFTER_A_WRITE, AFTER_A_WRITE],
    "jobs.follow_up_writes.owing": [MAJORITY],
    "jobs.follow_up_writes.owing_among": [MAJORITY],
    "jobs.inserting._of_keys": [MAJORITY],
    "jobs.inserting.sent_before": [MAJORITY],
    "jobs.inserting.stored": [MAJORITY],
    "jobs.inserting.stored_job": [MAJORITY],
    "jobs.job_changes.apply_again": [AFTER_A_WRITE],
    "jobs.transactions.find_out": [AFTER_A_WRITE],
    "jobs.transactions.read_fate": [MAJORITY],
    "jobs.leases._held_under": [AFTER_A_WRITE],
    "jobs.refused_claims._fail": [AFTER_A_WRITE],
    "jobs.replacing._holder": [MAJORITY],
    "jobs.settling._read_fates": [AFTER_A_WRITE],
    "jobs.stale_regions.open_regions": [MAJORITY],  # A viewer reads what a majority has, after the event.
    "jobs.parents_of_children._batch": [AFTER_A_WRITE],
    "jobs.parents_of_children._parents": [AFTER_A_WRITE],
    "jobs.nursery_children.look": [AFTER_A_WRITE],
    "jobs.parents_of_children.needed": [AFTER_A_WRITE],
    "jobs.nursery_children.read": [AFTER_A_WRITE],
    "jobs.unstarted_writes.end": [AFTER_A_WRITE],
}

# A guarded write follows, or a write by the ids that were found. If the read was wrong, it matches nothing.
A_WRITE_ASKS_AGAIN: Final = {
    "jobs.bulk_writes.last_id", "jobs.bulk_writes.read", "jobs.bulk_writes.window_end",
    "jobs.claiming._release_each", "documents.claiming.update_each_if_refused", "documents.due._look",
    "documents.due._look_for_unreadable", "documents.rescuing.observe_in", "broken.doubled_fields.current_schedule",
    "jobs.due._batches", "jobs.due_behind_skipped._keys", "jobs.due_behind_skipped._read", "jobs.instances.claims_of",
    "jobs.instances.locked_until", "jobs.instances.read", "jobs.instances.read_all", "broken.repairing.try_out",
    "jobs.rescuing._as_compared", "jobs.rescuing.look", "jobs.rescuing.read", "jobs.rescuing.read_whole",
    "jobs.retention.beyond_the_last", "jobs.retention.choose", "jobs.retention.names", "jobs.starting_again._look",
    "jobs.unstarted_writes.look", "jobs.nursery_children._update",
}  # fmt: skip

# When to look again, or what to leave out for a minute: another look corrects it.
ANOTHER_LOOK_FOLLOWS: Final = {
    "broken.broken_documents._look_at_broken", "broken.broken_documents._look_at_left_over",
    "broken.broken_documents._problem_of_all", "documents.due._is_any_named", "documents.due.next_due",
    "documents.due.still_matching", "jobs.next_due.next_due", "jobs.instances.paused",
}  # fmt: skip

# For people. A page or a number may show what an election undoes a moment later.
IS_SHOWN: Final = {
    "broken.broken_documents.next_batch", "reads.diagnosis.held_jobs.jobs_held_by",
    "reads.diagnosis.held_jobs.numbers_held", "reads.diagnosis.owed_follow_ups.owed",
    "reads.diagnosis.changed_schedules.look_at_schedules", "reads.diagnosis.other_databases._waiting_in_vain",
    "reads.diagnosis.documents.look", "reads.special_jobs.searches_all_keys",
    "jobs.instances.has_heartbeat_since",
    "reads.diagnosis.jobs._first", "reads.diagnosis.streams._cursors",
    "documents.counting._holders", "documents.counting._unreadable",
    "documents.counting.count_dead_letters", "documents.counting.number", "documents.listing_and_readmitting.listed",
    "documents.indexes.is_large", "driver.member_admin.stored_configuration", "reads.page_reader._batches",
    "documents.listing_and_readmitting.page",
    "reads.queries.count_due_before", "reads.queries.get_job", "reads.queries.get_job_by_key",
    "reads.queries.names_at_rest", "reads.queries.raw_documents", "reads.queries.scope_of_children",
    "reads.queue_depths.queue_depths", "reads.selection_counts._number", "reads.job_counts.queue_stats",
    "reads.counts_by_name._rows", "reads.counts_by_name.counts_by_name",
    "reads.special_jobs.among_unique_keys", "reads.special_jobs.by_next_run",
    "reads.special_jobs.in_order", "reads.special_jobs.longest_first", "jobs.instances.pauses",
    "jobs.instances.read_fleet",
    "jobs.minutes_written.read_minutes",
}  # fmt: skip


@pytest.mark.full
def test_each_read_of_the_store_was_decided_upon() -> None:
    """A new read is entered above: does anything count for good because of it, or does a later command ask again?"""
    found = reads_by_function()
    may_be_local = A_WRITE_ASKS_AGAIN | ANOTHER_LOOK_FOLLOWS | IS_SHOWN
    assert found.keys() == DECIDES.keys() | may_be_local
    assert {name: asked for name, asked in found.items() if name not in may_be_local} == {
        name: sorted(asked) for name, asked in DECIDES.items()
    }


# --- Jobs: each prepares what is needed, and returns the call that has to read ---


def stored(store: JobCollection) -> Act:
    job = insert(store)
    return lambda: inserting.stored(store, [job.id])


def stored_job(store: JobCollection) -> Act:
    job = insert(store)
    return lambda: inserting.stored_job(store, job.id)


def holders(store: JobCollection) -> Act:
    job = insert(store, unique_key="k")
    return lambda: inserting.holders(store, [job])


def echo_of_an_insert(store: JobCollection) -> Act:
    """The job of the first sending has ended: its key is free again, and its id is not."""
    job = replace(insert(store), unique_key="k")
    return lambda: inserting.insert_unless_key_is_in_use(store, inserting.Parcel(job, document_of(job)))


def claim_of_less_than_was_seen(store: JobCollection) -> Act:
    jobs = [insert(store), insert(store)]
    store.collection.update_one({"_id": jobs[0].id}, {"$set": {"status": "cancelled"}})
    return lambda: claiming.take(store, jobs, PAST, stamp())


def claim_without_an_answer(store: JobCollection) -> Act:
    mark = stamp()
    claim(store, 1, mark)
    return lambda: claiming.resolve(store, mark, LATER)


def renewal_of_a_lost_claim(store: JobCollection) -> Act:
    held = claim(store, 2)
    store.collection.update_one({"_id": held[0].id}, {"$set": {"status": "pending"}})
    return lambda: leases.renew(store, held, LATER)


def renewal_of_an_unwanted_run(store: JobCollection) -> Act:
    held = claim(store, 1)
    store.collection.update_one({"_id": held[0].id}, {"$set": {"cancelRequestedAt": PAST}})
    return lambda: leases.renew(store, held, LATER)


def settlement_of_a_lost_claim(store: JobCollection) -> Act:
    (job,) = claim(store, 1)
    store.collection.update_one({"_id": job.id}, {"$set": {"status": "pending"}})
    return lambda: settling.settle(store, settling.grouped([transitions.complete(job, LATER)], "r"))


def change_without_an_answer(store: JobCollection) -> Act:
    job = insert(store)
    change = transitions.cancel_pending(job.id, LATER)
    job_changes.apply_if_allowed(store, change)
    return lambda: job_changes.apply_again(store, change)


def bulk_change_without_an_answer(store: JobCollection) -> Act:
    change = cancel_selected(JobSelector(), (insert(store), insert(store)), LATER)
    return lambda: bulk_writes.find_out(store, [change], "r")


def bulk_change_that_is_refused(store: JobCollection) -> Act:
    jobs = insert(store), insert(store)
    store.collection.database.command("collMod", store.collection.name, validator={"status": "pending"})
    change = cancel_selected(JobSelector(), jobs, LATER)
    return lambda: bulk_writes.cancel(store, [change], "r")


def bulk_change_that_did_not_match_all(store: JobCollection) -> Act:
    change = cancel_selected(JobSelector(), (insert(store),), LATER)
    return lambda: bulk_writes.signed(store, [change], "r")


def bulk_deletion_without_an_answer(store: JobCollection) -> Act:
    jobs = [insert(store)]
    return lambda: bulk_writes.find_out_deleted(store, jobs, {})


def bulk_deletion_that_did_not_match_all(store: JobCollection) -> Act:
    jobs = [insert(store)]
    return lambda: bulk_writes.gone(store, jobs)


# --- Documents ---


def letters_of(store: JobCollection) -> LockedCollection:
    return letters.handle(store.collection.database["letters"])


def claim_of_documents(store: JobCollection) -> Act:
    locked = letters_of(store)
    locked.collection.insert_many([{"_id": 0}, {"_id": 1}])
    return lambda: documents.claiming.take(locked, [0, 1], letters.NOW, letters.stamp())


def claim_of_documents_that_are_decoded_by_the_caller(store: JobCollection) -> Act:
    plain = letters_of(store).collection
    options = plain.codec_options.with_options(datetime_conversion=DatetimeConversion.DATETIME_MS)
    locked = letters.handle(plain.with_options(codec_options=options))
    plain.insert_one({"_id": 0})
    return lambda: documents.claiming.take(locked, [0], letters.NOW, letters.stamp())


def claim_of_documents_without_an_answer(store: JobCollection) -> Act:
    locked, mark = letters_of(store), letters.stamp()
    locked.collection.insert_one({"_id": 0})
    letters.claim(locked, 1, mark)
    return lambda: documents.claiming.resolve(locked, mark, LATER)


def renewal_of_a_document_that_is_lost(store: JobCollection) -> Act:
    locked = letters_of(store)
    locked.collection.insert_one({"_id": 0})
    return lambda: documents.leases.renew(locked, [(letters.fence(letters.stamp()), [0])], LATER)


def rescue_of_a_document_that_changed(store: JobCollection) -> Act:
    locked = letters_of(store)
    locked.collection.insert_one({"_id": 0})
    seen = Lock("dead", letters.NOW, 20.0, "dead:x")
    return lambda: documents.rescuing.rescue(locked, [Takeaway(0, seen, freed(1, letters.NOW))])


def end_of_a_document_that_is_lost(store: JobCollection) -> Act:
    locked = letters_of(store)
    locked.collection.insert_one({"_id": 0})
    return lambda: documents.settling.settle(locked, [DocumentWrite(0, letters.fence(letters.stamp()))])


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def store(mongod: EmbeddedServer, db: Database, recorder: Recorder) -> Any:
    db.create_collection("monque_jobs")
    with MongoClient[Any](mongod.uri, event_listeners=[recorder]) as client:
        yield handle(client[db.name])


def observed(recorder: Recorder, act: Act) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """The writes and the reads that the call sends."""
    recorder.commands.clear()
    with suppress(MonqueConnectionError):
        act()
    sent = recorder.commands
    reads = [command for name, command in sent if name in ("find", "aggregate")]
    return [command for name, command in sent if name not in ("find", "aggregate", "endSessions")], reads


@pytest.mark.parametrize(
    "prepare",
    [
        stored,
        stored_job,
        holders,
        echo_of_an_insert,
        bulk_change_that_did_not_match_all,
        bulk_deletion_that_did_not_match_all,
    ],
)
def test_read_by_itself_decides_by_what_a_majority_has(
    store: JobCollection, recorder: Recorder, prepare: Callable[[JobCollection], Act]
) -> None:
    _, reads = observed(recorder, prepare(store))
    assert [read["readConcern"]["level"] for read in reads] == ["majority"]


@pytest.mark.full
@pytest.mark.parametrize(
    "prepare",
    [
        claim_of_less_than_was_seen, claim_without_an_answer, renewal_of_a_lost_claim, renewal_of_an_unwanted_run,
        settlement_of_a_lost_claim, change_without_an_answer, bulk_change_without_an_answer,
        bulk_change_that_is_refused, bulk_deletion_without_an_answer, claim_of_documents,
        claim_of_documents_that_are_decoded_by_the_caller, claim_of_documents_without_an_answer,
        renewal_of_a_document_that_is_lost, rescue_of_a_document_that_changed, end_of_a_document_that_is_lost,
    ],
)  # fmt: skip
def test_read_behind_a_write_sees_what_that_write_left_on_a_majority(
    store: JobCollection, recorder: Recorder, prepare: Callable[[JobCollection], Act]
) -> None:
    """The write proves that this primary is one, and the session makes the read wait for what the write saw."""
    writes, reads = observed(recorder, prepare(store))
    assert writes, "a read alone proves nothing"
    assert reads
    for write in writes:
        assert write["writeConcern"] == {"w": "majority"}
    for read in reads:
        assert read["readConcern"]["level"] == "majority"
        assert "afterClusterTime" in read["readConcern"]
        assert read["lsid"] == writes[0]["lsid"]
