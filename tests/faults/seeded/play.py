"""From a seed to its outcome."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from trio_monque.store.driver.types import Database
from trio_monque.testing import run_virtual

from .evidence import Evidence
from .history import recorded
from .oracle import account_of, harm_in
from .plan import drawn
from .world import World

START = datetime(2030, 1, 1, 12, 0, 20, tzinfo=UTC)


@dataclass
class Outcome:
    """Attributes:
    harm: What was wrong.
    befell: How often which fault befell a call.
    reached: How often the server made which change, and how runs ended.
    digest: Of all that was written down: the same seed has the same.
    lines: What that is the digest of.
    """

    seed: int
    harm: list[str]
    befell: Counter[str]
    reached: Counter[str]
    digest: str
    lines: list[object]


@contextmanager
def _in_silence() -> Iterator[None]:
    """Everything that is logged here was meant to happen."""
    logger = logging.getLogger("trio_monque")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


def played(seed: int, db: Database) -> Outcome:
    """Plays the seed on the collection, which is emptied before."""
    jobs = db["monque_jobs"]
    jobs.delete_many({})
    db[f"{jobs.name}.instances"].delete_many({})
    plan = drawn(seed)
    with _in_silence(), recorded(jobs) as history:

        async def play() -> World:
            world = World(plan, db)
            await world.play()
            return world

        world = run_virtual(play, start=START, deterministic=True, seed=seed)
    evidence = Evidence(world.played, history.changes)
    lines = account_of(world.played, history.changes)
    reached = Counter(step.name for step in evidence.steps)
    reached.update(f"a run {run.outcome.partition(' ')[0]}" for run in evidence.runs.values())
    reached.update(one.what for one in world.played.records if one.what in ("JobClaimLost", "dies", "breaks"))
    digest = hashlib.sha256(repr(lines).encode()).hexdigest()
    return Outcome(seed, harm_in(evidence), world.network.befell, reached, digest, lines)
