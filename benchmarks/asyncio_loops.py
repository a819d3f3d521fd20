"""A: a scheduler that was opened on asyncio or uvloop, beside one that was opened on trio.

On asyncio and uvloop the scheduler runs in a thread of its own, and each handler is a task of the program's loop. So
these are the costs of the bridge between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from . import cancel_latency, loops, memory
from .latency import Sample, gaps_of, of_scheduler
from .measuring import Bench, Processor, median, tell
from .processes import child
from .report import Comparison, Figure
from .throughput import SLOTS, counted_as, one_process
from .variants import PLAIN

WITH_PROMISE, SHARE_OF_TRIO = 100, 0.5
MOST_BEYOND_TRIO = 1.5  # Milliseconds from enqueue to the start of the handler, of the median.
WAYS = {
    "wake": "idle, enqueued by another process",
    "wake same": "idle, enqueued by the same process",
    "cancel": "cancelled by another client",
}


def measure(bench: Bench) -> list[Figure]:
    return [*_throughput(bench), *_latency(bench), *_memory(bench)]


# --- Throughput ---


def _throughput(bench: Bench) -> Iterator[Figure]:
    processor = Processor(bench)
    measures: dict[str, Callable[[], float]] = {
        f"{loop} {slots}": partial(one_process, bench, processor, slots, PLAIN, loop)
        for slots in SLOTS
        for loop in loops.LOOPS
    }
    found = bench.in_turns(measures)
    for slots in SLOTS:
        for loop in loops.BRIDGED:
            key, what = f"A.{slots} {loop}", f"{loop}, {slots} slots"
            wanted = SHARE_OF_TRIO if slots == WITH_PROMISE else None
            beside = Comparison(floor=loops.TRIO, values=found[f"trio {slots}"], at_least=wanted)
            yield Figure(part="A", key=key, what=what, unit="jobs/s", values=found[f"{loop} {slots}"], floors=[beside])
            yield _processor_figure(key, what, slots, loop, processor)


def _processor_figure(key: str, what: str, slots: int, loop: str, processor: Processor) -> Figure:
    """It depends less than the speed on what else the machine does."""
    ours, of_trio = (processor.of_client[counted_as(slots, PLAIN, one)] for one in (loop, loops.TRIO))
    return Figure(
        part="A",
        key=f"{key} processor of the client",
        what=f"{what}: processor of the client",
        unit="µs a job",
        values=ours,
        floors=[Comparison(floor=loops.TRIO, values=of_trio)],
    )


# --- Latency ---


def _latency(bench: Bench) -> Iterator[Figure]:
    gaps = gaps_of(bench)["idle"]
    with child("producers", bench.uri) as producer:
        measures: dict[str, Callable[[], Sample]] = {}
        for loop in loops.LOOPS:
            measures[f"wake, {loop}"] = partial(of_scheduler, bench, producer, gaps, loop)
        for loop in loops.LOOPS:
            measures[f"wake same, {loop}"] = partial(of_scheduler, bench, None, gaps, loop)
        for loop in loops.LOOPS:
            measures[f"cancel, {loop}"] = partial(_cancelled, bench, loop)
        found = bench.in_turns(measures, told=lambda one: f"median {median(one.whole):.2f} ms")
    medians = {name: [median(sample.whole) for sample in samples] for name, samples in found.items()}
    for way, what in WAYS.items():
        at_most = MOST_BEYOND_TRIO if way == "wake" else None
        for loop in loops.BRIDGED:
            ours, of_trio = medians[f"{way}, {loop}"], medians[f"{way}, trio"]
            yield from _beside_trio(f"A.{way} {loop}", f"{loop}: {what}, p50", ours, of_trio, at_most)


def _beside_trio(
    key: str, what: str, values: Sequence[float], of_trio: Sequence[float], at_most: float | None
) -> Iterator[Figure]:
    """The latency beside that of trio, and the difference, for which there may be a limit."""
    more = [mine - theirs for mine, theirs in zip(values, of_trio, strict=True)]
    floors = [Comparison(floor=loops.TRIO, values=of_trio)]
    yield Figure(part="A", key=key, what=what, unit="ms", values=values, floors=floors)
    yield Figure(part="A", key=f"{key} more", what=f"{what}: more than trio", unit="ms", values=more, at_most=at_most)


def _cancelled(bench: Bench, loop: str) -> Sample:
    return Sample(whole=cancel_latency.measure(bench.uri, bench.size.idle, loop))


# --- Memory ---


def _memory(bench: Bench) -> Iterator[Figure]:
    pairs: list[tuple[dict[str, float], dict[str, float]]] = []
    for number in range(bench.size.rounds):
        pairs.append((memory.weighed(bench, loops.ASYNCIO), memory.weighed(bench)))
        on_asyncio, on_trio = (f"{weighed['jobs']:.2f} KB" for weighed in pairs[-1])
        tell(f"  round {number + 1}, memory: {on_asyncio} on asyncio, {on_trio} on trio")
    of = f"asyncio: {bench.size.running:,} jobs running"
    for name, what in {"jobs": "allocated by Python for each", "jobs, RSS": "growth of the process for each"}.items():
        bare = name.replace("jobs", "tasks")
        floors = [
            Comparison(floor="trio", values=[on_trio[name] for _, on_trio in pairs]),
            Comparison(floor="an asyncio task in a scope with a deadline", values=[ours[bare] for ours, _ in pairs]),
        ]
        values = [ours[name] for ours, _ in pairs]
        yield Figure(part="A", key=f"A.{name}", what=f"{of}, {what}", unit="KB", values=values, floors=floors)
