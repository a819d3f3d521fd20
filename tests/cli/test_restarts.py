"""What follows when a worker process ends."""

from __future__ import annotations

import signal

import pytest

from trio_monque.cli.run.restarts import (
    LONGEST_PAUSE,
    STEADY_AFTER,
    GiveUp,
    ProcessEnd,
    Restart,
    decide,
    described,
    exit_status,
    worst,
)


def test_pauses_double_up_to_a_limit() -> None:
    ends, pauses = 0, []
    for _ in range(9):
        decision = decide(ProcessEnd(0.1, ends, any_has_started=True))
        assert isinstance(decision, Restart)
        ends = decision.ends
        pauses.append(decision.after)
    assert pauses == [0.5, 1, 2, 4, 8, 16, LONGEST_PAUSE, LONGEST_PAUSE, LONGEST_PAUSE]
    assert decide(ProcessEnd(0.1, 10**6, any_has_started=True)) == Restart(LONGEST_PAUSE, 10**6 + 1)


def test_process_that_ran_for_a_while_is_restarted_soon() -> None:
    assert decide(ProcessEnd(STEADY_AFTER, 9, any_has_started=True)) == Restart(0.5, 1)
    assert decide(ProcessEnd(STEADY_AFTER - 0.1, 9, any_has_started=True)) == Restart(LONGEST_PAUSE, 10)


def test_nothing_is_restarted_if_no_scheduler_has_ever_started() -> None:
    assert decide(ProcessEnd(3600.0, 0, any_has_started=False)) == GiveUp()


@pytest.mark.parametrize(
    ("returncode", "status", "text"),
    [
        (0, 0, "ended with status 0"),
        (1, 1, "ended with status 1"),
        (130, 130, "ended with status 130"),
        (3, 2, "ended with status 3"),
        (-signal.SIGTERM, 130, "was killed by SIGTERM (status 143)"),
        (-signal.SIGINT, 130, "was killed by SIGINT (status 130)"),
        (
            -signal.SIGKILL,
            2,
            "was killed by SIGKILL (status 137; for example by the kernel because memory ran out)",
        ),
        (
            137,
            2,
            "ended with status 137, the status after SIGKILL (for example by the kernel because memory ran out)",
        ),
        (
            -signal.SIGSEGV,
            2,
            (
                "was killed by SIGSEGV (status 139; a crash in native code, such as that of an extension module, or a "
                "recursion that is too deep)"
            ),
        ),
        (
            134,
            2,
            (
                "ended with status 134, the status after SIGABRT (a crash in native code, such as that of an extension "
                "module)"
            ),
        ),
        (-40, 2, "was killed by signal 40 (status 168)"),
        (168, 2, "ended with status 168"),
    ],
)
def test_return_code_of_a_process(returncode: int, status: int, text: str) -> None:
    assert (exit_status(returncode), described(returncode)) == (status, text)


def test_worst_status() -> None:
    assert [worst(given) for given in ([], [0, 0], [0, 130], [130, 1, 0], [1, 2, 130])] == [0, 0, 130, 1, 2]
