"""T: a backlog of jobs from the first claim to the last settlement, as jobs a second."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import anyio
from pymongo import IndexModel

from trio_monque import Monque, NewJob

from . import floors, loops, python_floors
from .measuring import NAME, Bench, Db, Processor
from .processes import Child, child, worked_off
from .report import Comparison, Figure
from .schedulers import streaming_scheduler
from .variants import PLAIN, TEN, VARIANTS, Handlers, Variant, seconds_of

TIMEOUT = 300.0  # Seconds for one backlog.
SLOTS = (10, 100, 500)
WITH_VARIANTS = 100
SHARE_OF_FLOOR = {10: 0.9, 100: 0.8, 500: 0.75}


def measure(bench: Bench) -> list[Figure]:
    size, shares, processor = bench.size, Shares(), Processor(bench)
    jobs = size.jobs
    with ExitStack() as stack:
        children = [stack.enter_context(child("workers", bench.uri)) for _ in range(size.processes)]
        floor, ours = partial(_floor, bench, processor), partial(one_process, bench, processor)
        in_trio, with_python = partial(_in_trio, bench, processor), partial(_with_python, bench, processor)
        many = partial(_many_processes, bench, children, shares)
        # What is compared stands near each other.
        measures: dict[str, Callable[[], float]] = {"F1": partial(floor, "F1", jobs // 5)}
        for slots in SLOTS:
            measures[f"P{slots}"] = partial(floor, f"P{slots}", jobs)
            measures[f"trio {slots}"] = partial(in_trio, slots)
            measures[f"T.{slots}"] = partial(ours, slots, PLAIN)
            measures[f"P{slots} python"] = partial(with_python, slots)
            measures[f"T.many.{slots}"] = partial(many, slots)
            if slots == WITH_VARIANTS:
                measures["FB"] = partial(floor, "FB", jobs)
                measures["P100 ten"] = partial(floor, "P100", jobs, (*floors.LEAN, *TEN))
                measures |= {f"T.100 {name}": partial(ours, slots, variant) for name, variant in VARIANTS.items()}
        found = bench.in_turns(measures)
    return [
        *_floors_themselves(found),
        *(_in_trio_figure(slots, found) for slots in SLOTS),
        *(_with_python_figure(slots, found) for slots in SLOTS),
        *(_one_process_figure(slots, found) for slots in SLOTS),
        *(figure for slots in SLOTS for figure in _processor_figures(slots, processor)),
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
        return floors.rate(database, floors.FLOORS[name], jobs, indexes, counted=counted)


def _in_trio(bench: Bench, processor: Processor, slots: int) -> float:
    jobs, work = bench.size.jobs, partial(python_floors.in_trio, slots=slots)
    with bench.database() as database:
        return floors.rate(database, work, jobs, counted=processor.counted(f"trio {slots}", jobs))


def _with_python(bench: Bench, processor: Processor, slots: int) -> float:
    """With what a scheduler's client took the last time beyond the floor's, which sends the same statements."""
    more = processor.of_client[counted_as(slots, PLAIN)][-1] - processor.of_client[f"P{slots}"][-1]
    work = partial(python_floors.with_python, batch=slots, each=max(0.0, more) / 1e6)
    with bench.database() as database:
        counted = processor.counted(f"P{slots} python", bench.size.jobs)
        return floors.rate(database, work, bench.size.jobs, counted=counted)


def _fill(database: Db, jobs: int, names: Sequence[str]) -> None:
    start = datetime.now(UTC) - timedelta(seconds=600)
    Monque(database).sync.enqueue_many(
        [
            NewJob(name=names[number % len(names)], data={"i": number}, run_at=start + timedelta(milliseconds=number))
            for number in range(jobs)
        ]
    )


def counted_as(slots: int, variant: Variant, loop: str = loops.TRIO) -> str:
    """The name under which `one_process` counts processor time."""
    return f"{loop} T.{slots} {variant.what}"


def one_process(bench: Bench, processor: Processor, slots: int, variant: Variant, loop: str = loops.TRIO) -> float:
    """Jobs a second of one process with so many slots, opened on this event loop."""
    jobs, names = bench.size.jobs, [NAME, *(f"{NAME}-{number}" for number in range(1, variant.names))]
    with bench.database() as database:
        if variant.indexes:
            database["monque_jobs"].create_indexes(list(variant.indexes))
        _fill(database, jobs, names)
        counted = processor.counted(counted_as(slots, variant, loop), jobs)
        took = loops.run(loop, _work_off, database, jobs, names, slots, variant, counted)
        ended = {
            status: database["monque_jobs"].count_documents({"status": status}) for status in ("completed", "failed")
        }
    failed = -(-jobs // 10) if variant.fails else 0
    assert ended == {"completed": jobs - failed, "failed": failed}, ended
    return jobs / took


async def _work_off(
    db: Db, jobs: int, names: Sequence[str], slots: int, variant: Variant, counted: AbstractContextManager[None]
) -> float:
    """Seconds until the server has acknowledged the last settlement."""
    handlers = Handlers(jobs)
    options: dict[str, Any] = {"max_attempts": 0} if variant.fails else {}
    if variant.names > 1:
        options["concurrency"] = slots
    async with streaming_scheduler(db, **options) as scheduler:
        with anyio.fail_after(TIMEOUT), counted:
            begun = time.perf_counter()
            for name in names:
                scheduler.register(name, handlers.of(variant), concurrency=slots, store_result=variant.stores)
            await handlers.all_ran.wait()
            # Only the last settlements are waited for so.
            while (told := scheduler.statistics()).completed + told.failed < jobs:  # noqa: ASYNC110
                await anyio.sleep(0.001)
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


def _in_trio_figure(slots: int, found: dict[str, list[float]]) -> Figure:
    beside = [Comparison(floor=f"P{slots}", values=found[f"P{slots}"])]
    return _figure(f"trio {slots}", f"floor trio {slots}: a bare trio loop, {slots} slots", found, beside)


def _with_python_figure(slots: int, found: dict[str, list[float]]) -> Figure:
    beside = [Comparison(floor=f"P{slots}", values=found[f"P{slots}"])]
    what = f"floor P{slots} with as much Python a job as {slots} slots take"
    return _figure(f"P{slots} python", what, found, beside)


def _one_process_figure(slots: int, found: dict[str, list[float]]) -> Figure:
    beside = [Comparison(floor=f"P{slots}", values=found[f"P{slots}"], at_least=SHARE_OF_FLOOR[slots])]
    if slots == 10:
        beside.append(Comparison(floor="F1", values=found["F1"], at_least=2.5))
    if slots == 500:
        beside.append(Comparison(floor="100 slots", values=found["T.100"], at_least=1.0))
    beside.append(Comparison(floor=f"trio {slots}", values=found[f"trio {slots}"]))
    beside.append(Comparison(floor=f"P{slots} with as much Python", values=found[f"P{slots} python"]))
    return _figure(f"T.{slots}", f"{slots} slots, one process", found, beside)


def _processor_figures(slots: int, processor: Processor) -> Iterator[Figure]:
    """They depend less than the speed on what else the machine does."""
    sides = {
        "client and server": processor.of_both,
        "the client": processor.of_client.__getitem__,
        "the server": processor.of_server.__getitem__,
    }
    for side, used in sides.items():
        yield Figure(
            part="T",
            key=f"T.{slots} processor" + ("" if side == "client and server" else f" of {side}"),
            what=f"{slots} slots: processor of {side}",
            unit="µs a job",
            values=used(counted_as(slots, PLAIN)),
            floors=[Comparison(floor=floor, values=used(floor)) for floor in (f"P{slots}", f"trio {slots}")],
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
