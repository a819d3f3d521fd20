"""I: what idle instances cost, alone and beside the writes of others, and what their change streams cost the server.

Fifty instances are in one process, with a client that they share. A raw loop that waits on a change stream and looks
every half a minute is the floor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from .measuring import Bench, server_seconds, tell
from .processes import Child, child
from .report import Comparison, Figure

WRITES = 2_000  # A second, in another collection.
AT_ONCE = 20  # How many of them share a statement.
SETTLED = 1.0  # Seconds after the start, before anything is counted.
MOST_COMMANDS = 0.5  # A second.
MOST_PROCESSOR = 0.5  # Percent of a core.


@dataclass(frozen=True)
class Idle:
    """What each instance did, and what the server used: commands a second, and percent of a core."""

    commands: float
    processor: float
    server: float
    written: float = 0.0


@dataclass(frozen=True)
class Kind:
    """Which instances, and how many."""

    kind: str
    instances: int


def kinds(bench: Bench) -> Mapping[str, Kind]:
    many = bench.size.instances
    return {
        "raw": Kind("raw", 1),
        "one": Kind("stream", 1),
        "many": Kind("stream", many),
        "many polling": Kind("poll", many),
    }


def measure(bench: Bench) -> list[Figure]:
    with child("idlers", bench.uri) as one, child("idlers", bench.uri) as two, child("idlers", bench.uri) as three:
        idlers = {"raw": one, "one": two, "many": three}
        quiet, beside = (_watched(bench, idlers, writes=writes) for writes in (False, True))
        by_round = _server_beside_writes(bench, one)
    return [*_of_clients(bench, quiet, beside, by_round), *_of_the_server(bench, by_round)]


# --- What is measured ---


@contextmanager
def _opened(idler: Child, database: str, kind: Kind) -> Iterator[None]:
    assert idler.ask(database=database, kind=kind.kind, instances=kind.instances) == "ready"
    yield
    assert idler.ask(what="leave") == "left"


def _watched(bench: Bench, idlers: Mapping[str, Child], *, writes: bool) -> Mapping[str, Idle]:
    """All at once, each in a process and a database of its own: they are watched for long, and cost little."""
    with ExitStack() as stack:
        for name, idler in idlers.items():
            database = stack.enter_context(bench.database())
            stack.enter_context(_opened(idler, database.name, kinds(bench)[name]))
        if writes:
            stack.enter_context(_writes(bench, stack.enter_context(bench.database()).name))
        time.sleep(SETTLED)
        for idler in idlers.values():
            assert idler.ask(what="begin") == "begun"
        time.sleep(bench.size.watched)
        found = {name: _told(idler, kinds(bench)[name]) for name, idler in idlers.items()}
    tell(f"  {'beside writes' if writes else 'with nothing else'}: {found}")
    return found


def _told(idler: Child, kind: Kind, server: float = 0.0, written: float = 0.0) -> Idle:
    told = idler.ask(what="end")
    each = told["seconds"] * kind.instances
    return Idle(sum(told["commands"].values()) / each, 100 * told["processor"] / each, server, written)


def _server_beside_writes(bench: Bench, idler: Child) -> Mapping[str, Sequence[Idle]]:
    measures: dict[str, Callable[[], Idle]] = {"alone": partial(_written_beside, bench, None, None)}
    measures |= {name: partial(_written_beside, bench, idler, kind) for name, kind in kinds(bench).items()}
    return bench.in_turns(measures, told=lambda one: f"beside writes {one}")


def _written_beside(bench: Bench, idler: Child | None, kind: Kind | None) -> Idle:
    seconds = bench.size.beside_writes
    with bench.database() as database, ExitStack() as stack:
        if idler is not None and kind is not None:
            stack.enter_context(_opened(idler, database.name, kind))
        with _writes(bench, database.name) as written:
            time.sleep(SETTLED)
            if idler is not None:
                assert idler.ask(what="begin") == "begun"
            before, begun, so_far = server_seconds(bench.client), time.monotonic(), len(written)
            time.sleep(seconds)
            took = time.monotonic() - begun
            server = 100 * (server_seconds(bench.client) - before) / took
            rate = AT_ONCE * (len(written) - so_far) / took
            if idler is None or kind is None:
                return Idle(0.0, 0.0, server, rate)
            return _told(idler, kind, server, rate)


@contextmanager
def _writes(bench: Bench, name: str) -> Iterator[list[None]]:
    """As many as are wanted, or as the server can; one entry for each statement."""
    written: list[None] = []
    ended = threading.Event()
    other = bench.client[name]["of_others"]

    def write() -> None:
        moment = time.monotonic()
        while not ended.wait(max(0.0, moment - time.monotonic())):
            other.insert_many([{"number": number, "text": "x" * 100} for number in range(AT_ONCE)], ordered=False)
            written.append(None)
            # What the server could not take in time is not made up for.
            moment = max(moment + AT_ONCE / WRITES, time.monotonic() - 0.1)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield written
    finally:
        ended.set()
        writer.join()


# --- What it means ---


def _of_clients(
    bench: Bench, quiet: Mapping[str, Idle], beside: Mapping[str, Idle], by_round: Mapping[str, Sequence[Idle]]
) -> list[Figure]:
    many, writes = bench.size.instances, f"beside {WRITES:,} writes a second"
    limits: dict[str, Any] = {"most_commands": MOST_COMMANDS, "most_processor": MOST_PROCESSOR}
    figures = []
    for key, among, found in (("I.", "", quiet), ("I.writes ", f" {writes}", beside)):
        for name, what in (("one", "an idle instance"), ("many", f"each of {many} idle instances")):
            figures += _of_instances(f"{key}{name}", what + among, [found[name]], [found["raw"]], **limits)
    polling = by_round["many polling"]
    streams = [beside["many"]] * len(polling)
    what = f"each of {many} idle instances that poll {writes}"
    return [*figures, *_of_instances("I.writes many polling", what, polling, streams, floor="with streams")]


def _of_instances(
    key: str,
    what: str,
    found: Sequence[Idle],
    beside: Sequence[Idle],
    *,
    floor: str = "a raw loop on a stream",
    most_commands: float | None = None,
    most_processor: float | None = None,
) -> list[Figure]:
    commands = _figure(key, "commands", f"{what}: commands", "/s", found, floor, beside)
    processor = _figure(key, "processor", f"{what}: processor of the client", "% of a core", found, floor, beside)
    return [replace(commands, at_most=most_commands), replace(processor, at_most=most_processor)]


def _of_the_server(bench: Bench, by_round: Mapping[str, Sequence[Idle]]) -> list[Figure]:
    many = bench.size.instances
    told = {
        "raw": "a raw stream",
        "one": "an instance",
        "many": f"{many} instances",
        "many polling": f"{many} instances that poll",
    }

    def figure(name: str, which: str, what: str, unit: str) -> Figure:
        found, alone = by_round[name], by_round["alone"]
        return _figure(f"I.writes {name}", which, what, unit, found, "the writes alone", alone)

    return [
        *(
            figure(name, "server", f"processor of the server beside {WRITES:,} writes a second, {what}", "% of a core")
            for name, what in told.items()
        ),
        *(figure(name, "written", f"writes of others that pass, {what}", "/s") for name, what in told.items()),
    ]


def _figure(
    key: str, which: str, what: str, unit: str, found: Sequence[Idle], floor: str, beside: Sequence[Idle]
) -> Figure:
    """One of the fields of `Idle`, round by round."""
    values, compared = ([getattr(one, which) for one in of] for of in (found, beside))
    floors = [Comparison(floor=floor, values=compared)]
    return Figure(part="I", key=f"{key} {which}", what=what, unit=unit, values=values, floors=floors)
