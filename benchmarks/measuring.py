"""What all parts share: how much is measured, databases of their own, turns, and what the server says of itself."""

from __future__ import annotations

import secrets
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from pymongo import MongoClient, monitoring
from pymongo.database import Database

Db = Database[dict[str, Any]]
T = TypeVar("T")
NAME = "noop"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Attributes:
        rounds: How often each; the medians of these are compared.
        jobs: The backlog of each throughput figure.
        processes: How many share one.
        idle, slow, fast, delayed: Jobs of each latency figure: one at a time, 20 and 200 a second, delayed.
        instances: The idle ones.
        watched: Seconds for which their clients are watched: a period of all that they do now and then.
        beside_writes: Seconds for which the server is watched, in each round.
        documents, due: Of the large collection, and how many of them are due.
        single, grouped, many: Enqueued one by one, from twenty tasks, and at once.
        running: Jobs at a time whose memory is weighed.
        backlog, shared: The backlogs of several processes: for their throughput, and for what they lose to each other.
        schedules: Those that come due at once.
    """

    rounds: int
    jobs: int
    processes: int
    idle: int
    slow: int
    fast: int
    delayed: int
    instances: int
    watched: float
    beside_writes: float
    documents: int
    due: int
    single: int
    grouped: int
    many: int
    running: int
    backlog: int
    shared: int
    schedules: int


FULL = Size(
    rounds=3,
    jobs=10_000,
    processes=4,
    idle=30,
    slow=40,
    fast=400,
    delayed=30,
    instances=50,
    watched=30.0,
    beside_writes=3.0,
    documents=1_000_000,
    due=10_000,
    single=600,
    grouped=4_000,
    many=20_000,
    running=10_000,
    backlog=40_000,
    shared=60_000,
    schedules=1_000,
)
# It shows that everything works, and nothing else.
QUICK = Size(
    rounds=1,
    jobs=200,
    processes=2,
    idle=5,
    slow=10,
    fast=40,
    delayed=5,
    instances=5,
    watched=2.0,
    beside_writes=1.0,
    documents=5_000,
    due=500,
    single=20,
    grouped=100,
    many=2_000,
    running=500,
    backlog=400,
    shared=400,
    schedules=50,
)


@dataclass(frozen=True)
class Bench:
    """Where it is measured, and how much."""

    uri: str
    client: MongoClient[dict[str, Any]]
    size: Size

    @contextmanager
    def database(self) -> Iterator[Db]:
        """One of its own, dropped at the end."""
        with new_database(self.client) as database:
            yield database

    def in_turns(
        self, measures: Mapping[str, Callable[[], T]], told: Callable[[T], str] = "{:,.2f}".format
    ) -> dict[str, list[T]]:
        """Each once a round, every other round backwards: a noisy machine, and one that slows down, are so to all."""
        found: dict[str, list[T]] = {name: [] for name in measures}
        for number in range(self.size.rounds):
            for name in list(measures)[:: -1 if number % 2 else 1]:
                found[name].append(measures[name]())
                tell(f"  round {number + 1}, {name}: {told(found[name][-1])}")
        return found


@contextmanager
def new_database(client: MongoClient[dict[str, Any]]) -> Iterator[Db]:
    name = f"monque_benchmark_{secrets.token_hex(4)}"
    try:
        yield client[name]
    finally:
        client.drop_database(name)


def tell(line: str) -> None:
    """How far it is; the results are printed at the end, and to standard output."""
    print(line, file=sys.stderr, flush=True)


class Processor:
    """What this process and the server use while something is measured: microseconds a job, round by round."""

    def __init__(self, bench: Bench) -> None:
        self._client = bench.client
        self.of_client: dict[str, list[float]] = {}
        self.of_server: dict[str, list[float]] = {}

    @contextmanager
    def counted(self, name: str, jobs: int) -> Iterator[None]:
        client, server = time.process_time(), server_seconds(self._client)
        yield
        client, server = time.process_time() - client, server_seconds(self._client) - server
        self.of_client.setdefault(name, []).append(1e6 * client / jobs)
        self.of_server.setdefault(name, []).append(1e6 * server / jobs)

    def of_both(self, name: str) -> list[float]:
        return [sum(both) for both in zip(self.of_client[name], self.of_server[name], strict=True)]


class Sent(monitoring.CommandListener):
    """The commands that a client has sent; the driver's own checks of the server are none."""

    def __init__(self) -> None:
        self.by_name: Counter[str] = Counter()

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        self.by_name[event.command_name] += 1

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


def percentile(values: Sequence[float], share: float) -> float:
    """The value that so large a share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def server_seconds(client: MongoClient[dict[str, Any]]) -> float:
    """The processor time that the server has used, as it says; it does so on Linux."""
    told = client.admin.command("serverStatus")["extra_info"]
    return float(told["user_time_us"] + told["system_time_us"]) / 1e6
