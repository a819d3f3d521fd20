"""A client that was created before a fork, and has not connected, enqueues in the child."""

from __future__ import annotations

import sys

import pytest

from tests.support.programs import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

PROGRAM = """
import os
from multiprocessing import get_context
from pymongo import MongoClient
from trio_monque import Monque

client = MongoClient(os.environ["MONQUE_MONGODB_URI"], connect=False)
monque = Monque(client.get_default_database())


def enqueue():
    monque.sync.enqueue("greet", os.getpid())


children = [get_context("fork").Process(target=enqueue) for _ in range(2)]
for child in children:
    child.start()
for child in children:
    child.join()
print([child.exitcode for child in children])
enqueue()
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_client_that_has_not_connected_works_in_each_forked_child(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    printed = run_program("-W", "error", "-c", PROGRAM, uri=mongod.uri, database=db.name)
    assert printed == "[0, 0]\n"
    assert len({job["data"] for job in jobs.find()}) == 3
