"""What became of the transaction of a document whose commit was not acknowledged: as the lock shows it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import pymongo
import pytest
from pymongo import errors as driver

from tests.support.locked import NOW, SECOND, claim, handle, lock_of, stamp
from trio_monque.locks_and_dead_letters import Fence, LockStamp
from trio_monque.store.documents.locked_collection import LockedCollection
from trio_monque.store.documents.settling_statements import DocumentWrite
from trio_monque.store.documents.transactions import find_out, hold, write_end
from trio_monque.store.driver.transaction_terms import FoundCommit
from trio_monque.store.driver.types import ClientSession, Collection, Database

LATER = NOW + 90 * SECOND
UNTIL = LATER + 30 * SECOND


class Doubt:
    """A document whose transaction is in doubt. `meanwhile` is called while the renewal is on its way."""

    def __init__(self, documents: Collection, meanwhile: Callable[[], object] = lambda: None) -> None:
        documents.insert_one({"_id": 1})
        self.locked: LockedCollection = handle(documents)
        self.mark: LockStamp = stamp()
        assert claim(self.locked, 1, self.mark)
        self.is_sure = True
        self._meanwhile = meanwhile

    def find_out(self) -> FoundCommit:
        fence = self._fence(UNTIL)
        self._meanwhile()
        return find_out(self.locked, 1, UNTIL, fence, lambda: self.is_sure)

    def hold(self, session: ClientSession) -> None:
        hold(self.locked, 1, UNTIL, self._fence(UNTIL), session)

    def write(self, session: ClientSession) -> bool:
        return write_end(self.locked, DocumentWrite(1, self._fence(UNTIL), None), session)

    def _fence(self, *renewed_until: datetime) -> Fence:
        return Fence(self.mark.by, self.mark.token, (self.mark.until, *renewed_until))


@pytest.fixture
def documents(db: Database) -> Collection:
    return db["letters"]


def test_lock_that_is_held_was_not_ended_and_is_renewed(documents: Collection) -> None:
    assert Doubt(documents).find_out() is FoundCommit.NOT_COMMITTED
    assert lock_of(documents, 1)["until"] == UNTIL


def test_lock_that_is_gone_was_ended_while_no_other_program_can_have_taken_it(documents: Collection) -> None:
    doubt = Doubt(documents)
    documents.update_one({"_id": 1}, {"$unset": {"lock": ""}})
    assert doubt.find_out() is FoundCommit.COMMITTED
    doubt.is_sure = False
    assert doubt.find_out() is FoundCommit.UNKNOWN


def test_document_that_is_gone_shows_nothing(documents: Collection) -> None:
    """Another program may delete it without asking for the lock, and the transaction may have failed before that."""
    doubt = Doubt(documents, lambda: documents.delete_one({"_id": 1}))
    assert doubt.find_out() is FoundCommit.UNKNOWN


def test_lock_that_another_program_takes_while_the_renewal_is_on_its_way_shows_nothing(documents: Collection) -> None:
    def take() -> None:
        documents.update_one({"_id": 1}, {"$set": {"lock": {"by": "another", "until": LATER + 60 * SECOND}}})
        doubt.is_sure = False

    doubt = Doubt(documents, take)
    assert doubt.find_out() is FoundCommit.UNKNOWN
    assert lock_of(documents, 1)["by"] == "another"


def test_end_of_the_lock_is_a_part_of_the_transaction(documents: Collection) -> None:
    doubt = Doubt(documents)
    with documents.database.client.start_session() as session, session.start_transaction():
        assert doubt.write(session)
        assert lock_of(documents, 1)["by"]  # Others do not see it before the commit.
        session.abort_transaction()
    assert lock_of(documents, 1)["by"]


def test_hold_keeps_others_from_the_document_until_the_end_of_the_transaction(documents: Collection) -> None:
    doubt = Doubt(documents)
    with documents.database.client.start_session() as session, session.start_transaction():
        doubt.hold(session)
        with pytest.raises(driver.PyMongoError), pymongo.timeout(0.3):
            documents.update_one({"_id": 1}, {"$set": {"changed": True}})
        assert doubt.write(session)
        session.commit_transaction()
    assert documents.find_one() == {"_id": 1}
