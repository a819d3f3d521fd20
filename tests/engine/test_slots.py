"""Concurrency limits: pure."""

from __future__ import annotations

from trio_monque.engine.slots import Slots


def test_demand_is_bounded_by_each_group_and_by_all() -> None:
    slots = Slots(4)
    assert slots.demand().total == 0
    slots.set_limit("a", 3)
    slots.set_limit("b", 2)
    assert (slots.demand().total, slots.demand().groups) == (4, {"a": 3, "b": 2})
    assert slots.capacity == 4
    for _ in range(3):
        slots.take("a")
    assert (slots.demand().total, slots.demand().groups) == (1, {"b": 1})
    slots.take("b")
    assert (slots.demand().total, slots.demand().groups) == (0, {})
    slots.free("a")
    assert (slots.demand().total, slots.demand().groups) == (1, {"a": 1, "b": 1})


def test_without_a_total_the_groups_are_the_limit() -> None:
    slots = Slots(None)
    slots.set_limit("a", 3)
    slots.take("a")
    assert (slots.demand().total, slots.capacity, slots.running) == (2, 3, 1)


def test_one_suspect_runs_at_a_time_whatever_its_group() -> None:
    slots = Slots(None)
    slots.set_limit("a", 3)
    assert slots.demand().suspects == 1
    slots.take("a", suspect=True)
    slots.take("a")
    assert (slots.demand().total, slots.demand().suspects) == (1, 0)
    slots.free("a")
    assert slots.demand().suspects == 0
    slots.free("a", suspect=True)
    assert slots.demand().suspects == 1


def test_group_whose_limit_shrinks_keeps_what_runs_and_gets_nothing_more() -> None:
    slots = Slots(None)
    slots.set_limit("a", 3)
    for _ in range(3):
        slots.take("a")
    slots.set_limit("a", 1)
    assert (slots.running_in("a"), slots.demand().total) == (3, 0)
    slots.free("a")
    slots.free("a")
    assert slots.demand().total == 0
    slots.free("a")
    assert slots.demand().total == 1
