"""All that is measured, in one run: `python -m benchmarks`, or `just bench`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from rich.console import Console

from trio_monque.embedded import embedded_mongod

from . import (
    asyncio_loops,
    claim_cost,
    claims,
    enqueue,
    fleets,
    idle,
    latency,
    memory,
    page,
    picture,
    report,
    throughput,
)
from .measuring import FULL, QUICK, Bench, Size, tell

PARTS: Mapping[str, Callable[[Bench], list[report.Figure]]] = {
    "T": throughput.measure,
    "L": latency.measure,
    "I": idle.measure,
    "S": claim_cost.measure,
    "E": enqueue.measure,
    "M": memory.measure,
    "C": claims.measure,
    "A": asyncio_loops.measure,
    "F": fleets.measure,
}


def parts(told: str) -> list[str]:
    wanted = told.upper().split(",")
    if not set(wanted) <= PARTS.keys():
        raise argparse.ArgumentTypeError(f"{told!r} is no list of {', '.join(PARTS)}, such as T,E")
    return [part for part in PARTS if part in wanted]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument("--uri", help="the server, a replica set; by default a private one is started")
    parser.add_argument("--only", type=parts, default=list(PARTS), metavar="T,L,I,S,E,M,C,A,F", help="these parts")
    parser.add_argument("--quick", action="store_true", help="a little of each: that it works, not how fast")
    parser.add_argument("--rounds", type=int, help="of how many each figure is the median (default: 3)")
    parser.add_argument("--documents", type=int, help="in the large collection of part S (default: 1,000,000)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw them there")
    parser.add_argument(
        "--render", type=Path, metavar="FILE", help="measure nothing: bring these results into the docs"
    )
    return parser.parse_args()


@contextmanager
def server(uri: str | None) -> Iterator[str]:
    if uri is not None:
        yield uri
        return
    with embedded_mongod() as started:  # The one that MONQUE_MONGODB_URI names, where it names one.
        yield started.uri


def measured(uri: str, wanted: Sequence[str], size: Size) -> report.Results:
    load_before = os.getloadavg()
    with MongoClient[dict[str, Any]](uri, tz_aware=True) as client:
        bench = Bench(uri, client, size)
        figures: list[report.Figure] = []
        seconds: dict[str, float] = {}
        for part in wanted:
            tell(f"{part}: {report.PARTS[part]}")
            begun = time.monotonic()
            figures += PARTS[part](bench)
            seconds[part] = round(time.monotonic() - begun, 1)
        where = report.environment(bench, quick=size.jobs < FULL.jobs, load_before=load_before)
    return report.parsed(report.dumped(report.Results(environment=where, seconds=seconds, figures=figures)))


def main() -> None:
    options = arguments()
    if options.render is not None:
        page.render(report.loaded(options.render))
        return
    # Then all that was started ends, as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Jobs that fail are told in the log as always; here it goes nowhere.
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    size = QUICK if options.quick else FULL
    if options.rounds is not None:
        size = replace(size, rounds=options.rounds)
    if options.documents is not None:
        size = replace(size, documents=options.documents)
    with server(options.uri) as uri:
        results = measured(uri, options.only, size)
    report.show(results, Console())
    if options.json is not None:
        options.json.write_text(report.dumped(results), encoding="utf-8")
    if options.svg is not None:
        options.svg.write_text(picture.drawn(results), encoding="utf-8")


if __name__ == "__main__":
    main()
