"""What each index costs a job: the server's CPU, and the time, of its enqueue, its claim and its end.

    python -m benchmarks.indexes [--jobs 4000] [--rounds 25] [--tried]

Raw statements in the forms that the library sends, a thousand documents each, with majority writes: an insert, a
guarded `update_many` over the ids, and a fenced one. The look for due jobs is not among them: it writes nothing. The
same is done on collections with other indexes: all of ours, ours without each one, the two that no scheduler can do
without, and Monque's. These take turns, in each round in another order. CPU is what the kernel has counted for the
process of a private server; the least of all rounds is told, as whatever else a server does only adds to it. The time
is the median. With `--tried`, also other forms of our indexes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from bson import ObjectId
from pymongo import ASCENDING, IndexModel, MongoClient

from tests.support import node_peer
from trio_monque.embedded import embedded_mongod
from trio_monque.store.jobs import indexes

from . import floors
from .floors import Jobs
from .measuring import new_database

BATCH: Final = 1000
STEPS: Final = ("enqueue", "claim", "end")
ALL: Final = "all of ours"
_AT_REST: Final = ("pending", "completed", "failed", "cancelled")
_ENDED: Final = _AT_REST[1:]


def _index(*fields: str, of: Sequence[str] = (), name: str | None = None) -> IndexModel:
    keys = [(field, ASCENDING) for field in fields]
    options: dict[str, Any] = {"name": name or "_".join((*fields, *of))[:100]}
    if of:
        options["partialFilterExpression"] = {"status": of[0] if len(of) == 1 else {"$in": list(of)}}
    return IndexModel(keys, **options)


def _ours(*but: IndexModel, and_: Sequence[IndexModel] = ()) -> Sequence[IndexModel]:
    return [*(index for index in indexes.ALL if index not in but), *and_]


def sets() -> Mapping[str, Sequence[IndexModel]]:
    without = {f"without `{indexes.name_of(index)}`": _ours(index) for index in indexes.ALL}
    return {ALL: indexes.ALL, **without, "the lean two": floors.LEAN, "Monque's": node_peer.INDEXES}


def tried() -> Mapping[str, Sequence[IndexModel]]:
    """What was thought of instead, or before."""
    claim, updated = indexes.CLAIM, indexes.UPDATED
    no_tie = [
        _index("name", "status", "nextRunAt", of=_AT_REST),
        _index("nextRunAt"),
        _index("createdAt"),
        _index("status", "updatedAt", of=_AT_REST),
    ]
    changed = (claim, indexes.LISTING, indexes.CREATED, updated)
    every = [
        _index("name", "status", "nextRunAt", "_id"),
        _index("status", "updatedAt", "_id"),
    ]
    return {
        "with `{status, nextRunAt, _id}` at rest, too": _ours(and_=[_index("status", "nextRunAt", "_id", of=_AT_REST)]),
        "claim only of what is pending": _ours(claim, and_=[_index("name", "nextRunAt", "_id", of=["pending"])]),
        "updated only of what has ended": _ours(updated, and_=[_index("status", "updatedAt", "_id", of=_ENDED)]),
        "claim and updated of every status": _ours(claim, updated, and_=every),
        "without `_id` as tie-break": _ours(*changed, and_=no_tie),
        "held without its status": _ours(
            indexes.HELD, and_=[_index("claimedBy", "lockedAt", "name", of=["processing"])]
        ),
        "with `trio_monque_ended`, of retention": _ours(and_=[indexes.ENDED]),
    }


def enqueue(jobs: Jobs, ids: Sequence[ObjectId]) -> None:
    now = datetime.now(UTC)
    begin = now - timedelta(hours=1)
    jobs.insert_many(
        {
            **floors.new_document(number, begin + timedelta(milliseconds=number), now),
            "_id": one,
            "name": f"name-{number % 4}",
        }
        for number, one in enumerate(ids)
    )


def claim(jobs: Jobs, ids: Sequence[ObjectId]) -> None:
    now = datetime.now(UTC)
    guard = {"status": "pending", "nextRunAt": {"$lte": now}, "claimedBy": None, "failCount": 0}
    stamp = {"claimedBy": "benchmark", "claimToken": "token", "lockedAt": now, "lastHeartbeat": now}
    done = jobs.update_many(
        {"_id": {"$in": list(ids)}, **guard},
        {
            "$set": {"status": "processing", **stamp, "heartbeatInterval": 30_000, "updatedAt": now},
            "$inc": {"attempts": 1},
        },
        hint=floors.BY_ID,
    )
    assert done.modified_count == len(ids), "somebody else works on this collection"


def end(jobs: Jobs, ids: Sequence[ObjectId]) -> None:
    fence = {"status": "processing", "claimedBy": "benchmark", "claimToken": "token"}
    done = jobs.update_many(
        {"_id": {"$in": list(ids)}, **fence},
        {
            "$set": {"status": "completed", "updatedAt": datetime.now(UTC), "receipt": "receipt"},
            "$unset": dict.fromkeys(floors.CLAIM_FIELDS, ""),
        },
        hint=floors.BY_ID,
    )
    assert done.modified_count == len(ids), "somebody else works on this collection"


_DOING: Final[Mapping[str, Callable[[Jobs, Sequence[ObjectId]], None]]] = {
    "enqueue": enqueue,
    "claim": claim,
    "end": end,
}

Costs = Mapping[str, tuple[float, float]]
"""Of each step, microseconds a job: the server's CPU, and the time."""


