"""T: a backlog of jobs from the first claim to the last settlement, as jobs a second."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import trio
from pymongo import IndexModel

from tests.support import node_peer
from trio_monque import Monque, NewJob, RunningJob

from . import floors
from .measuring import NAME, Bench, Db, Processor
from .processes import Child, child, worked_off
from .report import Comparison, Figure
from .schedulers import streaming_scheduler

PATIENCE = 300.0  # Seconds for one backlog.
LONGEST_WAIT = 20  # Milliseconds that a handler of the variant waits.
TEN = node_peer.INDEXES[:10]  # Without that of its retention.
SLOTS = (10, 100, 500)
WITH_VARIANTS = 100
SHARE_OF_FLOOR = {10: 0.9, 100: 0.8, 500: 0.75}


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What is otherwise in a backlog that 100 slots work through."""

    what: str
    names: int = 1
    waits: bool = False
    fails: bool = False
    stores: bool = False
    indexes: Sequence[IndexModel] = ()


VARIANTS = {
    "eight names": Variant(what="eight names share the backlog and the 100 slots", names=8),
    "waiting": Variant(what=f"handlers wait for 0 to {LONGEST_WAIT} ms", waits=True),
    "failing": Variant(what="one job in ten fails, with no retries", fails=True),
    "results": Variant(what="results are stored", stores=True),
    "ten indexes": Variant(what="Monque's ten indexes are there, too", indexes=TEN),
}
PLAIN = Variant(what="plain")


def seconds_of(number: int) -> float:
    """How long the handler of a job waits, in the variant where it does."""
    return number * 7919 % (LONGEST_WAIT + 1) / 1000


