"""When claims look, and what they choose: one look at a time, and none for what is known. Without a database."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
import trio
from trio.testing import MockClock

from trio_monque.engine.candidates import Candidates
from trio_monque.engine.contention import LEAST_SHARE, SECONDS_TO_HEAD, Contention
from trio_monque.engine.demand import Demand, FoundItems, Reading
from trio_monque.engine.prefetch import KEPT_FOR

Item = tuple[str, int]

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LOOK = 0.01
"""Seconds that a look takes."""


@dataclass
class Queue:
    """Items of several groups, and who looks for them."""

    items: list[Item]
    closed: set[str] = field(default_factory=set)
    is_known: bool = True
    looks: list[tuple[Mapping[str, int], Mapping[str, int]]] = field(default_factory=list)
    reach: list[tuple[int, Set[Hashable]]] = field(default_factory=list)
    fault: Exception | None = None

    @staticmethod
    def key_of(item: Item) -> Hashable:
        return item

    @staticmethod
    def group_of(item: Item) -> str:
        return item[0]

    def groups(self, demand: Demand) -> Mapping[str, int]:
        closed = self.closed if self.is_known else set()
        return {group: count for group, count in demand.groups.items() if group not in closed}

    def priority_of(self, group: str) -> int:
        return 0

    def accepts(self, demand: Demand) -> Callable[[Item], bool] | None:
        return None if demand.suspects else lambda item: item[1] % 2 == 0

    def choose(self, found: Sequence[Item], demand: Demand) -> Sequence[Item]:
        return found[: demand.total]

    async def look(self, reading: Reading, demand: Demand, now: datetime) -> FoundItems[Item]:
        wanted, passed_over = reading.wanted, reading.passed_over
        self.looks.append((wanted, passed_over))
        self.reach.append((reading.enough, reading.in_flight))
        there = list(self.items)
        await trio.sleep(LOOK)
        if self.fault is not None:
            raise self.fault
        self.is_known = True
        asked = wanted.keys() - self.closed
        by_group = {group: [item for item in there if item[0] == group] for group in asked}
        short = {group for group, most in passed_over.items() if len(by_group[group]) < most + wanted[group]}
        first = {group: passed_over.get(group, 0) if group not in short else 0 for group in asked}
        items = [
            item for group in sorted(asked) for item in by_group[group][first[group] : first[group] + wanted[group]]
        ]
        exhausted = {group for group in asked if len(by_group[group]) < first[group] + wanted[group]}
        return FoundItems(items, asked, exhausted, short, is_whole=demand.suspects > 0)


def group(name: str, count: int) -> list[Item]:
    return [(name, number) for number in range(count)]


def demand(total: int, *groups: str, force_look: bool = False, suspects: int = 1) -> Demand:
    return Demand(total, dict.fromkeys(groups or ("a",), total), suspects, capacity=total, force_look=force_look)


async def test_what_was_read_ahead_is_chosen_without_a_look_and_nothing_twice(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 50))
    candidates = Candidates(queue)
    chosen: list[Item] = []
    for _ in range(5):
        batch = await candidates.choose(demand(5), NOW)
        assert candidates.may_be_more(demand(5), ()) == (len(chosen) < 5)
        with candidates.asking_for(batch) as answer:
            chosen += batch
            del queue.items[:5]
            answer.won = 5
    assert chosen == group("a", 25)
    assert len(queue.looks) == 2  # The first one did not know that there was more than it was asked for.


async def test_two_claims_at_once_share_a_look_and_choose_others(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 50))
    candidates = Candidates(queue)
    with candidates.asking_for(await candidates.choose(demand(5), NOW)) as answer:
        answer.won = 5
    del queue.items[:5]
    queue.looks.clear()
    chosen: list[Item] = []

    async def claim() -> None:
        batch = await candidates.choose(demand(5), NOW)
        chosen.extend(batch)
        with candidates.asking_for(batch) as answer:
            await trio.sleep(1)
            answer.won = 5

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim)
        nursery.start_soon(claim)
    assert sorted(chosen) == sorted(queue.items[:10])
    assert len(queue.looks) == 1


async def test_look_has_enough_with_what_can_start_beside_what_claims_in_flight_have(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 50))
    candidates = Candidates(queue)
    batch = await candidates.choose(demand(5), NOW)
    with candidates.asking_for(batch) as answer:
        await candidates.choose(demand(3, force_look=True), NOW)
        answer.won = 5
    assert queue.reach == [(5, set()), (3, set(batch))]


async def test_on_a_slow_server_candidates_live_as_long_as_two_claims_take(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 400))
    candidates = Candidates(queue)
    for number, seconds in enumerate((0.3, 0.3, 0.3, 0.01, 0.01)):
        batch = await candidates.choose(demand(5), NOW)
        with candidates.asking_for(batch) as answer:
            await trio.sleep(seconds)
            del queue.items[:5]
            answer.won = 5
        if number == 2:
            assert len(queue.looks) == 2  # The first one did not know that there is more.
    before = len(queue.looks)
    await trio.sleep(KEPT_FOR)
    await candidates.choose(demand(5), NOW)
    assert len(queue.looks) == before + 1  # Claims are fast again, and these candidates too old.


async def test_claim_with_force_look_looks_again_right_after_another_look(
    autojump_clock: MockClock,
) -> None:
    queue = Queue(group("a", 2))
    candidates = Candidates(queue)
    chosen: list[Sequence[Item]] = []

    async def claim(reported: bool) -> None:
        chosen.append(await candidates.choose(demand(9, force_look=reported), NOW))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(claim, False)
        await trio.sleep(LOOK / 2)
        queue.items.append(("a", 2))
        nursery.start_soon(claim, True)
    assert chosen == [group("a", 2), group("a", 3)]
    assert len(queue.looks) == 2


async def test_look_reads_as_many_more_as_are_in_flight_and_they_are_not_chosen(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 9))
    candidates = Candidates(queue)
    with candidates.asking_for(await candidates.choose(demand(3), NOW)):
        assert await candidates.choose(demand(2, force_look=True), NOW) == [("a", 3), ("a", 4)]
    assert [wanted for wanted, _ in queue.looks] == [{"a": 3}, {"a": 5}]


async def test_claim_that_lost_something_forgets_what_was_read_ahead(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 9))
    candidates = Candidates(queue)
    with candidates.asking_for(await candidates.choose(demand(5), NOW)) as answer:
        answer.won = 5
    del queue.items[:5]
    await candidates.choose(demand(1), NOW)
    queue.looks.clear()
    assert await candidates.choose(demand(1), NOW) == [("a", 5)]
    assert queue.looks == []
    with candidates.asking_for([("a", 5)]) as answer:
        answer.won = 0
    assert (candidates.contention.tried, candidates.contention.won) == (6, 5)
    await candidates.choose(demand(1), NOW)
    assert len(queue.looks) == 1


async def test_candidates_not_tried_do_not_count_as_lost(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 9))
    candidates = Candidates(queue)
    await candidates.choose(demand(9), NOW)
    with candidates.asking_for(group("a", 3)) as answer:
        answer.tried = answer.won = 1
    assert (candidates.contention.tried, candidates.contention.won) == (1, 1)
    assert await candidates.choose(demand(2), NOW) == [("a", 3), ("a", 4)]
    assert len(queue.looks) == 1


async def test_failed_claim_does_not_count_as_contention_and_its_candidates_are_found_again(
    autojump_clock: MockClock,
) -> None:
    queue = Queue(group("a", 2))
    candidates = Candidates(queue)
    with pytest.raises(OSError, match="gone"), candidates.asking_for(await candidates.choose(demand(2), NOW)):
        raise OSError("gone")
    assert candidates.contention.tried == 0
    assert await candidates.choose(demand(2, force_look=True), NOW) == group("a", 2)


async def test_group_that_a_look_finds_closed_is_not_chosen_from(autojump_clock: MockClock) -> None:
    queue = Queue([*group("a", 3), *group("b", 3)], closed={"a"}, is_known=False)
    candidates = Candidates(queue)
    assert await candidates.choose(demand(2, "a", "b"), NOW) == group("b", 2)
    assert not candidates.may_be_more(demand(2, "a"), ())


async def test_look_without_what_this_claim_does_not_accept_does_not_serve_one_that_accepts_it(
    autojump_clock: MockClock,
) -> None:
    queue = Queue(group("a", 4))
    candidates = Candidates(queue)
    assert await candidates.choose(demand(9, suspects=0), NOW) == [("a", 0), ("a", 2)]
    await candidates.choose(demand(9, suspects=0), NOW)
    assert len(queue.looks) == 1
    assert await candidates.choose(demand(9), NOW) == group("a", 4)
    assert len(queue.looks) == 2


async def test_moment_of_a_look_is_known_when_it_was_answered(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 1))
    candidates = Candidates(queue)
    await candidates.choose(demand(2), NOW)
    queue.fault = OSError("no answer")
    with pytest.raises(OSError, match="no answer"):
        await candidates.choose(demand(2, force_look=True), NOW + timedelta(seconds=9))
    assert candidates.looked_at == NOW


def far(batches: int) -> int:
    return batches - 1


async def lose_all(candidates: Candidates[Item]) -> None:
    """So that they come from elsewhere."""
    with candidates.asking_for(await candidates.choose(demand(2, force_look=True), NOW)) as answer:
        answer.won = 0


async def test_group_is_exhausted_if_a_look_at_all_of_it_left_nothing_over(autojump_clock: MockClock) -> None:
    candidates = Candidates(Queue([*group("a", 1), *group("b", 9), *group("c", 2)]))
    of_all = demand(3, "a", "b", "c", "d")
    with candidates.asking_for(await candidates.choose(of_all, NOW)) as answer:  # One of a, two of b.
        answer.won = 3
    assert candidates.exhausted(of_all) == {"a", "d"}  # One of c is left over, and b has more.
    await candidates.choose(demand(3, "a", "d", force_look=True, suspects=0), NOW)
    assert not candidates.exhausted(of_all)  # What suspects they have, that look did not see.


async def test_they_come_from_elsewhere_where_others_are_as_fast(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 1000))
    candidates = Candidates(queue)
    candidates.contention = Contention(far)
    await lose_all(candidates)
    queue.looks.clear()
    for _ in range(2):
        await candidates.choose(demand(2, force_look=True), NOW)
    await trio.sleep(SECONDS_TO_HEAD)
    await candidates.choose(demand(2, force_look=True), NOW)
    assert [behind.get("a", 0) for _, behind in queue.looks] == [504, 504, 0]


async def test_they_come_from_nearer_where_there_are_none_so_far(autojump_clock: MockClock) -> None:
    queue = Queue(group("a", 100))
    candidates = Candidates(queue)
    candidates.contention = Contention(far)
    await lose_all(candidates)
    queue.looks.clear()
    for _ in range(4):
        await candidates.choose(demand(2, force_look=True), NOW)
    behind = [passed_over["a"] for _, passed_over in queue.looks if passed_over]
    assert behind == sorted(set(behind), reverse=True)


async def test_where_there_is_nothing_else_they_come_from_nowhere_else(autojump_clock: MockClock) -> None:
    candidates = Candidates(Queue(group("a", 1)))
    await lose_all(candidates)
    assert not candidates.contention.is_spread


async def test_of_few_items_that_others_take_too_little_is_read_ahead(autojump_clock: MockClock) -> None:
    def knowing_of_others() -> Contention:
        contention = Contention(lambda below: 0)
        contention.took(5, 0)
        passed_over = contention.passed_over({"a": 5}, trio.current_time())
        contention.looked(passed_over, {"a": 5}, full=["a"], short=["a"])
        return contention

    async def most_read(contention: Contention) -> int:
        queue = Queue(group("a", 200))
        candidates = Candidates(queue)
        candidates.contention = contention
        for _ in range(5):
            with candidates.asking_for(await candidates.choose(demand(5), NOW)) as answer:
                answer.won = 5
        return max(wanted["a"] for wanted, _ in queue.looks)

    assert await most_read(knowing_of_others()) == LEAST_SHARE
    assert await most_read(Contention()) > 4 * LEAST_SHARE
