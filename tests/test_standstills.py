"""The witness has seen standstills and waits for a processor, and how long they were."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Final

import pytest

from tests.faults.processes import frozen
from tests.support.cpu_pressure import cpu_pressure
from tests.support.standstills import AT_MOST, LATE, TICK, Wait, excused_waits, seconds_of, witnessed
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows whether a process has stopped")

STOPPED: Final = 3 * LATE


@pytest.mark.full
def test_stopped_witness_reports_the_length_of_its_stop() -> None:
    with witnessed() as witness:
        began = time.monotonic()
        with frozen(witness.pid):
            time.sleep(STOPPED)  # It is about the time.
        assert witness.seconds(began, time.monotonic()) > STOPPED - TICK
        assert witness.undisturbed(began, time.monotonic()) < time.monotonic() - began - STOPPED + TICK
        after = time.monotonic()
        assert witness.seconds(after - TICK / 2, after) < TICK


def test_only_what_is_between_two_moments_is_counted() -> None:
    standstills = [(1.0, 2.0), (5.0, 6.5)]
    assert seconds_of(standstills, 0.0, 10.0) == 2.5
    assert seconds_of(standstills, 1.5, 6.0) == 1.5
    assert seconds_of(standstills, 2.5, 4.5) == 0.0


@pytest.mark.skipif(cpu_pressure() is None, reason="the system does not count CPU pressure")
def test_processes_that_compete_for_processors_are_seen() -> None:
    with witnessed() as witness, ExitStack() as stack:
        began = time.monotonic()
        for _ in range(2 * (os.cpu_count() or 1) + 1):
            loop = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(loop.kill)
        wait_until(witness.waits, "tasks wait for a processor")
        wait = witness.waits()[-1]
        assert began - TICK - LATE <= wait.since < wait.until <= time.monotonic()
        assert witness.undisturbed(wait.since, wait.until) < wait.until - wait.since
        assert witness.seconds(wait.since, wait.until) == 0.0, "that is no standstill"


def test_large_waits_excuse_as_much_as_was_waited_and_small_ones_nothing() -> None:
    waits = [Wait(0.0, 1.0, 0.75), Wait(1.0, 2.0, 0.25), Wait(2.0, 3.0, 0.5)]
    assert excused_waits(waits, 0.0, 3.0) == 1.25
    assert excused_waits(waits, 0.5, 2.5) == 0.375 + 0.25
    assert excused_waits(waits, 1.0, 2.0) == 0.0
    assert excused_waits(waits, 4.0, 5.0) == 0.0


def test_busy_machine_does_not_excuse_what_is_more_than_five_times_too_slow() -> None:
    busy_always = [Wait(second, second + 1.0, 1.0) for second in range(60)]
    assert excused_waits(busy_always, 0.0, 60.0) == pytest.approx(60.0 * AT_MOST)
