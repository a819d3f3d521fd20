"""L: from enqueue to the start of the handler, beside a raw loop that waits on a change stream and then claims.

What is compared with the floor is the whole way, from just before the call: `enqueue` on our side, `insert_one` on
the floor's. The same from the acknowledged insert is told, too; it may be near nothing, as the event does not wait for
the acknowledgement.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import anyio
import trio
from bson import ObjectId

from trio_monque import RunningJob

from . import floors, loops, producers
from .measuring import NAME, Bench, Db, median, percentile
from .processes import Child, child
from .report import Comparison, Figure
from .schedulers import streaming_scheduler

SLOTS = 50
TIMEOUT = 60.0
WARM_UP = 2  # The first jobs of each round: connections are opened, indexes are looked for.
# One would have no time left at 200 a second, and then be no floor.
CLAIMERS = {"idle": 1, "20 a second": 1, "200 a second": 8}
LONGEST = 25.0  # Milliseconds, of 99 in a hundred.
NOT_SYNCHRONOUS = 0.002  # Seconds by which a clock must differ to be taken for another machine's.


@dataclass(frozen=True)
class Sample:
    """Of one round, in milliseconds.

    Attributes:
        whole: From just before the call; of delayed jobs, from when they were due.
        from_ack: From the acknowledged insert.
    """

    whole: list[float]
    from_ack: list[float] = field(default_factory=list)


def gaps_of(bench: Bench) -> Mapping[str, list[float]]:
    """Seconds before each job: one at a time, or at random at a steady rate; the same for all."""
    draw, size = random.Random(7), bench.size
    return {
        "idle": [draw.uniform(0.04, 0.08) for _ in range(WARM_UP + size.idle)],
        "20 a second": [draw.expovariate(20) for _ in range(WARM_UP + size.slow)],
        "200 a second": [draw.expovariate(200) for _ in range(WARM_UP + size.fast)],
    }


def measure(bench: Bench) -> list[Figure]:
    size = bench.size
    patterns = gaps_of(bench)
    delays = [0.05 + (number * 7919 % 40) / 1000 for number in range(WARM_UP + size.delayed)]
    offset = clock_offset(bench)
    with child("producers", bench.uri) as producer:
        measures: dict[str, Callable[[], Sample]] = {}
        for told, gaps in patterns.items():
            measures[f"{told}, ours"] = partial(of_scheduler, bench, producer, gaps)
            measures[f"{told}, floor"] = partial(_floor, bench, producer, gaps, CLAIMERS[told])
            measures[f"{told}, same, ours"] = partial(of_scheduler, bench, None, gaps)
            measures[f"{told}, same, floor"] = partial(_floor_of_one_process, bench, gaps)
        measures["delayed, ours"] = partial(_delayed, bench, producer, delays, offset, raw=False)
        measures["delayed, floor"] = partial(_delayed, bench, producer, delays, offset, raw=True)
        found = bench.in_turns(measures, told=lambda one: f"median {median(one.whole):.2f} ms")
    figures = []
    for told in patterns:
        figures += _figures(told, f"{told}, enqueued by another process", found, at_most=1.25, longest=LONGEST)
    figures += _figures("delayed", "delayed, after its run_at", found, at_most=1.25, longest=LONGEST)
    for told in patterns:
        figures += _figures(f"{told}, same", f"{told}, enqueued by the same process", found, at_most=None, longest=None)
    return figures


def clock_offset(bench: Bench) -> float:
    """Seconds by which the server's clock is ahead, where it is another machine's."""
    asked = time.time()
    told: datetime = bench.client.admin.command("hello")["localTime"]
    offset = told.timestamp() + 0.0005 - (asked + time.time()) / 2
    return offset if abs(offset) > NOT_SYNCHRONOUS else 0.0


# --- Ours ---


def of_scheduler(bench: Bench, producer: Child | None, gaps: Sequence[float], loop: str = loops.TRIO) -> Sample:
    """Enqueued by the other process, or by the scheduler's own."""
    with bench.database() as database:
        return loops.run(loop, _enqueued_and_run, database, producer, gaps)


async def _enqueued_and_run(database: Db, producer: Child | None, gaps: Sequence[float]) -> Sample:
    starts = Starts(len(gaps))
    async with streaming_scheduler(database) as scheduler:
        scheduler.register(NAME, starts.handler, concurrency=SLOTS)
        if producer is None:
            times = await producers.enqueue_after(gaps, lambda number: scheduler.enqueue(NAME, {"i": number}))
        else:
            ask = partial(producer.ask, database=database.name, gaps=gaps, due_at=[], raw=False)
            times = await anyio.to_thread.run_sync(ask)
        with anyio.fail_after(TIMEOUT):
            await starts.all_there.wait()
    return sample(times, starts.monotonic)


class Starts:
    """When the handler of each began, by both clocks."""

    def __init__(self, number: int) -> None:
        self.monotonic: dict[int, float] = {}
        self.wall: dict[int, float] = {}
        self.all_there = anyio.Event()
        self._number = number

    async def handler(self, job: RunningJob[Any]) -> None:
        self.monotonic[job.data["i"]] = time.monotonic()
        self.wall[job.data["i"]] = time.time()
        if len(self.wall) == self._number:
            self.all_there.set()


def sample(times: producers.Times, started: Mapping[int, float]) -> Sample:
    counted = range(WARM_UP, len(times))
    return Sample(
        whole=[1000 * (started[number] - times[number][0]) for number in counted],
        from_ack=[1000 * (started[number] - times[number][1]) for number in counted],
    )


# --- Floors ---


