"""Real processes under one deep backlog. What they did is counted, and nothing is timed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.programs import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.types import Database

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("load")]


def measured(mongod: EmbeddedServer, db: Database, **options: object) -> dict[str, Any]:
    arguments = [part for option, value in options.items() for part in (f"--{option}", str(value))]
    printed = run_program("-m", "benchmarks.contention", "--json", *arguments, uri=mongod.uri, database=db.name)
    found: dict[str, Any] = json.loads(printed)
    return found


def test_four_processes_get_a_fair_share_each(mongod: EmbeddedServer, db: Database) -> None:
    found = measured(mongod, db, processes=4, jobs=1200, concurrency=5, seconds=0.1)
    assert found["runs"] == 1200
    # Were each job drawn by lot, the standard deviation would be 1.25 %: the bound is four of them. As each
    # process has five slots for jobs of the same length, it is less.
    assert all(0.2 <= share <= 0.3 for share in found["shares"]), found
    assert found["lost"] <= 0.2, found


def test_eight_processes_lose_at_most_a_fifth_of_their_candidates(mongod: EmbeddedServer, db: Database) -> None:
    # Without the answer to contention it is 40 % and more. With it, one in eight, of some 500 batches: the
    # standard deviation is 1.5 %.
    found = measured(mongod, db, processes=8, jobs=4000, concurrency=10)
    assert found["runs"] == 4000
    assert found["lost"] <= 0.2, found
