"""The witness of standstills has seen them, and how long they were."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final

from .forks import REPOSITORY
from .processes import frozen
from .standstills import LATE, TICK, seconds_of

STOPPED: Final = 3 * LATE

PROGRAM: Final = """
import time
from tests.faults.standstills import witnessed
with witnessed() as witness:
    began = time.monotonic()
    print("begun", flush=True)
    input()
    print(witness.seconds(began, time.monotonic()))
"""


def test_who_was_stopped_has_seen_for_how_long() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        with frozen(process.pid):
            time.sleep(STOPPED)  # It is about the time.
        seen, _ = process.communicate("\n")
    assert float(seen) > STOPPED - TICK


def test_only_what_is_between_two_moments_is_counted() -> None:
    standstills = [(1.0, 2.0), (5.0, 6.5)]
    assert seconds_of(standstills, 0.0, 10.0) == 2.5
    assert seconds_of(standstills, 1.5, 6.0) == 1.5
    assert seconds_of(standstills, 2.5, 4.5) == 0.0
