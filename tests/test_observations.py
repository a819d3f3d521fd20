"""Whether a claim is dead: pure, and by what one observer saw alone."""

from __future__ import annotations

import math
from typing import Any

from trio_monque.observations import Observations, Sighting


def sight(key: str = "a", mark: object = 1, lease: float = 90.0, **more: Any) -> Sighting[str]:
    return Sighting(key, key, mark, lease, **more)


def due(observations: Observations[str], now: float) -> list[str]:
    return [seen.claim for seen in observations.due(now, 100)]


def test_claim_is_dead_when_it_has_not_changed_for_its_lease_since_the_answer_that_showed_it_first() -> None:
    observations: Observations[str] = Observations()
    observations.update([sight()], 10.0)
    observations.update([sight()], 99.0)
    assert observations.next_due == 100.0
    assert due(observations, 99.999) == []
    assert due(observations, 100.0) == ["a"]


def test_change_begins_the_observation_anew() -> None:
    observations: Observations[str] = Observations()
    observations.update([sight(mark=1)], 0.0)
    observations.update([sight(mark=2)], 89.0)
    assert observations.next_due == 179.0


def test_claim_that_was_gone_in_between_is_observed_anew() -> None:
    observations: Observations[str] = Observations()
    observations.update([sight()], 0.0)
    observations.update([], 15.0)
    assert observations.next_due == math.inf
    observations.update([sight()], 30.0)
    assert observations.next_due == 120.0


def test_each_claim_has_its_own_lease() -> None:
    observations: Observations[str] = Observations()
    observations.update([sight("a", lease=90), sight("b", lease=3), sight("c", lease=30)], 0.0)
    assert due(observations, 30.0) == ["b", "c"]
    assert observations.shortest_lease == 3


def test_protected_claim_is_not_taken_however_dead_it_looks() -> None:
    observations: Observations[str] = Observations()
    observations.update([sight("age", protected_for=500.0), sight("never", protected_for=math.inf)], 0.0)
    observations.update([sight("age", protected_for=300.0), sight("never", protected_for=math.inf)], 200.0)
    assert due(observations, 499.0) == []
    assert due(observations, 500.0) == ["age"]
    assert len(observations) == 1


def test_stale_claim_is_dead_at_once_at_the_start_and_only_then() -> None:
    observations: Observations[str] = Observations()
    stale = [sight("old", is_stale=True, protected_for=-5), sight("young", is_stale=True, protected_for=5)]
    observations.update(stale, 100.0, at_start=True)
    assert due(observations, 100.0) == ["old"]
    observations.update([sight("late", is_stale=True), *stale], 101.0)
    assert due(observations, 101.0) == ["old"]
    # What was protected at the start is observed for its lease, although its protection ends before.
    assert due(observations, 189.999) == ["old"]
    assert due(observations, 190.0) == ["old", "young"]


def test_due_returns_at_most_the_limit_and_forgets_taken_claims() -> None:
    observations: Observations[str] = Observations()
    observations.update([sight(str(number), lease=number) for number in range(1, 6)], 0.0)
    first = observations.due(100.0, 2)
    assert [seen.claim for seen in first] == ["1", "2"]
    observations.forget(first)
    assert due(observations, 100.0) == ["3", "4", "5"]
