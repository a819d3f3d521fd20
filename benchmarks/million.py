"""What the server examines for each question, in a queue of a million jobs.

    python -m benchmarks.million [--jobs 5000000]

Starts a private server (or takes the one that MONQUE_MONGODB_URI names), fills a database of its own, asks each
question once through the public calls, and prints what the server's profiler says of it. Ends with status 1 where
an answer that does not say that it was capped cost more than itself, what runs, and a constant. For a filter that no
index serves, that constant is how far a page looks.

At the end it prints keys and documents that are examined for a claimed job, for a page, and for the counts, beside the
same in smaller collections: 20,000 jobs, and a million where there are more.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from pymongo import MongoClient

from tests.support import many_jobs
from tests.support.examined import examined
from trio_monque import JobFilter, Monque
from trio_monque.embedded import embedded_mongod
from trio_monque.jobs import CursorPage, QueueStats
from trio_monque.store.reads.queries import MOST_EXAMINED

from . import collection_sizes
from .measuring import Db, new_database

CONSTANT = 50
ON_THE_WAY = 2 * MOST_EXAMINED
MILLION = 1_000_000
SMALLER = (20_000, MILLION)
LIMIT = 50
LONGEST_COMMAND = 600.0  # Seconds: to make the indexes of five million jobs takes its time.


def questions(monque: Monque) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each order with each kind of filter, twice, so that the second page goes on behind a cursor; then the counts."""
    filters = {
        "all": JobFilter(),
        "status=failed": JobFilter(status="failed"),
        "status=completed": JobFilter(status="completed"),
        "status=processing": JobFilter(status="processing"),
        "name=rare": JobFilter(name=many_jobs.RARE_NAME),
        "name=mail status=failed": JobFilter(name="mail", status="failed"),
        "fail_reason=declined": JobFilter(status="failed", fail_reason="declined"),
    }
    for by in ("id", "created_at", "updated_at", "next_run_at"):
        for told, which in filters.items():
            cursors: list[str | None] = [None]

            def page(sort: str = f"-{by}", which: JobFilter = which, cursors: list[str | None] = cursors) -> CursorPage:
                found = monque.sync.get_jobs_with_cursor(cursor=cursors[-1], limit=LIMIT, filter=which, sort=sort)
                cursors.append(found.cursor)
                return found

            yield f"page by {by}, {told}", page
            yield f"next page by {by}, {told}", page
    yield "get_jobs", lambda: monque.sync.get_jobs()
    yield "get_jobs, status=failed", lambda: monque.sync.get_jobs(status="failed")
    yield "get_jobs, name=mail", lambda: monque.sync.get_jobs(name="mail")
    yield "counts", lambda: monque.sync.get_queue_stats()
    yield "counts, name=rare", lambda: monque.sync.get_queue_stats(name=many_jobs.RARE_NAME)
    yield "queue views", lambda: monque.sync.get_queue_view_summaries()


def is_looked_for(told: str) -> bool:
    """Whether a page has a filter that no index serves in its order: see docs/reference/indexes.md."""
    if "page by" not in told or told.endswith("all"):
        return False
    return (
        "by id" in told or "by created_at" in told or "fail_reason" in told or ("updated_at" in told and "name" in told)
    )


def size_of(answer: Any) -> int:
    """How much an answer is: jobs, or what was counted."""
    match answer:
        case CursorPage():
            return len(answer.jobs)
        case QueueStats():
            return answer.total + answer.averaged
        case _:
            return sum(size_of(one.stats) if hasattr(one, "stats") else 1 for one in answer)


def is_capped(answer: Any) -> bool:
    match answer:
        case CursorPage():
            return answer.is_capped
        case QueueStats():
            return bool(answer.capped)
        case _:
            return any(hasattr(one, "stats") and is_capped(one.stats) for one in answer)


def fill(database: Db, number: int) -> None:
    many_jobs.insert(database["monque_jobs"], number)
    Monque(database, operation_timeout=LONGEST_COMMAND).sync.enqueue("first")  # Makes the indexes.


def examine(database: Db, number: int) -> int:
    """Prints what each question costs among so many jobs; how many cost too much."""
    too_much = 0
    began = time.monotonic()
    fill(database, number)
    monque = Monque(database, stats_cache_ttl=0, operation_timeout=60)
    running = database["monque_jobs"].count_documents({"status": "processing"})
    print(f"{number} jobs, {running} of them running, in {time.monotonic() - began:.0f} s")
    print(f"{'question':48}{'answer':>9}{'keys':>9}{'documents':>10}{'ms':>8}")
    for told, ask in questions(monque):
        started = time.monotonic()
        answer, cost = examined(database, ask)
        milliseconds = 1000 * (time.monotonic() - started)
        capped = is_capped(answer)
        names = 5 if told == "queue views" else 1
        allowed = size_of(answer) + names * (2 * running + CONSTANT)
        if is_looked_for(told):
            allowed += ON_THE_WAY
        is_too_much = not capped and max(cost.keys, cost.documents) > allowed
        too_much += is_too_much
        note = "  capped" if capped else "  TOO MUCH" if is_too_much else ""
        print(f"{told:48}{size_of(answer):9}{cost.keys:9}{cost.documents:10}{milliseconds:8.0f}{note}")
    return too_much


def of_smaller_ones(client: MongoClient[dict[str, Any]], number: int) -> dict[int, collection_sizes.Costs]:
    found = {}
    for smaller in SMALLER:
        if smaller < number:
            with new_database(client) as database:
                fill(database, smaller)
                found[smaller] = collection_sizes.costs(database)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    what = "how many jobs, such as 5000000 (default: %(default)s)"
    parser.add_argument("--jobs", type=int, default=MILLION, help=what)
    number: int = parser.parse_args().jobs
    logging.getLogger("trio_monque").addHandler(logging.NullHandler())
    with embedded_mongod() as server, MongoClient[dict[str, Any]](server.uri, tz_aware=True) as client:
        with new_database(client) as database:
            too_much = examine(database, number)
            of_all = collection_sizes.costs(database)
        print()
        print(collection_sizes.table({**of_smaller_ones(client, number), number: of_all}))
    return 1 if too_much else 0


if __name__ == "__main__":
    raise SystemExit(main())
