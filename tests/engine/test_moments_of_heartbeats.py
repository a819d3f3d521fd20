"""Heartbeats grow, whatever the clock does."""

from __future__ import annotations

from datetime import timedelta

from tests.support.store import PAST
from trio_monque.engine.lease import Beats

MILLISECOND = timedelta(milliseconds=1)


def test_a_beat_is_later_than_the_claim_and_than_every_beat_before() -> None:
    beats = Beats()
    beats.claimed(PAST)
    hour_back, later = PAST - timedelta(hours=1), PAST + timedelta(seconds=30)
    assert [beats.next(now) for now in (hour_back, hour_back, later, later, PAST)] == [
        PAST + MILLISECOND,
        PAST + 2 * MILLISECOND,
        later,
        later + MILLISECOND,
        later + 2 * MILLISECOND,
    ]


def test_a_claim_at_a_time_that_has_passed_takes_nothing_back() -> None:
    beats = Beats()
    beats.claimed(PAST)
    beats.claimed(PAST - timedelta(hours=1))
    assert beats.next(PAST) == PAST + MILLISECOND
