"""Thousands of documents, and what befalls the processes that work through them."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest
from pymongo.uri_parser import parse_uri

from tests.support.fast_driver import FAST_URI
from tests.support.standstills import Witness
from tests.support.wire import Command
from trio_monque.store.driver.types import Database

from .document_scenario import DOCUMENTS, DocumentScenario
from .documents import COLLECTION, documents, left_alone
from .lock_history import LOCK
from .processes import OwnServer, WorkerProcess
from .proxy import FaultyProxy, Way, faulty_proxy
from .scenario import RESCUED_WITHIN, SEED

pytestmark = [pytest.mark.timeout(300), pytest.mark.full]

ENOUGH: Final = DOCUMENTS // 20


@pytest.fixture
def scenario(own_server: OwnServer, own_db: Database, tmp_path: Path, witness: Witness) -> DocumentScenario:
    return DocumentScenario(own_server.uri, own_db, tmp_path, SEED, witness)


def mixed(random: Random, number: int) -> list[dict[str, Any]]:
    """Documents to work through, and among them some to be left alone."""
    found = documents(random, number) + left_alone(random, number)
    random.shuffle(found)
    return found


def test_documents_of_a_killed_and_of_a_frozen_process_get_one_result_each_from_their_holder(
    scenario: DocumentScenario,
) -> None:
    scenario.fill(mixed(scenario.random, DOCUMENTS))
    scenario.make_index()
    with ExitStack() as stack:
        names = ("killed", "frozen", "third", "fourth")
        killed, frozen, third, fourth = (stack.enter_context(scenario.worker(name)) for name in names)
        for worker in (killed, frozen, third, fourth):
            worker.open()
        scenario.wait_completed(ENOUGH)
        scenario.kill(killed)
        with scenario.frozen(frozen):
            scenario.wait(lambda: scenario.held_by(killed) + scenario.held_by(frozen) == 0, "all is rescued")
        scenario.wait_left(frozen, third, fourth)
    evidence = scenario.judge(rescued_within=RESCUED_WITHIN)
    rescued = [hold for hold in evidence.holds if evidence.is_rescue(hold)]
    assert {hold.by for hold in rescued} >= {"killed", "frozen"}
    starts = [record for record in evidence.records if record.what == "start"]
    assert {record.process for record in starts} == set(names)
    (thawed_at,) = (record.at for record in evidence.records if record.what == "thawed")
    cancelled = [one for one in evidence.records if one.what == "cancelled" and one.process == "frozen"]
    # On a busy machine, others may have missed their leases before.
    assert [one for one in cancelled if one.at > thawed_at]
    assert [one for one in starts if one.process == "frozen" and one.at > thawed_at]
    assert {one.process for one in evidence.records if one.what == "left"} == {"frozen", "third", "fourth"}


class TwoInFive:
    """Chooses, of each kind of command, the first and second of each five. So what takes two commands succeeds, too.

    Attributes:
        seen: How many of each kind.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def __call__(self, command: Command) -> bool:
        kind = kind_of(command)
        if kind is None:
            return False
        self.seen[kind] += 1
        return self.seen[kind] % 5 in (1, 2)


def kind_of(command: Command) -> str | None:
    """What a write to the documents is for, as far as the wire shows it."""
    if command.get("update") != COLLECTION:
        return "other" if command.get("findAndModify") == COLLECTION else None
    updates = [one["u"] for one in (command.get("updates") or command["documents"])]
    if any("results" in one.get("$inc", {}) for one in updates if isinstance(one, dict)):
        return "finish"
    if any("$max" in one for one in updates if isinstance(one, dict)):
        return "renewal"
    return "take" if isinstance(updates[0], list) else "other"


def cut_off(scenario: DocumentScenario, proxy: FaultyProxy, worker: WorkerProcess) -> None:
    """Until something that it held is rescued. Again, where all that it held was on its way to its end already."""
    stored = scenario.db[COLLECTION]

    def is_rescued() -> bool:
        with proxy.half_open(*Way):
            held = [one["_id"] for one in stored.find({f"{LOCK}.by": worker.name})]
            scenario.wait(lambda: scenario.held_by(worker) == 0, "all is rescued")
            return stored.find_one({"_id": {"$in": held}, "written_by.by": {"$ne": worker.name}}) is not None

    scenario.wait(is_rescued, f"{worker.name} holds something")


def test_documents_get_one_result_each_although_replies_are_lost_and_a_process_is_cut_off(
    scenario: DocumentScenario, own_server: OwnServer
) -> None:
    scenario.fill(mixed(scenario.random, DOCUMENTS // 5))
    scenario.make_index()
    host, port = parse_uri(own_server.uri)["nodelist"][0]
    unaided = (FAST_URI, "retryWrites=false", "connectTimeoutMS=500")
    with ExitStack() as stack:
        lossy, deaf = (stack.enter_context(faulty_proxy((str(host), port))) for _ in range(2))
        one = stack.enter_context(scenario.worker("lossy", lossy.uri(*unaided), operation_timeout=1.0))
        two = stack.enter_context(scenario.worker("cut off", deaf.uri(*unaided), operation_timeout=1.0))
        three = stack.enter_context(scenario.worker("whole"))
        chooses = TwoInFive()
        for worker in (one, two, three):
            worker.open()
        lossy.lose_replies(chooses)
        # For longer than its lease: what it holds is rescued, and its own runs have ended by then.
        cut_off(scenario, deaf, two)
        scenario.wait_left(one, two, three)
    evidence = scenario.judge()
    assert lossy.lost > 10
    assert set(chooses.seen) >= {"finish", "take", "renewal"}
    assert [hold for hold in evidence.holds if hold.by == "cut off" and evidence.is_rescue(hold)]
    finished = {hold.by for hold in evidence.holds if hold.how == "finished"}
    assert finished == {"lossy", "cut off", "whole"}
