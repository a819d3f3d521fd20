"""Seeded schedules: a fleet of real schedulers on a real server in virtual time, with faults in front of the server.

A normal run plays ten seeds; with MONQUE_TEST_FULL=1 in the environment it is fifty, and a thousand with
MONQUE_TEST_THOROUGH=1. What befell them and what they reached is printed (pytest -rP shows it). A seed that fails is
played again, with all that happened, by `python -m tests.faults.seeded SEED`.

That the laws can be broken is shown by taking one guard at a time out of the library.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.support.thoroughly import FULL, THOROUGH, in_full
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .seeded.mutations import MUTATIONS
from .seeded.plan import drawn
from .seeded.play import played

pytestmark = pytest.mark.larger_in_full

EACH: Final = 100 if THOROUGH else in_full(10, 25)
SERIES: Final = range(0, 1000 if THOROUGH else in_full(10, 50), EACH)

FAULTS: Final = frozenset(
    {"refused", "lost", "late", "applied late", "partial", "burst", "permanent", "slow there", "slow back", "outage"}
)
STATES: Final = frozenset(
    {
        *("insert", "claim", "renew", "complete", "retry", "fail", "snooze", "release", "rescue", "give_up", "go_on"),
        *("exhausted", "cancel", "request_cancel", "cancel_claimed", "retry_again", "reschedule", "delete"),
        *("a run returned", "a run raised", "a run cancelled", "a run died", "JobClaimLost", "dies", "breaks"),
    }
)
RARE: Final = frozenset({"permanent", "breaks", "exhausted", *(() if FULL else ("retry_again",))})
"""Not in every series, where these are short."""


# Real work of a real server, beside which others may be tested.
@pytest.mark.timeout(1200 if THOROUGH else 300)
@pytest.mark.parametrize("first", SERIES)
def test_no_schedule_breaks_a_guarantee(db: Database, first: int) -> None:
    befell: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    harm: list[str] = []
    for seed in range(first, first + EACH):
        outcome = played(seed, db)
        befell += outcome.befell
        reached += outcome.reached
        if outcome.harm:
            harm += [f"python -m tests.faults.seeded {seed}", *outcome.harm]
    print(f"{EACH} schedules, from seed {first}: {dict(befell.most_common())}, {dict(reached.most_common())}")  # noqa: T201
    assert not harm, "\n".join(harm)
    missing = (FAULTS | STATES) - befell.keys() - reached.keys()
    assert missing <= (frozenset() if THOROUGH else RARE)


@pytest.mark.full
@pytest.mark.timeout(180)
def test_a_seed_is_the_same_twice_and_in_another_process(mongod: EmbeddedServer, db: Database) -> None:
    seeds = (3, 14, 40) if THOROUGH else (3, 40) if FULL else (3,)
    first = [played(seed, db) for seed in seeds]
    again = [played(seed, db) for seed in seeds]
    for one, other in zip(first, again, strict=True):
        assert one.lines == other.lines
    elsewhere = subprocess.run(
        [sys.executable, "-m", "tests.faults.seeded", "--digest", *map(str, seeds)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": "17", "MONQUE_MONGODB_URI": mongod.uri},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert elsewhere.stdout.split() == [one.digest for one in first], elsewhere.stderr
    assert len({one.digest for one in first}) == len(seeds)


def test_another_seed_is_another_schedule() -> None:
    assert len({repr(drawn(seed)).partition("horizon")[2] for seed in range(50)}) == 50


# A guard that is taken out, and within how many seeds it must be found.
MOST_TO_FIND: Final = 200
GUARDS: Final = tuple(MUTATIONS) if THOROUGH else ("a claim is guessed", "signs of life are overlooked")


@pytest.mark.full
@pytest.mark.timeout(900 if THOROUGH else 180)
@pytest.mark.parametrize("guard", GUARDS)
def test_guard_taken_out_is_found(db: Database, guard: str) -> None:
    seed, harm = 0, list[str]()
    while not harm:
        assert seed < MOST_TO_FIND
        seed += 1
        with pytest.MonkeyPatch.context() as patch:
            MUTATIONS[guard](patch)
            harm = played(seed, db).harm
    print(f"found by seed {seed}: {harm[0]}")  # noqa: T201
    assert not played(seed, db).harm  # With the guard in its place there is none.
