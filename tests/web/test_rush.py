"""A rush: how long pages wait beside changes without pause."""

from __future__ import annotations

import pytest

from trio_monque.web.live.rush import LONGEST_WAIT, LONGEST_WAIT_OF_MANY, RUSH_AFTER, Rush


def test_wait_grows_beside_changes_without_pause() -> None:
    rush = Rush()
    assert [rush.news(now, 1) for now in (10.0, 10.5, 10.0 + RUSH_AFTER - 0.1)] == [0.0, 0.0, 0.0]
    assert not rush.is_on
    assert [rush.news(now, 1) for now in (13.0, 16.0, 21.0, 27.0)] == [2.0, 4.0, LONGEST_WAIT, LONGEST_WAIT]
    assert rush.is_on


@pytest.mark.parametrize(
    ("viewers", "longest"), [(1, LONGEST_WAIT), (3, LONGEST_WAIT), (6, 9.0), (100, LONGEST_WAIT_OF_MANY)]
)
def test_many_viewers_wait_longer(viewers: int, longest: float) -> None:
    rush = Rush()
    assert [rush.news(10.0 * number, viewers) for number in range(7)][-1] == longest


def test_quiet_second_ends_a_rush() -> None:
    rush = Rush()
    for now in (10.0, 13.0, 16.0):
        rush.news(now, 1)
    rush.quiet()
    assert not rush.is_on
    assert [rush.news(now, 1) for now in (20.0, 22.9, 23.0)] == [0.0, 0.0, 2.0]


def test_changes_with_quiet_seconds_between_them_never_wait() -> None:
    rush = Rush()
    for now in range(0, 60, 2):
        assert rush.news(float(now), 1) == 0.0
        rush.quiet()
