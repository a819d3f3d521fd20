"""Answers to a batch that report for one statement that it may yet succeed: the whole batch is sent again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, Final

import pytest
from pymongo import MongoClient

from tests.support import locked as letters
from tests.support.lossy_proxy import LossyProxy, lossy_proxy
from tests.support.store import PAST, claim, handle, insert
from trio_monque.errors import MonqueConnectionError
from trio_monque.jobs import transitions
from trio_monque.jobs.bulk_changes import cancel_selected
from trio_monque.jobs.job_selector import JobSelector
from trio_monque.locks_and_dead_letters import freed
from trio_monque.store import documents
from trio_monque.store.documents.settling_statements import DocumentWrite
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import bulk_writes, settling

LATER: Final = PAST + timedelta(minutes=1)

ANSWERS: Final[dict[str, Any]] = {
    # A router reports each of these beside `ok: 1`, and so does a member that steps down meanwhile.
    "no majority has it": {"n": 2, "nModified": 2, "writeConcernError": {"code": 91, "errmsg": "shutting down"}},
    "one was interrupted": {
        "n": 1,
        "nModified": 1,
        "writeErrors": [{"index": 0, "code": 11602, "errmsg": "interrupted by an election"}],
    },
}


def settlement(db: Database) -> Callable[[], object]:
    store = handle(db)
    statements = settling.grouped([transitions.complete(job, LATER) for job in claim(store, 2)], "r")
    return lambda: set(settling.settle(store, statements).values()) == {settling.Fate.WRITTEN}


def bulk_change(db: Database) -> Callable[[], object]:
    store = handle(db)
    change = cancel_selected(JobSelector(), (insert(store), insert(store)), LATER)
    return lambda: bulk_writes.cancel(store, [change], "r").count == 2


def ends_of_documents(db: Database) -> Callable[[], object]:
    locked, mark = letters.handle(db["letters"]), letters.stamp()
    locked.collection.insert_many([{"_id": 0}, {"_id": 1}])
    letters.claim(locked, 2, mark)
    endings = [DocumentWrite(number, letters.fence(mark), None, freed(1, LATER)) for number in (0, 1)]
    return lambda: documents.settling.settle(locked, endings) == [documents.settling.WRITTEN] * 2


@pytest.fixture
def proxy(client: MongoClient[Any]) -> Iterator[LossyProxy]:
    with lossy_proxy(client.address or pytest.fail("no primary")) as proxy:
        yield proxy


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("prepare", [settlement, bulk_change, ends_of_documents])
def test_batch_whose_answer_does_not_decide_has_an_unknown_outcome_and_passes(
    proxy: LossyProxy, db: Database, prepare: Callable[[Database], Callable[[], object]], answer: str
) -> None:
    with MongoClient[Any](proxy.uri) as client:
        act = prepare(client[db.name])
        proxy.answer("update", {"ok": 1, **ANSWERS[answer]})
        with pytest.raises(MonqueConnectionError) as caught:
            act()
        assert (caught.value.transient, caught.value.unknown_outcome) == (True, True)
        assert act()
