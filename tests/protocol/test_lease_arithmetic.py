"""The handler is over before anybody else may run its job: the lease arithmetic, with clocks apart.

The messages take any time, the rescuer asks at any time, and the two clocks run at different rates.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Final

import pytest

from tests.support.thoroughly import THOROUGH, one_in

from .search import Found, search
from .timed import AS_DESIGNED, BROKEN, Arithmetic, Moment, harm_of, successors

MOST_MOMENTS: Final = 4_000_000 if THOROUGH else 400_000

# Longer intervals and no renewal: a finer grain for the rates, and fewer messages.
FINE: Final = Arithmetic(interval=30, cleanup=15, renewals=0)


def played(arithmetic: Arithmetic) -> Found[Moment]:
    found = search(
        [Moment(renewals=arithmetic.renewals)],
        lambda moment: successors(moment, arithmetic),
        lambda moment: harm_of(moment, arithmetic),
        MOST_MOMENTS,
    )
    sys.stdout.write(f"{found}\n")
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("renewals", [1, 2] if THOROUGH else [1])
def test_no_two_runs_overlap_however_long_messages_take(renewals: int) -> None:
    assert played(replace(AS_DESIGNED, renewals=renewals)).harm is None


@pytest.mark.full
@pytest.mark.parametrize(
    "arithmetic", one_in(3, list(BROKEN.values())), ids=[name.replace(" ", "-") for name in BROKEN]
)
def test_each_rule_of_the_arithmetic_is_needed(arithmetic: Arithmetic) -> None:
    assert played(arithmetic).harm == "two runs overlap"


@pytest.mark.full
@pytest.mark.parametrize("rate", [950, 1050])
def test_clocks_may_drift_apart_by_a_twentieth(rate: int) -> None:
    assert played(replace(AS_DESIGNED, rescuer_rate=rate)).harm is None
    assert played(replace(AS_DESIGNED, holder_rate=rate)).harm is None


@pytest.mark.full
def test_the_margin_is_what_the_drift_may_use_up() -> None:
    """A sixth of an interval of the 17 sixths that a run has: the rescuer's clock may be faster by 1/17, 5.88 %.

    At thirty ticks an interval the run is over at tick 85, and a clock that is faster by 5.88 % comes to three
    intervals there. Overlaps are seen at whole ticks: only one that is faster by 7.15 % gets there at tick 84.
    """
    assert played(replace(FINE, rescuer_rate=1058)).harm is None
    assert played(replace(FINE, rescuer_rate=1072)).harm == "two runs overlap"


@pytest.mark.full
def test_without_the_margin_equal_clocks_are_enough_and_no_others() -> None:
    assert played(replace(FINE, margin=False)).harm is None
    assert played(replace(FINE, margin=False, rescuer_rate=1012)).harm == "two runs overlap"
