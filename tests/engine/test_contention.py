"""When candidates come from behind the head of the queue, and from where. Pure."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.support.thoroughly import one_in
from trio_monque.engine.contention import (
    FURTHEST,
    LEAST_PLACES,
    LEAST_SHARE,
    MOST_PLACES,
    MOST_QUIET_TO_RETURN,
    QUIET_TO_RETURN,
    READS_APART,
    SECONDS_TO_HEAD,
    SHARES,
    Contention,
)

READS = {"a": 10}


def the_last(below: int) -> int:
    return below - 1


def contended(contention: Contention) -> Contention:
    """With a place of its own, and after its first look there."""
    contention.took(10, 4)
    assert contention.is_spread
    contention.passed_over(READS, 0.0)
    return contention


def test_alone_it_looks_at_the_head() -> None:
    contention = Contention()
    for second in range(1000):
        assert contention.passed_over(READS, second) == {}
        contention.took(10, 10)
    assert (contention.tried, contention.won) == (10_000, 10_000)


@pytest.mark.parametrize(("won", "is_spread"), [(4, True), (5, False), (9, False)])
def test_one_take_that_mostly_failed_is_enough(won: int, is_spread: bool) -> None:
    contention = Contention(the_last)
    contention.took(10, won)
    assert contention.is_spread == is_spread
    assert bool(contention.passed_over(READS, 0.0)) == is_spread  # Not at the head, where it has just lost.


def test_where_all_was_seen_that_there_is_nothing_else_is_looked_for() -> None:
    contention = Contention()
    for _ in range(10):
        contention.took(1, 0, is_all=True)
    assert not contention.is_spread


def test_place_is_kept_while_it_goes_well_and_another_one_is_drawn_when_it_does_not() -> None:
    draws = iter([0, 2, 6])  # The first one is for the moment of its look at the head.
    contention = contended(Contention(lambda below: next(draws)))
    place = contention.passed_over(READS, 0.1)["a"]
    # Whatever the number that it reads: what others have ahead of them does not change with it.
    for reads, won in ((10, 10), (400, 400), (7, 7), (100, 50)):
        assert contention.passed_over({"a": reads}, 0.2) == {"a": place}
        contention.took(reads, won)
    contention.took(10, 4)
    assert contention.passed_over(READS, 0.3) == {"a": place // 3 * 7}


def test_after_a_time_without_a_loss_it_returns_to_the_head_and_later_each_time_that_others_are_still_there() -> None:
    contention, needed = Contention(the_last), []
    for _ in range(5):
        contended(contention)
        contention.took(10, 9)
        takes = 0
        while contention.is_spread:
            contention.took(10, 10)
            takes += 1
        assert contention.passed_over(READS, 0.0) == {}
        needed.append(takes)
    assert needed == [QUIET_TO_RETURN * factor for factor in (1, 2, 4, 8, 8)]
    assert needed[-1] == MOST_QUIET_TO_RETURN
    for _ in range(QUIET_TO_RETURN):  # At the head, too: the others are gone.
        contention.took(10, 10)
    contended(contention)
    for _ in range(QUIET_TO_RETURN):
        contention.took(10, 10)
    assert not contention.is_spread


@pytest.mark.parametrize("reads", [1, 10, 100, 150, 1000])
def test_places_are_some_reads_apart_and_not_too_far_from_the_head(reads: int) -> None:
    contention, places = Contention(random.Random(1).randrange), set[int]()
    for _ in range(2000):
        contention.took(10, 0)
        places.add(contention.passed_over({"a": reads}, 0.0).get("a", 0))
    assert LEAST_PLACES - 1 <= len(places) <= MOST_PLACES
    in_order = sorted(places)
    apart = {later - before for before, later in pairwise([0, *in_order])}  # None is at the head.
    assert len(apart) == 1
    assert apart.pop() >= READS_APART * reads
    assert in_order[-1] < max(FURTHEST, LEAST_PLACES * 2 * READS_APART * reads)


def test_one_look_in_two_seconds_is_at_the_head() -> None:
    contention = contended(Contention(lambda below: below // 2))
    at_head = [tick / 10 for tick in range(100) if not contention.passed_over(READS, tick / 10)]
    assert at_head == [SECONDS_TO_HEAD * (number + 0.5) for number in range(5)]


def test_instances_that_lose_at_the_same_moment_look_at_the_head_at_different_ones() -> None:
    chance, ticks = random.Random(1), range(1, 40)
    at_head = []
    for _ in range(4):
        contention = contended(Contention(chance.randrange))
        at_head.append({tick for tick in ticks if not contention.passed_over(READS, tick / 10)})
    assert all(at_head)
    assert len(set.union(*at_head)) == sum(map(len, at_head))


def test_of_few_items_a_look_reads_a_part_only_while_others_take_them_too() -> None:
    contention, ahead = Contention(the_last), {"a": 400, "b": 400, "c": 4}
    assert contention.reads(ahead) == ahead
    contended(contention)
    assert contention.reads(ahead) == ahead
    place = contention.passed_over({"a": 400}, 0.0)["a"]
    contention.looked({"a": place}, {"a": 400}, full=["a"], short=["a"])
    of_c = contention.passed_over({"c": 4}, 0.0)
    contention.looked(of_c, {"c": 4}, full=["c"], short=["c"])
    assert contention.reads(ahead) == {"a": max(LEAST_SHARE, place // SHARES), "b": 400, "c": 4}
    contention.looked(contention.passed_over({"b": 400}, 0.0), {"b": 0}, short=["b"])  # Nothing is left of this one.
    assert contention.reads({"b": 400}) == {"b": LEAST_SHARE}
    for _ in range(80):  # There are more again.
        contention.looked({}, {"a": 8, "b": 8}, full=["a", "b"])
    assert contention.reads(ahead) == ahead
    for _ in range(QUIET_TO_RETURN):
        contention.took(10, 10)
    assert not contention.is_spread
    contention.looked({"a": place}, {"a": 3}, short=["a"])
    assert contention.reads(ahead) == ahead


def test_end_of_one_backlog_does_not_limit_the_looks_at_the_next_one() -> None:
    contention, ahead = contended(Contention(the_last)), {"a": 400}
    place = contention.passed_over(ahead, 0.0)["a"]
    contention.looked({"a": place}, {"a": 3}, short=["a"])
    assert contention.reads(ahead) == {"a": LEAST_SHARE}
    at_head = contention.passed_over({"a": LEAST_SHARE}, 0.0)
    assert at_head == {}
    contention.looked(at_head, {"a": 2}, full=["a"])  # Not more than there were.
    assert contention.reads(ahead) == {"a": LEAST_SHARE}
    contention.looked(at_head, {"a": 100}, full=["a"])
    assert contention.reads(ahead) == ahead
    assert contention.passed_over(ahead, 0.0)["a"] > 100


def test_group_that_is_too_short_is_looked_at_where_it_still_has_something() -> None:
    contention = contended(Contention(random.Random(1).randrange))
    reads, holds = {"a": 10, "b": 10}, {"a": 100_000, "b": 350}
    of_a, of_b = list[int](), list[int]()
    for _ in range(30):
        passed = contention.passed_over(reads, 0.0)
        short = [group for group, count in passed.items() if count + 10 > holds[group]]
        full = [group for group in reads if holds[group] >= 10]
        contention.looked(passed, {group: min(10, holds[group]) for group in reads}, full=full, short=short)
        contention.took(20, 0 if short else 20)
        of_a.append(passed.get("a", 0))
        of_b.append(passed.get("b", 0))
    assert max(of_a) > 2000  # The long group is not held to the depth of the short one.
    assert sum(place + 10 <= holds["b"] for place in of_b[10:]) >= 10


def test_few_items_have_places_that_are_near_to_each_other() -> None:
    chance = random.Random(1)
    contention = Contention(lambda below: below - 1 if chooses_the_last else chance.randrange(below))
    chooses_the_last = True
    reads = {"a": 100}
    contention.took(100, 0)
    depth = contention.passed_over(reads, 0.0)["a"]
    contention.looked({"a": depth}, {"a": 100}, full=["a"], short=["a"])  # It has no more than that.
    chooses_the_last = False
    places = set[int]()
    for _ in range(2000):
        contention.took(100, 0)
        places.add(contention.passed_over(reads, 0.0)["a"])
    assert max(places) < depth
    assert {later - before for before, later in pairwise(sorted(places))} == {reads["a"]}
    assert len(places) > depth // reads["a"] // 2


def simulated(instances: int, jobs: int, seed: int) -> tuple[list[int], float, float]:
    """All look, then all take: the worst that can be. Who got how many, what was lost, and the longest wait."""
    chance = random.Random(seed)
    queue, won = list(range(jobs)), [0] * instances
    players = [Contention(chance.randrange) for _ in range(instances)]
    arrived_at_head: dict[int, float] = {}
    longest = now = 0.0
    while len(queue) > 64 * MOST_PLACES:
        arrived_at_head.setdefault(queue[0], now)
        seen = []
        for player in players:
            offset = player.passed_over(READS, now).get("a", 0)
            seen.append(queue[offset : offset + 10])
        taken: set[int] = set()
        for number in chance.sample(range(instances), instances):
            mine = [job for job in seen[number] if job not in taken]
            taken.update(mine)
            won[number] += len(mine)
            players[number].took(len(seen[number]), len(mine))
        longest = max([longest, *(now - arrived_at_head[job] for job in taken if job in arrived_at_head)])
        queue = [job for job in queue if job not in taken]
        now += 0.02
    lost = 1 - sum(won) / sum(player.tried for player in players)
    return won, lost, longest


@pytest.mark.full
@pytest.mark.parametrize(("instances", "most"), [(4, 0.03), (8, 0.05), (20, 0.1)])
@pytest.mark.parametrize("seed", one_in(5, range(5)))
def test_instances_that_look_at_the_same_instant_lose_next_to_nothing(instances: int, most: float, seed: int) -> None:
    won, lost, longest = simulated(instances, 40_000, seed)
    assert lost < most
    assert all(0.8 < one * instances / sum(won) < 1.2 for one in won)
    # One instance takes the very first of the queue so soon.
    assert longest <= SECONDS_TO_HEAD + 0.02
