"""A rescue beside a document that an open transaction has locked: its holder was killed before the commit."""

from __future__ import annotations

import pytest

from tests.support.internals import context_of
from tests.support.open_transactions import begin_with
from tests.support.store import claim, handle
from trio_monque import Monque
from trio_monque.client.rescuer import Rescuer
from trio_monque.store.driver.types import Collection, Database


@pytest.mark.full
def test_one_locked_document_does_not_keep_the_others_from_their_rescue(db: Database, jobs: Collection) -> None:
    dead = claim(handle(db), 20)
    rescuer = Rescuer(context_of(Monque(db, operation_timeout=1.5)))
    with db.client.start_session() as session:
        begin_with(session, jobs, dead[7].id, {"status": "completed"})
        rescued = rescuer.take(dead)
        assert {one.before.id for one in rescued} == {job.id for job in dead} - {dead[7].id}
        session.abort_transaction()
        assert [one.before.id for one in rescuer.take(dead)] == [dead[7].id]
    assert {one["rescues"] for one in jobs.find()} == {1}
