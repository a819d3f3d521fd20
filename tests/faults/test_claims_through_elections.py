"""Documents are worked through by two processes while a replica set loses its primary, in four ways, one after another.

With MONQUE_TEST_THOROUGH=1 in the environment: the elections take a minute and a half.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.support.standstills import Witness
from tests.support.waiting import wait_until
from trio_monque.store.driver.types import Database

from .document_scenario import DocumentScenario
from .documents import COLLECTION, documents
from .members import ReplicaSet
from .scenario import SEED
from .torments import IN_TURN, UNAIDED

pytestmark = pytest.mark.timeout(180)

# So that there is work until the last of the elections is over.
MANY: Final = 4000
STEP: Final = 0.2

MEANWHILE: Final = 60


@pytest.fixture
def scenario(three_members: ReplicaSet, three_db: Database, tmp_path: Path, witness: Witness) -> DocumentScenario:
    return DocumentScenario(three_members.uri, three_db, tmp_path, SEED, witness)


@pytest.mark.thorough
def test_documents_get_one_result_each_although_the_primary_changes(
    three_members: ReplicaSet, scenario: DocumentScenario
) -> None:
    chosen = documents(scenario.random, MANY)
    for message in chosen:
        message["plan"] |= {"steps": 2, "step": STEP}
    scenario.fill(chosen)
    scenario.make_index()

    def done() -> int:
        return scenario.db[COLLECTION].count_documents({"state": "done"})

    def goes_on() -> None:
        enough = done() + MEANWHILE
        wait_until(lambda: done() >= enough, "the work goes on", seconds=30)

    with (
        scenario.worker("one", operation_timeout=3.0) as one,
        scenario.worker("two", scenario.uri + UNAIDED, operation_timeout=3.0) as two,
    ):
        one.open()
        two.open()
        for torment in IN_TURN:
            goes_on()
            torment(three_members, scenario.db.name, goes_on)
        assert done() < len(chosen), "there was work until the last of it"
        scenario.wait_left(one, two, seconds=90.0)
    evidence = scenario.judge()
    finished = [hold.by for hold in evidence.holds if hold.how == "finished"]
    assert min(finished.count("one"), finished.count("two")) > len(chosen) / 10, "both worked"
