"""A signal that a process manager sends twice for one purpose counts once; later ones and other ones count."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from trio_monque.process_signals import REPEAT_WITHIN, Repeats, default_signals_in_children


def test_same_signal_counts_again_only_after_the_time_of_a_repeat() -> None:
    now = 5.0
    repeats = Repeats(lambda: now)
    assert not repeats.is_repeat(signal.SIGTERM)
    assert repeats.is_repeat(signal.SIGTERM)
    assert not repeats.is_repeat(signal.SIGINT)
    now += REPEAT_WITHIN * 0.99
    assert repeats.is_repeat(signal.SIGTERM)
    # Measured from the one that counted: a signal that comes again and again is not ignored for ever.
    now += REPEAT_WITHIN * 0.02
    assert not repeats.is_repeat(signal.SIGTERM)


def test_only_children_that_are_forked_inside_the_block_get_default_signals() -> None:
    before = signal.signal(signal.SIGTERM, _mark)
    try:
        with default_signals_in_children():
            with default_signals_in_children():
                pass
            inside = _in_child(_has_default_signals)
        outside = _in_child(_has_default_signals)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert inside
    assert not outside


def test_child_that_sets_a_handler_passes_it_on_to_its_own_children() -> None:
    with default_signals_in_children():
        assert _in_child(_handler_reaches_a_grandchild)


def _mark(_number: int, _frame: object) -> None: ...


def _has_default_signals() -> bool:
    return (
        signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        and signal.set_wakeup_fd(-1) == -1
    )


def _handler_reaches_a_grandchild() -> bool:
    signal.signal(signal.SIGTERM, _mark)
    return _in_child(lambda: signal.getsignal(signal.SIGTERM) is _mark)


def _in_child(question: Callable[[], bool]) -> bool:
    """The answer of a forked child."""
    child = os.fork()
    if child == 0:
        answer = False
        try:
            answer = question()
        finally:
            # Not by an exception: the child has pytest's stack, too.
            os.kill(os.getpid(), signal.SIGKILL if answer else signal.SIGABRT)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
