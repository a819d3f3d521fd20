"""What the server examines for a claimed job, a page of jobs and the counts, in collections of several sizes.

A part of `python -m benchmarks.million`, which has filled these collections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tests.support.examined import examined
from trio_monque import JobFilter, Monque, NewJob

from .claim_cost import Examined, examined_a_job, run_all
from .measuring import NAME, Db

DUE = 1_000
PAGE = 50
FAILED = JobFilter(status="failed")

Costs = Mapping[str, Examined]


def costs(database: Db) -> Costs:
    """By the name for people. Adds jobs of the benchmarks' own name to the database, and runs them."""
    # Uncapped counts of five million take longer than the default.
    monque = Monque(database, stats_cache_ttl=0, operation_timeout=60)
    page = partial(monque.sync.get_jobs_with_cursor, limit=PAGE)
    questions: dict[str, Callable[[], Any]] = {
        f"a page of {PAGE} jobs": page,
        f"a page of {PAGE} failed jobs, by updated_at": partial(page, filter=FAILED, sort="-updated_at"),
        "get_queue_stats": monque.sync.get_queue_stats,
        "get_queue_view_summaries": monque.sync.get_queue_view_summaries,
    }
    found = {"a claimed job": _of_a_claimed_job(database, monque)}
    for name, ask in questions.items():
        _, cost = examined(database, ask)
        found[name] = Examined(cost.keys, cost.documents)
    return found


def _of_a_claimed_job(database: Db, monque: Monque) -> Examined:
    monque.sync.enqueue_many([NewJob(name=NAME)] * DUE)
    # The running jobs of this collection have been left by dead instances: to rescue them is another cost.
    return examined_a_job(database, DUE, partial(run_all, recover_stale_jobs=False))


def table(by_size: Mapping[int, Costs]) -> str:
    """Keys and documents, with a column for each size."""
    heads = "".join(f"{number:>24,}" for number in by_size)
    lines = [f"{'keys and documents examined for':40}{heads}"]
    for name in next(iter(by_size.values())):
        of_each = [by_size[number][name] for number in by_size]
        lines.append(f"{name:40}" + "".join(f"{_number(one.keys):>12}{_number(one.documents):>12}" for one in of_each))
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