def _floor(bench: Bench, producer: Child, gaps: Sequence[float], threads: int) -> Sample:
    """A change stream, and a claim of what it names: by the loop itself, or by as many threads as the rate needs."""
    started: dict[int, float] = {}
    with bench.database() as database, ThreadPoolExecutor(threads) as claimers:
        jobs = floors.jobs_of(database)
        jobs.create_indexes(list(floors.LEAN))
        with jobs.watch(floors.INSERTS, max_await_time_ms=500) as stream:
            stream.try_next()  # It is open, and the server has said so.

            def claim() -> None:
                until = time.monotonic() + TIMEOUT
                while len(started) < len(gaps) and time.monotonic() < until:
                    if (event := stream.try_next()) is not None:
                        which = {"_id": event["documentKey"]["_id"]}
                        if threads == 1:
                            _claim(jobs, which, started)
                        else:
                            claimers.submit(_claim, jobs, which, started)

            claimer = threading.Thread(target=claim)
            claimer.start()
            times = producer.ask(database=database.name, gaps=gaps, due_at=[], raw=True)
            claimer.join()
    assert len(started) == len(gaps), "the raw loop has lost a job"
    return sample(times, started)


def _claim(jobs: floors.Jobs, which: Mapping[str, Any], started: dict[int, float]) -> None:
    at = floors.now()
    taken = jobs.find_one_and_update({**which, **floors.due(at)}, floors.held(at, str(ObjectId())))
    assert taken is not None
    started[taken["data"]["i"]] = time.monotonic()


def _floor_of_one_process(bench: Bench, gaps: Sequence[float]) -> Sample:
    """Whoever inserts it claims it: nothing has to be waited for."""
    started: dict[int, float] = {}
    with bench.database() as database:
        jobs = floors.jobs_of(database)
        jobs.create_indexes(list(floors.LEAN))
        acknowledged: dict[int, float] = {}

        def insert_and_claim(number: int) -> None:
            at = floors.now()
            inserted = jobs.insert_one(floors.new_document(number, at, at)).inserted_id
            acknowledged[number] = time.monotonic()
            _claim(jobs, {"_id": inserted}, started)

        times = producers.insert_after(gaps, insert_and_claim)
    return sample([[called, acknowledged[number]] for number, (called, _) in enumerate(times)], started)


# --- Delayed jobs ---


def _delayed(bench: Bench, producer: Child, delays: Sequence[float], offset: float, *, raw: bool) -> Sample:
    """All are enqueued before the first is due; then one is due at a time."""
    with bench.database() as database:
        begin = time.time() + offset + 1.0 + 0.002 * len(delays)
        due_at = [round(begin + sum(delays[: number + 1]), 3) for number in range(len(delays))]
        ask = partial(producer.ask, database=database.name, gaps=[0.002] * len(delays), due_at=due_at, raw=raw)
        if raw:
            floors.jobs_of(database).create_indexes(list(floors.LEAN))
            ask()
            started = _claim_when_due(floors.jobs_of(database), len(delays), offset)
        else:
            started = trio.run(_run_when_due, database, ask, len(delays))
    counted = range(WARM_UP, len(delays))
    return Sample(whole=[1000 * (started[number] + offset - due_at[number]) for number in counted])


def _claim_when_due(jobs: floors.Jobs, number: int, offset: float) -> Mapping[int, float]:
    started: dict[int, float] = {}
    pending = {"name": NAME, "status": "pending"}
    while len(started) < number:
        earliest = jobs.find_one(pending, {"nextRunAt": True}, sort=floors.EARLIEST)
        assert earliest is not None
        due_at: datetime = earliest["nextRunAt"]
        time.sleep(max(0.0, due_at.timestamp() - time.time() - offset))
        at = producers.moment(time.time() + offset)
        taken = jobs.find_one_and_update(floors.due(at), floors.held(at, str(ObjectId())), sort=floors.EARLIEST)
        assert taken is not None
        started[taken["data"]["i"]] = time.time()
    return started


async def _run_when_due(database: Db, ask: Callable[[], object], number: int) -> Mapping[int, float]:
    starts = Starts(number)
    async with streaming_scheduler(database) as scheduler:
        scheduler.register(NAME, starts.handler, concurrency=SLOTS)
        await trio.to_thread.run_sync(ask)
        with trio.fail_after(TIMEOUT):
            await starts.all_there.wait()
    return starts.wall


# --- What it means ---


def _figures(
    told: str, what: str, found: Mapping[str, Sequence[Sample]], *, at_most: float | None, longest: float | None
) -> list[Figure]:
    """The median of each round; of the rest, that of all rounds together, as a round has few."""
    ours, floor = found[f"{told}, ours"], found[f"{told}, floor"]

    def medians(samples: Sequence[Sample], which: str) -> list[float]:
        return [median(getattr(one, which)) for one in samples]

    def pooled(samples: Sequence[Sample], share: float) -> list[float]:
        return [percentile([each for one in samples for each in one.whole], share)]

    def figure(name: str, mine: list[float], theirs: list[float], **limits: Any) -> Figure:
        of_floor = limits.pop("of_floor", None)
        beside = [Comparison(floor="the same, raw", values=theirs, at_most=of_floor)]
        key = f"L.{told} {name}"
        return Figure(part="L", key=key, what=f"{what}: {name}", unit="ms", values=mine, floors=beside, **limits)

    figures = [figure("p50", medians(ours, "whole"), medians(floor, "whole"), of_floor=at_most)]
    if ours[0].from_ack:
        figures.append(figure("p50 from the acknowledgement", medians(ours, "from_ack"), medians(floor, "from_ack")))
    figures.append(figure("p95", pooled(ours, 0.95), pooled(floor, 0.95)))
    figures.append(figure("p99", pooled(ours, 0.99), pooled(floor, 0.99), at_most=longest))
    return figures
