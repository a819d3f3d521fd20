"""A rescue beside a document that an open transaction has locked: its holder was killed before the commit."""

from __future__ import annotations

import pytest

from tests.support.internals import context_of
from tests.support.open_transactions import begin_with, is_open
from tests.support.store import claim, handle
from trio_monque import Monque
from trio_monque.client.rescuer import Rescuer
from trio_monque.store.driver.types import Collection, Database


@pytest.mark.full
def test_one_locked_document_does_not_keep_the_others_from_their_rescue(db: Database, jobs: Collection) -> None:
    rescuer = Rescuer(context_of(Monque(db, operation_timeout=1.5)))
    with db.client.start_session() as session:
        while True:
            jobs.delete_many({})
            dead = claim(handle(db), 20)
            begin_with(session, jobs, dead[7].id, {"status": "completed"})
            rescued = rescuer.take(dead)
            if is_open(session, jobs):
                break
            session.abort_transaction()
        assert {one.before.id for one in rescued} == {job.id for job in dead} - {dead[7].id}
        session.abort_transaction()
        assert [one.before.id for one in rescuer.take(dead)] == [dead[7].id]
    assert {one["rescues"] for one in jobs.find()} == {1}
