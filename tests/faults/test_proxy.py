"""The proxy does what it says: a lost reply was applied, a cut is a cut, and half-open is half-open."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import AutoReconnect
from pymongo.uri_parser import parse_uri

from tests.support.fast_driver import FAST_URI, fast_driver
from tests.support.wire import Command
from trio_monque.store.driver.types import Database

from .processes import OwnServer
from .proxy import FaultyProxy, Way, faulty_proxy
from .traffic import HalfOfThem, kind_of


@pytest.fixture
def proxy(own_server: OwnServer) -> Iterator[FaultyProxy]:
    with faulty_proxy(parse_uri(own_server.uri)["nodelist"][0]) as proxy:
        yield proxy


@pytest.fixture
def behind(proxy: FaultyProxy, own_db: Database) -> Iterator[Database]:
    """The same database, by way of the proxy, and without the driver's own repetition."""
    uri = proxy.uri(FAST_URI, "retryWrites=false", "retryReads=false", "socketTimeoutMS=1500", "connectTimeoutMS=1500")
    with fast_driver(), MongoClient[Any](uri, tz_aware=True) as client:
        yield client[own_db.name]


def only(name: str) -> Callable[[Command], bool]:
    return lambda command: next(iter(command)) == name


def test_reply_is_lost_after_the_server_has_applied_what_it_answers(
    proxy: FaultyProxy, behind: Database, own_db: Database
) -> None:
    proxy.lose_replies(only("insert"))
    assert behind["things"].count_documents({}) == 0  # Other replies come.
    with pytest.raises(AutoReconnect):
        behind["things"].insert_one({})
    assert proxy.lost == 1
    assert own_db["things"].count_documents({}) == 1
    proxy.lose_nothing()
    behind["things"].insert_one({})


def test_connections_are_cut_and_new_ones_work(proxy: FaultyProxy, behind: Database) -> None:
    behind["things"].insert_one({})
    accepted = proxy.accepted
    with socket.create_connection(parse_uri(proxy.uri())["nodelist"][0]) as connection:
        while proxy.accepted == accepted:
            time.sleep(0.001)
        accepted = proxy.accepted
        proxy.cut()
        assert connection.recv(1) == b""
    # The driver meets its cut connection in this call, or has noticed before.
    with suppress(AutoReconnect):
        behind["things"].insert_one({})
    behind["things"].insert_one({})
    assert proxy.accepted > accepted


@pytest.mark.full
@pytest.mark.parametrize(("way", "applied"), [(Way.REQUESTS, 0), (Way.REPLIES, 1)])
def test_half_open_connection_passes_on_one_way_only_and_never_recovers(
    proxy: FaultyProxy, behind: Database, own_db: Database, way: Way, applied: int
) -> None:
    behind["things"].find_one({})
    accepted = proxy.accepted
    with proxy.half_open(way):
        with pytest.raises(AutoReconnect):  # The call has waited for too long, or the driver's monitor has.
            behind["things"].insert_one({})
    assert own_db["things"].count_documents({}) == applied
    with suppress(AutoReconnect):  # On a busy machine the short time of `behind` may be too short.
        behind["things"].insert_one({})
    assert proxy.accepted > accepted, "the driver gave that connection up"


def test_messages_are_delayed_either_way(proxy: FaultyProxy, behind: Database) -> None:
    class Always(Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    behind["things"].find_one({})
    with proxy.delayed(Always(), most=0.1):
        began = time.monotonic()
        behind["things"].find_one({})
        assert time.monotonic() - began >= 0.2


def test_each_occurrence_is_chosen_in_exactly_one_of_two_turns() -> None:
    turns = [HalfOfThem(["enqueue"], first=first) for first in (True, False)]
    commands: list[Command] = [{"insert": "monque_jobs", "documents": [{"_id": number}]} for number in range(100)]
    chosen = [[turn(command) for command in commands] for turn in turns]
    assert all(one is not other for one, other in zip(*chosen, strict=True))
    assert chosen[0][0]
    assert not any(turn(command) for turn in turns for command in commands if turn(command)), "not twice of one call"


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("enqueue", {"insert": "monque_jobs"}),
        ("enqueue with a key", {"findAndModify": "monque_jobs", "upsert": True}),
        ("manage", {"findAndModify": "monque_jobs"}),
        ("claim", {"update": "monque_jobs", "updates": [{"u": {"$set": {"status": "processing"}}}]}),
        ("heartbeat", {"update": "monque_jobs", "updates": [{"u": {"$max": {}, "$set": {"updatedAt": 0}}}]}),
        ("resolve", {"update": "monque_jobs", "updates": [{"u": {"$max": {}}}]}),
        ("settlement", {"update": "monque_jobs", "updates": [{"u": {"$set": {"status": "completed"}}}]}),
        ("release", {"update": "monque_jobs", "updates": [{"u": {"$set": {"status": "pending"}}}]}),
        ("rescue", {"update": "monque_jobs", "documents": [{"u": {"$set": {"status": "pending", "rescues": 1}}}]}),
        ("report", {"update": "monque_jobs", "updates": [{"u": {"$set": {"saved": 0}}}]}),
        ("read", {"find": "monque_jobs"}),
        ("other", {"insert": "things"}),
    ],
)
def test_kind_of_a_command_is_read_from_the_wire(kind: str, command: Command) -> None:
    assert kind_of(command) == kind
