"""How a replica set loses its primary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pymongo.write_concern import WriteConcern

from tests.support.waiting import wait_until

from .members import ReplicaSet

# Of a client whose driver repeats nothing.
UNAIDED: Final = "&retryWrites=false&retryReads=false"

Torment = Callable[[ReplicaSet, str, Callable[[], None]], None]
"""Begins and ends with a set that is whole. Given the database's name, and what returns when the load has gone on."""


def step_down(members: ReplicaSet, _: str, __: Callable[[], None]) -> None:
    with members.stepped_down() as old:
        members.wait_primary_other_than(old)


def kill(members: ReplicaSet, _: str, goes_on: Callable[[], None]) -> None:
    with members.killed() as old:
        members.wait_primary_other_than(old)
        goes_on()  # Two members work on, and then the third comes back.


def freeze(members: ReplicaSet, _: str, goes_on: Callable[[], None]) -> None:
    with members.stopped() as old:
        members.wait_primary_other_than(old)
        # What was sent to the old primary lies there until it thaws; its clients go on with the other one.
        goes_on()


def stop_the_others(members: ReplicaSet, _: str, __: Callable[[], None]) -> None:
    with members.without_majority() as old:
        wait_until(lambda: not members.is_primary(old), "the primary notices that it is alone")


def cut_off(members: ReplicaSet, database: str, goes_on: Callable[[], None]) -> None:
    with members.cut_off() as old:
        with members.direct(old) as client:
            # It still takes writes that no other member will ever see.
            ghosts = client[database].get_collection("ghosts", write_concern=WriteConcern(1))
            ghosts.insert_one({})
        members.wait_primary_other_than(old)
        goes_on()
    with members.direct(members.primary()) as client:
        assert client[database]["ghosts"].count_documents({}) == 0, "it was rolled back"


IN_TURN: Final = (step_down, kill, freeze, cut_off)