def measure(jobs: Jobs, pid: int, number: int, with_indexes: Sequence[IndexModel]) -> Costs:
    jobs.drop()
    jobs.create_indexes(list(with_indexes))
    ids = [ObjectId() for _ in range(number)]
    batches = [ids[place : place + BATCH] for place in range(0, number, BATCH)]
    costs = {}
    for step in STEPS:
        cpu, began = _cpu(pid), time.perf_counter()
        for batch in batches:
            _DOING[step](jobs, batch)
        took, cpu = time.perf_counter() - began, _cpu(pid) - cpu
        costs[step] = (1e6 * cpu / number, 1e6 * took / number)
    return costs


def _cpu(pid: int) -> float:
    """Seconds that all threads of the process have used: utime and stime of /proc/<pid>/stat, to the nanosecond."""
    return time.clock_gettime((~pid << 3) | 2)  # What clock_getcpuclockid(3) gives for it.


@contextmanager
def server() -> Iterator[tuple[MongoClient[Any], int]]:
    with embedded_mongod() as private:
        if not private.members:
            raise SystemExit("the CPU of a server elsewhere cannot be read: leave MONQUE_MONGODB_URI out")
        with MongoClient[Any](private.uri, tz_aware=True) as client:
            yield client, private.members[0].pid


def table(found: Mapping[str, Sequence[Costs]]) -> Iterator[str]:
    yield "| Indexes | enqueue | claim | end | claim and end | to all of ours | time of all three |"
    yield "|---|---|---|---|---|---|---|"
    least = {told: {step: min(costs[step][0] for costs in rounds) for step in STEPS} for told, rounds in found.items()}
    for told, rounds in found.items():
        run, ours = (one["claim"] + one["end"] for one in (least[told], least[ALL]))
        took = statistics.median(sum(time for _, time in costs.values()) for costs in rounds)
        steps = " | ".join(f"{least[told][step]:.1f}" for step in STEPS)
        yield f"| {told} | {steps} | {run:.1f} | {run - ours:+.1f} | {took:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=4000, help="how many jobs a set and round (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=25, help="how many rounds (default: %(default)s)")
    parser.add_argument("--tried", action="store_true", help="other forms of our indexes, too")
    options = parser.parse_args()
    measured = {**sets(), **(tried() if options.tried else {})}
    found: dict[str, list[Costs]] = defaultdict(list)
    with server() as (client, pid), new_database(client) as database:
        jobs = floors.jobs_of(database)
        measure(jobs, pid, options.jobs, indexes.ALL)  # The first is dearer: files, and pages of the cache.
        for _ in range(options.rounds):
            for told in random.sample(list(measured), len(measured)):
                found[told].append(measure(jobs, pid, options.jobs, measured[told]))
    print("The server's CPU, and the time: microseconds a job.")
    print("\n".join(table({told: found[told] for told in measured})))


if __name__ == "__main__":
    main()
