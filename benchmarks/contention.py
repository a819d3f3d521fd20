"""Several processes under one deep backlog: the share of each, and how many candidates were lost to others.

    python -m benchmarks.contention --processes 4 --jobs 4000

Prints a table, or with `--json` one line. Everything is counted, nothing but the throughput is timed. The
processes have loaded before the first of them may claim.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

from pymongo import MongoClient

from trio_monque import Monque, NewJob
from trio_monque.embedded import embedded_mongod

from .measuring import NAME, new_database
from .processes import Child, child, worked_off


def measure(uri: str, options: argparse.Namespace) -> dict[str, Any]:
    with ExitStack() as stack:
        client = stack.enter_context(MongoClient[dict[str, Any]](uri, tz_aware=True))
        workers = [stack.enter_context(child("workers", uri)) for _ in range(options.processes)]
        asked = {"concurrency": options.concurrency, "seconds": options.seconds, "head_only": options.head_only}
        return shared(client, workers, options.jobs, **asked)


def shared(client: MongoClient[dict[str, Any]], workers: Sequence[Child], jobs: int, **asked: object) -> dict[str, Any]:
    """What these did with a backlog of so many `jobs`, each by itself and together."""
    with new_database(client) as database:
        Monque(database).sync.enqueue_many([NewJob(name=NAME)] * jobs)
        took, each = worked_off(workers, database, **asked)
    tried, won, runs = (sum(one[what] for one in each) for what in ("tried", "won", "runs"))
    return {
        "processes": each,
        "runs": runs,
        "shares": [round(one["runs"] / runs, 4) for one in each],
        "lost": round(1 - won / tried, 4),
        "jobs a second": round(runs / took),
    }


def table(found: dict[str, Any]) -> str:
    lines = ["process   share   candidates lost"]
    for number, (one, share) in enumerate(zip(found["processes"], found["shares"], strict=True), 1):
        lines.append(f"{number:7}  {share:6.1%}  {1 - one['won'] / max(1, one['tried']):16.1%}")
    lines.append(f"    all          {found['lost']:16.1%}   {found['jobs a second']} jobs a second")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=4000)
    parser.add_argument("--concurrency", type=int, default=10, help="slots of each process")
    parser.add_argument("--seconds", type=float, default=0.0, help="how long each job takes")
    parser.add_argument("--head-only", action="store_true", help="without the library's answer to contention")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with embedded_mongod() as server:  # The one that MONQUE_MONGODB_URI names, where it names one.
        found = measure(server.uri, options)
    print(json.dumps(found) if options.json else table(found))


if __name__ == "__main__":
    main()
