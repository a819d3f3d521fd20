from __future__ import annotations

import random

import pytest

from trio_monque.exponential_backoff import Backoff
from trio_monque.jobs.rescue_policy import RescuePolicy
from trio_monque.options_and_defaults import SchedulerConfig


def test_delay_doubles_with_each_failure() -> None:
    backoff = Backoff(base=1, cap=86400, jitter=0)
    assert [backoff.delay(n) for n in range(1, 6)] == [2, 4, 8, 16, 32]
    assert Backoff(base=0.5, cap=86400, jitter=0).delay(3) == 4


def test_delay_is_capped_and_huge_counts_are_safe() -> None:
    assert Backoff(base=1, cap=60, jitter=0).delay(100_000) == 60


@pytest.mark.parametrize("base", [0, 1e-9])
def test_delay_is_never_zero(base: float) -> None:
    assert Backoff(base=base, cap=60, jitter=0).delay(1) == 0.001


def test_jitter_varies_within_its_factor_and_never_above_the_cap() -> None:
    backoff = Backoff(base=1, cap=5, jitter=0.25, chance=random.Random(7))
    delays = [backoff.delay(2) for _ in range(500)]
    assert len(set(delays)) > 100
    assert min(delays) >= 3
    assert max(delays) <= 5
    assert min(delays) < 3.2
    assert all(round(delay * 1000) == pytest.approx(delay * 1000) for delay in delays)
    assert max(Backoff(base=100, cap=5, jitter=1).delay(9) for _ in range(50)) <= 5


def test_its_chance_goes_by_the_seed_of_pythons_own() -> None:
    """Of rescues too, which make their own: a deterministic run repeats every delay."""
    state = random.getstate()
    try:
        delays = []
        for _ in range(2):
            random.seed(7)
            policy = RescuePolicy.of(SchedulerConfig())
            delays.append([policy.backoff.delay(3) for _ in range(5)])
    finally:
        random.setstate(state)
    assert delays[0] == delays[1]
    assert len(set(delays[0])) > 1