def measure(bench: Bench) -> list[Figure]:
    size, shares, processor = bench.size, Shares(), Processor(bench)
    jobs = size.jobs
    with ExitStack() as stack:
        children = [stack.enter_context(child("workers", bench.uri)) for _ in range(size.processes)]
        floor, ours = partial(_floor, bench, processor), partial(_one_process, bench, processor)
        many = partial(_many_processes, bench, children, shares)
        # What is compared stands near each other.
        measures: dict[str, Callable[[], float]] = {"F1": partial(floor, "F1", jobs // 5)}
        for slots in SLOTS:
            measures[f"P{slots}"] = partial(floor, f"P{slots}", jobs)
            measures[f"T.{slots}"] = partial(ours, slots, PLAIN)
            measures[f"T.many.{slots}"] = partial(many, slots)
            if slots == WITH_VARIANTS:
                measures["FB"] = partial(floor, "FB", jobs)
                measures["P100 ten"] = partial(floor, "P100", jobs, (*floors.LEAN, *TEN))
                measures |= {f"T.100 {name}": partial(ours, slots, variant) for name, variant in VARIANTS.items()}
        found = bench.in_turns(measures)
    return [
        *_floors_themselves(found),
        *(_one_process_figure(slots, found) for slots in SLOTS),
        *(_processor_figure(slots, processor.by_name) for slots in SLOTS),
        *(_many_figure(slots, found, size.processes) for slots in SLOTS),
        *shares.figures(size.processes),
        *(_variant_figure(name, found, jobs) for name in VARIANTS),
    ]


# --- What is measured ---


def _floor(
    bench: Bench, processor: Processor, name: str, jobs: int, indexes: Sequence[IndexModel] = floors.LEAN
) -> float:
    counted = processor.counted(name, jobs) if indexes is floors.LEAN else None
    with bench.database() as database:
        return floors.rate(database, name, jobs, indexes, counted=counted)


def _fill(database: Db, jobs: int, names: Sequence[str]) -> None:
    start = datetime.now(UTC) - timedelta(seconds=600)
    Monque(database).sync.enqueue_many(
        [
            NewJob(name=names[number % len(names)], data={"i": number}, run_at=start + timedelta(milliseconds=number))
            for number in range(jobs)
        ]
    )


def _one_process(bench: Bench, processor: Processor, slots: int, variant: Variant) -> float:
    jobs, names = bench.size.jobs, [NAME, *(f"{NAME}-{number}" for number in range(1, variant.names))]
    with bench.database() as database:
        if variant.indexes:
            database["monque_jobs"].create_indexes(list(variant.indexes))
        _fill(database, jobs, names)
        counted = processor.counted(f"T.{slots} {variant.what}", jobs)
        took = trio.run(_work_off, database, jobs, names, slots, variant, counted)
        ended = {
            status: database["monque_jobs"].count_documents({"status": status}) for status in ("completed", "failed")
        }
    failed = -(-jobs // 10) if variant.fails else 0
    assert ended == {"completed": jobs - failed, "failed": failed}, ended
    return jobs / took


class Handlers:
    """What is run, and when each of the jobs has been."""

    def __init__(self, jobs: int) -> None:
        self.all_ran = trio.Event()
        self._left = jobs

    def of(self, variant: Variant) -> Callable[[RunningJob[Any]], Awaitable[object]]:
        if variant.waits:
            return self._wait
        if variant.fails:
            return self._fail
        return self._result if variant.stores else self._noop

    def _count(self) -> None:
        self._left -= 1
        if not self._left:
            self.all_ran.set()

    async def _noop(self, _: RunningJob[Any]) -> None:
        self._count()

    async def _wait(self, job: RunningJob[Any]) -> None:
        await trio.sleep(seconds_of(job.data["i"]))
        self._count()

    async def _fail(self, job: RunningJob[Any]) -> None:
        self._count()
        if job.data["i"] % 10 == 0:
            raise ValueError("one in ten")

    async def _result(self, job: RunningJob[Any]) -> dict[str, Any]:
        self._count()
        return {"i": job.data["i"]}


async def _work_off(
    db: Db, jobs: int, names: Sequence[str], slots: int, variant: Variant, counted: AbstractContextManager[None]
) -> float:
    """Seconds until the server has acknowledged the last settlement."""
    handlers = Handlers(jobs)
    options: dict[str, Any] = {"max_retries": 0} if variant.fails else {}
    if variant.names > 1:
        options["instance_concurrency"] = slots
    async with streaming_scheduler(db, **options) as scheduler:
        with trio.fail_after(PATIENCE), counted:
            begun = time.perf_counter()
            for name in names:
                scheduler.register(name, handlers.of(variant), concurrency=slots, store_result=variant.stores)
            await handlers.all_ran.wait()
            # Only the last settlements are waited for so.
            while (told := scheduler.statistics()).completed + told.failed < jobs:  # noqa: ASYNC110
                await trio.sleep(0.001)
            return time.perf_counter() - begun


def _many_processes(bench: Bench, children: Sequence[Child], shares: Shares, slots: int) -> float:
    """Each child has so many slots."""
    jobs = bench.size.jobs
    with bench.database() as database:
        _fill(database, jobs, [NAME])
        took, told = worked_off(children, database, concurrency=slots)
    ran = [one["runs"] for one in told]
    assert sum(ran) == jobs, ran
    shares.take(slots, [each / jobs for each in ran])
    return jobs / took


# --- What it means ---


class Shares:
    """Of the processes of one backlog, the least and the greatest, round by round."""

    def __init__(self) -> None:
        self._found: dict[int, list[Sequence[float]]] = {slots: [] for slots in SLOTS}

    def take(self, slots: int, shares: Sequence[float]) -> None:
        self._found[slots].append(shares)

    def figures(self, processes: int) -> list[Figure]:
        even = 1 / processes
        return [
            Figure(
                part="T",
                key=f"T.many.{slots} {which} share",
                what=f"{processes} processes with {slots} slots each, the {which} share",
                unit="%",
                values=[100 * choose(shares) for shares in found],
                at_least=80 * even if which == "least" else None,
                at_most=120 * even if which == "greatest" else None,
            )
            for slots, found in self._found.items()
            for which, choose in (("least", min), ("greatest", max))
        ]


def _figure(key: str, what: str, found: dict[str, list[float]], beside: Sequence[Comparison]) -> Figure:
    return Figure(part="T", key=key, what=what, unit="jobs/s", values=found[key], floors=beside)


def _floors_themselves(found: dict[str, list[float]]) -> list[Figure]:
    return [_figure(name, f"floor {name}", found, ()) for name in floors.FLOORS]


def _one_process_figure(slots: int, found: dict[str, list[float]]) -> Figure:
    beside = [Comparison(floor=f"P{slots}", values=found[f"P{slots}"], at_least=SHARE_OF_FLOOR[slots])]
    if slots == 10:
        beside.append(Comparison(floor="F1", values=found["F1"], at_least=2.5))
    if slots == 500:
        beside.append(Comparison(floor="100 slots", values=found["T.100"], at_least=1.0))
    return _figure(f"T.{slots}", f"{slots} slots, one process", found, beside)


def _processor_figure(slots: int, used: dict[str, list[float]]) -> Figure:
    """It depends less than the speed on what else the machine does."""
    return Figure(
        part="T",
        key=f"T.{slots} processor",
        what=f"{slots} slots: processor of client and server",
        unit="µs a job",
        values=used[f"T.{slots} {PLAIN.what}"],
        floors=[Comparison(floor=f"P{slots}", values=used[f"P{slots}"])],
    )


def _many_figure(slots: int, found: dict[str, list[float]], processes: int) -> Figure:
    beside = [
        Comparison(floor="one process", values=found[f"T.{slots}"], at_least=1.0),
        Comparison(floor=f"P{slots}", values=found[f"P{slots}"]),
    ]
    return _figure(f"T.many.{slots}", f"{processes} processes with {slots} slots each", found, beside)


def _variant_figure(name: str, found: dict[str, list[float]], jobs: int) -> Figure:
    variant, plain, floor = VARIANTS[name], found["T.100"], found["P100"]
    beside = [Comparison(floor="plain", values=plain, at_least=0.7), Comparison(floor="P100", values=floor)]
    if variant.waits:
        # A hundred slots cannot end more than this, however fast the database is.
        most = 100 * jobs / sum(map(seconds_of, range(jobs)))
        beside = [
            Comparison(floor="plain or the slots' limit", values=[min(one, most) for one in plain], at_least=0.7),
            Comparison(floor="P100 or the slots' limit", values=[min(one, most) for one in floor]),
        ]
    if variant.indexes:
        beside = [Comparison(floor="plain", values=plain)]
        beside.append(Comparison(floor="P100 with them", values=found["P100 ten"]))
    return _figure(f"T.100 {name}", f"100 slots: {variant.what}", found, beside)
