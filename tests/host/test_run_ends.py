"""What the end of a run means for every kind of work. Pure."""

from __future__ import annotations

import pytest

from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.host.run_ends import failure_of

IN_CLEANUP = ValueError("in its clean-up")


def failure(reason: CancelReason | None, error: BaseException | None) -> BaseException | None:
    return failure_of(
        RunEnd.by_cancellation(reason or CancelReason.LOST)._replace(error=error, reason=reason), "5 s", _as_is
    )


def _as_is(error: BaseException) -> BaseException:
    return error


def test_error_of_a_run_that_lost_its_claim_is_not_counted_as_a_failure() -> None:
    """Another instance may run the item by then: its attempts are not to be counted here."""
    assert failure(CancelReason.LOST, IN_CLEANUP) is None


@pytest.mark.parametrize("reason", [None, *(one for one in CancelReason if one is not CancelReason.LOST)])
def test_error_of_any_other_run_is_its_failure(reason: CancelReason | None) -> None:
    assert failure(reason, IN_CLEANUP) is IN_CLEANUP


def test_run_without_an_error_has_failed_only_if_it_took_too_long() -> None:
    assert {reason for reason in CancelReason if failure(reason, None) is not None} == {CancelReason.TIMEOUT}
    assert str(failure(CancelReason.TIMEOUT, None)) == "the run took longer than 5 s"
