"""Several processes under one deep backlog: the share of each, and how many candidates were lost to others.

    python -m benchmarks.contention --processes 4 --jobs 4000

Prints a table, or with `--json` one line. Everything is counted, nothing but the throughput is timed. The
processes have loaded before the first of them may claim.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import trio
from pymongo import MongoClient

from trio_monque import Monque, NewJob, RunningJob, Workers, open_scheduler
from trio_monque.embedded import embedded_mongod

REPOSITORY = Path(__file__).parents[1]
NAME = "work"


# --- One process ---


async def work(uri: str, database: str, concurrency: int, seconds: float, *, head_only: bool) -> None:
    """Says when it is ready, begins and ends when it is told to, and says what it did."""
    runs = 0

    async def handler(job: RunningJob[Any]) -> None:
        nonlocal runs
        await trio.sleep(seconds)
        runs += 1

    with MongoClient[Any](uri, tz_aware=True) as client:
        async with open_scheduler(client[database], Workers()) as scheduler:
            contention = scheduler._source.claims.contention
            if head_only:
                contention.took = lambda tried, won, **_: _count(contention, tried, won)  # type: ignore[method-assign]
            print("ready", flush=True)
            await trio.to_thread.run_sync(sys.stdin.readline)
            scheduler.register(NAME, handler, concurrency=concurrency)
            await trio.to_thread.run_sync(sys.stdin.readline)
        print(json.dumps({"runs": runs, "tried": contention.tried, "won": contention.won}), flush=True)


def _count(contention: Any, tried: int, won: int) -> None:
    contention.tried += tried
    contention.won += won


# --- All of them ---


@contextmanager
def process(arguments: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """One of them; killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.contention", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            yield started
        finally:
            started.kill()


def say(one: subprocess.Popen[str]) -> None:
    assert one.stdin is not None
    one.stdin.write("\n")
    one.stdin.flush()


def hear(one: subprocess.Popen[str]) -> str:
    assert one.stdout is not None
    return one.stdout.readline()


def measure(uri: str, options: argparse.Namespace) -> dict[str, Any]:
    """What they did, each by itself and together."""
    database = f"monque_benchmark_{secrets.token_hex(4)}"
    order = ["--work-on", uri, database, "--concurrency", str(options.concurrency), "--seconds", str(options.seconds)]
    if options.head_only:
        order.append("--head-only")
    with MongoClient[Any](uri, tz_aware=True) as client, ExitStack() as stack:
        stack.callback(client.drop_database, database)
        processes = [stack.enter_context(process(order)) for _ in range(options.processes)]
        Monque(client[database]).sync.enqueue_many([NewJob(name=NAME)] * options.jobs)
        for one in processes:
            assert hear(one) == "ready\n", "a process has ended"
        begun = time.monotonic()
        for one in processes:
            say(one)
        jobs = client[database]["monque_jobs"]
        while jobs.count_documents({"status": {"$in": ["pending", "processing"]}}, limit=1):
            assert all(one.poll() is None for one in processes), "a process has ended"
            time.sleep(0.02)
        took = time.monotonic() - begun
        for one in processes:
            say(one)
        each = [json.loads(hear(one)) for one in processes]
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
    parser.add_argument("--work-on", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work_on:
        uri, database = options.work_on
        trio.run(lambda: work(uri, database, options.concurrency, options.seconds, head_only=options.head_only))
        return
    with embedded_mongod() as server:  # The one that MONQUE_MONGODB_URI names, where it names one.
        found = measure(server.uri, options)
    print(json.dumps(found) if options.json else table(found))


if __name__ == "__main__":
    main()
