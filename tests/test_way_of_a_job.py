"""How short a job's way through the code is: which files it crosses, and how many calls it takes.

These are counts, not times: they are the same on a fast and on a busy machine (see tests/support/traced_job.py). A
change that makes one of them larger says what it buys. Most of the calls are those of trio and of the driver.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from tests.support.programs import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

FILES = {"enqueue": 14, "blocking enqueue": 13, "run": 40}
CALLS_ON_TRIO_THREAD = 110
"""Python calls for each job of a scheduler that runs a hundred at a time; about fifteen fewer in real time."""

CALLS_OF_MINUTES = 1.1
"""More calls where minutes are counted: one for the row of the name, and a tenth for what begins a minute."""


@cache
def traced(uri: str, database: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run_program("-m", "tests.support.traced_job", uri=uri, database=database))
    return found


@pytest.fixture
def trace(mongod: EmbeddedServer, monque_db: Database) -> dict[str, Any]:
    return traced(mongod.uri, monque_db.name)


@pytest.mark.parametrize("part", FILES)
def test_a_job_crosses_few_files(trace: dict[str, Any], part: str) -> None:
    assert len(trace[part]) <= FILES[part], trace[part]


@pytest.mark.full
def test_a_job_among_a_hundred_takes_few_calls(trace: dict[str, Any]) -> None:
    assert trace["calls"] <= CALLS_ON_TRIO_THREAD


@pytest.mark.full
def test_minutes_cost_a_job_one_call(trace: dict[str, Any]) -> None:
    """The call that counts is made without them, too."""
    assert 0.9 <= trace["calls with minutes"] - trace["calls"] <= CALLS_OF_MINUTES
