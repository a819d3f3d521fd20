"""When candidates come from all over the head of the queue, and from where. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from tests.support.thoroughly import one_in
from trio_monque.engine.contention import (
    FURTHEST,
    HEAD_EVERY,
    LEAST_BATCHES,
    MOST_BATCHES,
    QUIET_TO_RETURN,
    Contention,
)

WANTED = {"a": 10}


def contended(seed: int = 1) -> Contention:
    contention = Contention(random.Random(seed).randrange)
    for _ in range(2):
        contention.passed_over(WANTED)
        contention.took(10, 4)
    assert contention.is_spread
    return contention


def test_alone_it_looks_at_the_head() -> None:
    contention = Contention()
    for _ in range(1000):
        assert contention.passed_over(WANTED) == {}
        contention.took(10, 10)
    assert (contention.tried, contention.won) == (10_000, 10_000)


def test_two_takes_in_a_row_that_mostly_failed_are_needed() -> None:
    contention = Contention()
    spread = []
    for won in (4, 5, 4, 9, 4, 4):
        contention.took(10, won)
        spread.append(contention.is_spread)
    assert spread == [False] * 5 + [True]


def test_where_all_was_seen_that_there_is_nothing_else_is_looked_for() -> None:
    contention = Contention()
    for _ in range(10):
        contention.took(1, 0, is_all=True)
    assert not contention.is_spread


def test_after_a_time_without_a_loss_it_returns_to_the_head() -> None:
    contention = contended()
    for _ in range(QUIET_TO_RETURN - 1):
        contention.took(10, 10)
    contention.took(10, 9)
    spread_after = []
    for _ in range(QUIET_TO_RETURN):
        contention.took(10, 10)
        spread_after.append(contention.is_spread)
    assert spread_after == [True] * (QUIET_TO_RETURN - 1) + [False]
    assert contention.passed_over(WANTED) == {}


def offsets(contention: Contention, wanted: dict[str, int], looks: int) -> Sequence[int]:
    found = []
    for _ in range(looks):
        found.append(contention.passed_over(wanted).get("a", 0))
        contention.looked(full=["a"])
        contention.took(10, 9)
    return found


@pytest.mark.parametrize("slots", [1, 10, 100, 150, 1000])
def test_whole_batches_are_passed_over_at_least_32_and_the_first_is_hit_as_often_as_any(slots: int) -> None:
    looks = 64 * 200
    found = offsets(contended(), {"a": slots}, looks)
    batches = sorted({offset // slots for offset in found})
    assert all(offset % slots == 0 for offset in found)
    assert batches == list(range(len(batches)))
    assert LEAST_BATCHES <= len(batches) <= MOST_BATCHES
    assert max(found) < max(FURTHEST, LEAST_BATCHES * slots)
    by_draw = looks * (1 - 1 / HEAD_EVERY) / len(batches)
    assert found.count(slots) > by_draw / 2
    assert found.count(0) > looks / HEAD_EVERY + by_draw / 2


def test_looks_start_at_the_head_regularly_for_any_draw() -> None:
    contention = Contention(lambda below: below - 1)
    for _ in range(2):
        contention.took(10, 0)
    found = offsets(contention, WANTED, 10 * HEAD_EVERY)
    assert [place % HEAD_EVERY for place, offset in enumerate(found) if offset == 0] == [found.index(0)] * 10


def test_group_that_is_too_short_is_looked_at_where_it_still_has_something() -> None:
    contention = Contention(lambda below: below - 1)
    for _ in range(2):
        contention.took(10, 0)
    wanted, holds = {"a": 10, "b": 10}, {"a": 10_000, "b": 35}
    further: list[int] = []
    for _ in range(200):
        passed = contention.passed_over(wanted)
        if not passed:
            continue  # The look at the head.
        short = [group for group, count in passed.items() if count + 10 > holds[group]]
        full = [group for group in wanted if holds[group] >= 10]
        contention.looked(full=full, short=short)
        contention.took(20, 19)
        further.append(passed.get("b", 0))
        assert passed["a"] == 630  # The long group is not held to the depth of the short one.
    # It goes down at once and forgets nothing that it has learnt but by and by.
    assert further[0] == 630
    assert max(further[100:]) <= 60


def simulated(instances: int, jobs: int, seed: int) -> tuple[list[int], float, int]:
    """All look, then all take: the worst that can be. Who got how many, what was lost, and the longest wait."""
    chance = random.Random(seed)
    queue, won = list(range(jobs)), [0] * instances
    players = [Contention(chance.randrange) for _ in range(instances)]
    arrived_at_head: dict[int, int] = {}
    longest, rounds = 0, 0
    while len(queue) > 70 * 10 * 2:
        arrived_at_head.setdefault(queue[0], rounds)
        seen = []
        for player in players:
            offset = player.passed_over(WANTED).get("a", 0)
            seen.append(queue[offset : offset + 10])
        taken: set[int] = set()
        for number in chance.sample(range(instances), instances):
            mine = [job for job in seen[number] if job not in taken]
            taken.update(mine)
            won[number] += len(mine)
            players[number].took(len(seen[number]), len(mine))
        longest = max([longest, *(rounds - arrived_at_head[job] for job in taken if job in arrived_at_head)])
        queue = [job for job in queue if job not in taken]
        rounds += 1
    lost = 1 - sum(won) / sum(player.tried for player in players)
    return won, lost, longest


@pytest.mark.full
@pytest.mark.parametrize("seed", range(5))
def test_eight_that_look_at_the_same_instant_lose_at_most_a_fifth(seed: int) -> None:
    won, lost, longest = simulated(8, 40_000, seed)
    assert lost < 0.2
    # A share of 12.5 %, of some 5,000 batches: the standard deviation is half of one per cent.
    assert all(0.10 < one / sum(won) < 0.15 for one in won)
    # One instance takes the very first of the queue within HEAD_EVERY looks.
    assert longest <= HEAD_EVERY


@pytest.mark.parametrize("seed", one_in(5, range(5)))
def test_four_that_look_at_the_same_instant_get_a_quarter_each(seed: int) -> None:
    won, lost, _ = simulated(4, 40_000, seed)
    assert lost < 0.12
    assert all(0.22 < one / sum(won) < 0.28 for one in won)
