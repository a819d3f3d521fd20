"""C: documents of a plain collection, claimed by `run_claims` and finished, beside as many jobs with the same slots."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import trio

from trio_monque import Claim, run_claims
from trio_monque.claims import create_claim_index

from .measuring import Bench, Db, Processor
from .report import Comparison, Figure
from .throughput import TIMEOUT, counted_as, one_process
from .variants import PLAIN, VARIANTS, Variant

SLOTS = 100
OF_JOBS = 0.8
WANTED = {"done": False}
RECEIVED = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How documents are finished, and the jobs beside them.

    Attributes:
        what: For people.
        update: What a document is finished with.
        jobs, beside: The jobs, and what they are called.
    """

    what: str
    update: Callable[[Claim[Any]], dict[str, Any]]
    jobs: Variant
    beside: str


def _same(_: Claim[Any]) -> dict[str, Any]:
    return {"$set": {"done": True}}


def _its_own(claim: Claim[Any]) -> dict[str, Any]:
    return {"$set": {"done": True, "result": {"i": claim.document["i"]}}}


KINDS = {
    "same": Kind(what="each finished with the same update", update=_same, jobs=PLAIN, beside="jobs"),
    "own": Kind(
        what="each finished with a result of its own",
        update=_its_own,
        jobs=VARIANTS["results"],
        beside="jobs with stored results",
    ),
}


def measure(bench: Bench) -> list[Figure]:
    processor = Processor(bench)
    measures: dict[str, Callable[[], float]] = {}
    for name, kind in KINDS.items():
        # What is compared stands near each other.
        measures[f"jobs {name}"] = partial(one_process, bench, processor, SLOTS, kind.jobs)
        measures[f"C.{name}"] = partial(_documents, bench, processor, name, kind)
    found = bench.in_turns(measures)
    return [figure for name, kind in KINDS.items() for figure in _figures(name, kind, found, processor)]


def _figures(name: str, kind: Kind, found: dict[str, list[float]], processor: Processor) -> Iterator[Figure]:
    what, key = f"{SLOTS} slots, documents, {kind.what}", f"C.{name}"
    beside = Comparison(floor=kind.beside, values=found[f"jobs {name}"], at_least=OF_JOBS)
    yield Figure(part="C", key=key, what=what, unit="a second", values=found[key], floors=[beside])
    # They depend less than the speed on what else the machine does.
    for side, used in {"client": processor.of_client, "server": processor.of_server}.items():
        yield Figure(
            part="C",
            key=f"{key} processor of the {side}",
            what=f"{what}: processor of the {side}",
            unit="µs each",
            values=used[key],
            floors=[Comparison(floor=kind.beside, values=used[counted_as(SLOTS, kind.jobs)])],
        )


def _message(number: int) -> dict[str, Any]:
    """What somebody has already: about as large as a job."""
    return {
        "i": number,
        "from": f"customer-{number}@example.com",
        "address": f"{number} Station Road, Millbrook",
        "subject": "Where is the next branch?",
        "received": RECEIVED,
        "done": False,
    }


def _documents(bench: Bench, processor: Processor, name: str, kind: Kind) -> float:
    number = bench.size.jobs
    with bench.database() as database:
        database["documents"].insert_many([_message(one) for one in range(number)], ordered=False)
        trio.run(create_claim_index, database["documents"], WANTED)
        took = trio.run(_work_through, database, number, kind, processor.counted(f"C.{name}", number))
        done = database["documents"].count_documents({"done": True, "lock": None})
    assert done == number, done
    return number / took


class Handler:
    """What is run, and when the result of each document has been acknowledged."""

    def __init__(self, number: int, kind: Kind) -> None:
        self.all_done = trio.Event()
        self._left = number
        self._update = kind.update

    async def finish(self, claim: Claim[Any]) -> None:
        await claim.finish(self._update(claim))
        self._left -= 1
        if not self._left:
            self.all_done.set()


async def _work_through(db: Db, number: int, kind: Kind, counted: AbstractContextManager[None]) -> float:
    """Seconds until the server has acknowledged the last result; the start is a part of it."""
    handler = Handler(number, kind)
    async with trio.open_nursery() as nursery:
        with trio.fail_after(TIMEOUT), counted:
            begun = time.perf_counter()
            claims = await nursery.start(
                partial(run_claims, db["documents"], WANTED, handler.finish, concurrency=SLOTS)
            )
            await handler.all_done.wait()
            took = time.perf_counter() - begun
        claims.drain()
    return took
