"""How long no other instance can have taken a lock: until then, a missing lock was removed by our own write."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from trio_monque.claims.locked_document import Cycle
from trio_monque.locks_and_dead_letters import LockStamp

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EVERY = 6.0
LEASE = 3 * EVERY
CLOCKS = EVERY / 6


def cycle() -> Cycle:
    """A claim that was asked for at 100."""
    return Cycle(LockStamp.new("us", NOW, EVERY, "0"), [1, 2], 100)


@pytest.mark.parametrize("key", [b"1", b"2"])
def test_claim_is_sure_of_all_its_locks_for_a_lease_but_for_what_clocks_may_differ(key: bytes) -> None:
    claimed = cycle()
    assert claimed.is_sure(key, 100 + LEASE - CLOCKS - 0.01)
    assert not claimed.is_sure(key, 100 + LEASE - CLOCKS)


def test_renewal_is_sure_of_the_locks_that_it_found_held_and_of_no_other() -> None:
    """One that was taken after a lease is not ours again because its neighbour is."""
    claimed = cycle()
    claimed.renewing(NOW + timedelta(seconds=20))
    claimed.renewed(NOW + timedelta(seconds=20), 115, [b"1"])
    at = 100 + LEASE
    assert claimed.is_sure(b"1", at)
    assert not claimed.is_sure(b"2", at)
    claimed.renewing(NOW + timedelta(seconds=30))
    claimed.renewed(NOW + timedelta(seconds=30), 125, [b"1"])
    assert claimed.is_sure(b"1", 125 + LEASE - CLOCKS - 0.01)
    assert not claimed.is_sure(b"2", 126)
    assert not claimed.is_sure(b"1", 125 + LEASE - CLOCKS)
