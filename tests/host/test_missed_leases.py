"""How many runs in a row may miss their lease without a failed attempt. Pure."""

from __future__ import annotations

import pytest

from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.host import run_ends
from trio_monque.host.run_ends import MissedLeaseError, MissedLeases

MISSED = RunEnd.by_cancellation(CancelReason.LOST)
RETURNED = RunEnd(None, "late", cancelled=False, reason=CancelReason.LOST, duration=1.0)
CUT = RunEnd.by_cancellation(CancelReason.SHUTDOWN)


def test_runs_beyond_the_limit_are_a_failure_whose_cause_is_the_last_error() -> None:
    missed = MissedLeases()
    assert [missed.counted(1, MISSED, 2) for _ in range(2)] == [MISSED, MISSED]
    error = ValueError("in its clean-up")
    end = missed.counted(1, MISSED._replace(error=error), 2)
    assert isinstance(end.error, MissedLeaseError)
    assert (end.error.__cause__, end.reason, end.cancelled) == (error, None, False)
    assert missed.counted(1, MISSED, 2) is MISSED  # It begins anew.


@pytest.mark.parametrize("other", [RETURNED, CUT])
def test_any_other_end_begins_anew(other: RunEnd) -> None:
    missed = MissedLeases()
    ends = [missed.counted(1, end, 1) for end in (MISSED, other, MISSED, other)]
    assert ends == [MISSED, other, MISSED, other]


def test_run_that_never_began_counts_for_nothing() -> None:
    missed = MissedLeases()
    late = RunEnd.by_cancellation(CancelReason.LOST, has_begun=False)
    ends = [missed.counted(1, end, 1) for end in (late, MISSED, late, late)]
    assert ends == [late, MISSED, late, late]
    assert isinstance(missed.counted(1, MISSED, 1).error, MissedLeaseError)


def test_error_says_how_many_runs() -> None:
    assert str(MissedLeaseError(1)).startswith("a run was cancelled because the claim was not renewed in time")
    assert str(MissedLeaseError(4)).startswith("4 runs in a row were cancelled because the claim was not renewed")


def test_items_are_counted_apart_and_not_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_ends, "MOST_REMEMBERED", 2)
    missed = MissedLeases()
    assert all(missed.counted(key, MISSED, 1) is MISSED for key in (1, 2, 3))  # The first one is forgotten.
    assert [missed.counted(key, MISSED, 1) is MISSED for key in (1, 3)] == [True, False]
