"""The witness of standstills has seen them, and how long they were."""

from __future__ import annotations

import sys
import time
from typing import Final

import pytest

from tests.faults.processes import frozen
from tests.support.standstills import LATE, TICK, seconds_of, witnessed

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows whether a process has stopped")

STOPPED: Final = 3 * LATE


def test_stopped_witness_reports_the_length_of_its_stop() -> None:
    with witnessed() as witness:
        began = time.monotonic()
        with frozen(witness.pid):
            time.sleep(STOPPED)  # It is about the time.
        assert witness.seconds(began, time.monotonic()) > STOPPED - TICK
        assert witness.without_standstills(began, time.monotonic()) < time.monotonic() - began - STOPPED + TICK
        after = time.monotonic()
        assert witness.seconds(after - TICK / 2, after) < TICK


def test_only_what_is_between_two_moments_is_counted() -> None:
    standstills = [(1.0, 2.0), (5.0, 6.5)]
    assert seconds_of(standstills, 0.0, 10.0) == 2.5
    assert seconds_of(standstills, 1.5, 6.0) == 1.5
    assert seconds_of(standstills, 2.5, 4.5) == 0.0
