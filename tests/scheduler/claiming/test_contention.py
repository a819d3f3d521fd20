"""Real processes under one deep backlog. What they did is counted, and nothing is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from pymongo import MongoClient

from benchmarks.contention import shared
from benchmarks.processes import Child, child
from trio_monque.embedded import EmbeddedServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def workers(mongod: EmbeddedServer) -> Iterator[Callable[[int], list[Child]]]:
    """Starts processes, which work one backlog off after the other."""
    with ExitStack() as stack:
        started: list[Child] = []

        def first(number: int) -> list[Child]:
            while len(started) < number:
                started.append(stack.enter_context(child("workers", mongod.uri)))
            return started[:number]

        yield first


@pytest.mark.full
def test_four_processes_get_a_fair_share_each(client: MongoClient[Any], workers: Callable[[int], list[Child]]) -> None:
    found = shared(client, workers(4), 800, concurrency=5, seconds=0.1)
    assert found["runs"] == 800
    # Were each job drawn by lot, the standard deviation would be 1.5 %: the bound is more than three of them. As
    # each process has five slots for jobs of the same length, it is less.
    assert all(0.2 <= share <= 0.3 for share in found["shares"]), found
    assert found["lost"] <= 0.1, found


@pytest.mark.full
def test_eight_processes_lose_at_most_a_seventh_of_their_candidates(
    client: MongoClient[Any], workers: Callable[[int], list[Child]]
) -> None:
    # Without the answer to contention it is 40 %. With it, 7 to 9 %, most of it where so short a backlog begins and
    # ends: more on a machine that does other things, where looks grow old.
    found = shared(client, workers(8), 5000, concurrency=10)
    assert found["runs"] == 5000
    assert found["lost"] <= 1 / 7, found
