"""Many posts share one wake-up, and none is forgotten."""

from __future__ import annotations

import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any

import pytest

from trio_monque.bridge import mailbox as mailbox_module
from trio_monque.bridge.mailbox import Mailbox


class Loop:
    """What a mailbox needs of an event loop: it collects wake-ups, and delivers when a test asks for it."""

    def __init__(self) -> None:
        self.woken: deque[Callable[[], object]] = deque()
        self.has_ended = False

    def wake(self, deliver: Callable[[], object]) -> None:
        if self.has_ended:
            raise RuntimeError("this loop has ended")
        self.woken.append(deliver)

    def turn(self) -> None:
        for _ in range(len(self.woken)):
            self.woken.popleft()()


def test_posts_share_a_wake_up_and_keep_their_order() -> None:
    loop, log = Loop(), list[int]()
    mailbox = Mailbox(loop.wake)
    for number in range(100):
        mailbox.post(lambda number=number: log.append(number))  # type: ignore[misc]
    assert len(loop.woken) == 1
    loop.turn()
    assert log == list(range(100))


def test_gathered_functions_wake_the_loop_when_their_turn_ends_and_once() -> None:
    loop, log = Loop(), list[int]()
    mailbox = Mailbox(loop.wake)
    must_plan = [mailbox.gather(partial(log.append, number)) for number in range(100)]
    assert must_plan == [True] + 99 * [False]
    assert not loop.woken
    mailbox.ring_for_gathered()
    assert len(loop.woken) == 1
    assert not mailbox.gather(partial(log.append, 100))  # The wake-up that is on its way delivers it.
    loop.turn()
    assert log == list(range(101))
    mailbox.ring_for_gathered()
    assert not loop.woken


def test_post_delivers_what_was_gathered_before_it() -> None:
    loop, log = Loop(), list[str]()
    mailbox = Mailbox(loop.wake)
    mailbox.gather(partial(log.append, "gathered"))
    mailbox.post(partial(log.append, "posted"))
    loop.turn()
    assert log == ["gathered", "posted"]


def test_delivery_heals_an_interrupt_between_gather_and_the_plan() -> None:
    """A Ctrl-C that hits the poster there leaves a flag that no ring follows."""
    loop, log = Loop(), list[str]()
    mailbox = Mailbox(loop.wake)
    assert mailbox.gather(partial(log.append, "unplanned"))
    assert not mailbox.gather(partial(log.append, "behind it"))
    mailbox.ring()  # The watch does that.
    loop.turn()
    assert log == ["unplanned", "behind it"]
    assert mailbox.gather(list)


def test_function_that_posts_again_waits_for_the_next_turn() -> None:
    loop, log = Loop(), list[str]()
    mailbox = Mailbox(loop.wake)

    def first() -> None:
        log.append("first")
        mailbox.post(lambda: log.append("second"))

    mailbox.post(first)
    loop.turn()
    assert log == ["first"]
    loop.turn()
    assert log == ["first", "second"]
    assert not loop.woken


def test_posts_before_the_loop_wait_for_it() -> None:
    loop, log = Loop(), list[str]()
    mailbox = Mailbox()
    mailbox.post(lambda: log.append("before"))
    mailbox.ring()
    mailbox.open(loop.wake)
    loop.turn()
    assert log == ["before"]
    mailbox.post(lambda: log.append("after"))
    loop.turn()
    assert log == ["before", "after"]


def test_post_to_an_ended_loop_raises_and_so_does_each_after_it() -> None:
    loop = Loop()
    mailbox = Mailbox(loop.wake)
    loop.has_ended = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="ended"):
            mailbox.post(list)
    loop.has_ended = False
    mailbox.post(list)
    assert len(loop.woken) == 1


def test_closed_mailbox_raises_although_a_wake_up_was_on_its_way() -> None:
    """A stale flag must not make a post look delivered: its caller would wait for ever."""
    loop = Loop()
    mailbox = Mailbox(loop.wake)
    mailbox.post(list)
    mailbox.close()
    with pytest.raises(RuntimeError, match="ended"):
        mailbox.post(list)
    with pytest.raises(RuntimeError, match="ended"):
        mailbox.ring()
    loop.turn()


def test_closed_mailbox_calls_and_keeps_nothing() -> None:
    class Function:
        def __call__(self) -> None:
            raise AssertionError

    loop = Loop()
    mailbox = Mailbox(loop.wake)
    before, after = Function(), Function()
    left = [weakref.ref(before), weakref.ref(after)]
    mailbox.post(before)
    mailbox.close()
    loop.turn()
    with pytest.raises(RuntimeError, match="ended"):
        mailbox.post(after)
    del before, after
    assert [one() for one in left] == [None, None]


def test_each_of_two_posts_to_a_closed_mailbox_raises_at_whatever_line_the_second_comes() -> None:
    for line in range(40):
        mailbox = Mailbox(Loop().wake)
        mailbox.close()

        def post_too(mailbox: Mailbox = mailbox) -> None:
            with pytest.raises(RuntimeError, match="ended"):
                mailbox.post(list)

        with BeforeLine(line, post_too) as before_line, pytest.raises(RuntimeError, match="ended"):
            mailbox.post(list)
        if not before_line.is_reached:
            assert line > 4
            return
    raise AssertionError("the post never ended")


def test_post_after_the_end_raises_at_whatever_line_of_an_earlier_post_the_end_came() -> None:
    """The earlier post raises the flag again, and the loop still takes its wake-up: it makes its last turn."""
    for line in range(40):
        mailbox = Mailbox(Loop().wake)
        with BeforeLine(line, mailbox.close) as before_line, suppress(RuntimeError):
            mailbox.post(list)
        if not before_line.is_reached:
            assert line > 4
            return
        with pytest.raises(RuntimeError, match="ended"):
            mailbox.post(list)
    raise AssertionError("the post never ended")


def test_function_that_comes_during_the_last_delivery_of_a_loop_is_dropped() -> None:
    """The loop takes no wake-up any more. An error of a delivery would end the loop with that error."""
    loop, log = Loop(), list[str]()
    mailbox = Mailbox(loop.wake)
    mailbox.post(lambda: mailbox.gather(partial(log.append, "gathered")))
    loop.has_ended = True
    loop.turn()
    with pytest.raises(RuntimeError, match="ended"):
        mailbox.ring_for_gathered()
    with pytest.raises(RuntimeError, match="ended"):
        mailbox.post(list)
    assert not log


def test_function_that_raises_does_not_keep_the_others() -> None:
    loop, log = Loop(), list[str]()
    mailbox = Mailbox(loop.wake)

    def leave() -> None:
        log.append("leaves")
        raise SystemExit

    mailbox.post(leave)
    mailbox.post(lambda: log.append("other"))
    with pytest.raises(SystemExit):
        loop.turn()
    loop.turn()
    assert log == ["leaves", "other"]


def test_interrupted_function_is_called_again_before_the_others() -> None:
    """The Ctrl-C may have come before its first line."""
    loop, log = Loop(), list[str]()
    mailbox = Mailbox(loop.wake)
    interrupts = [KeyboardInterrupt()]

    def interrupted() -> None:
        if interrupts:
            raise interrupts.pop()
        log.append("interrupted")

    mailbox.post(interrupted)
    mailbox.post(lambda: log.append("other"))
    with pytest.raises(KeyboardInterrupt):
        loop.turn()
    loop.turn()
    assert log == ["interrupted", "other"]


def test_ring_heals_an_interrupt_between_the_flag_and_the_wake_up() -> None:
    """A Ctrl-C that hits the poster there leaves a raised flag that no wake-up follows."""
    loop, log = Loop(), list[str]()
    mailbox = Mailbox(loop.wake)
    mailbox.post(lambda: log.append("lost"))
    loop.woken.clear()
    mailbox.post(lambda: log.append("behind it"))
    assert not loop.woken
    mailbox.ring()
    loop.turn()
    assert log == ["lost", "behind it"]


def test_post_at_any_line_of_a_delivery_is_delivered() -> None:
    """As from a second thread, or from a signal handler."""
    for line in range(40):
        loop, log = Loop(), list[str]()
        mailbox = Mailbox(loop.wake)
        mailbox.post(partial(log.append, "first"))
        with BeforeLine(line, partial(mailbox.post, partial(log.append, "second"))) as before_line:
            loop.turn()
        while loop.woken:
            loop.turn()
        if not before_line.is_reached:
            assert line > 4  # There were lines to try.
            return
        assert log == ["first", "second"], line
    raise AssertionError("the delivery never ended")


def test_post_and_delivery_at_any_line_of_a_post_forget_nothing() -> None:
    for line in range(40):
        loop, log = Loop(), list[str]()
        mailbox = Mailbox(loop.wake)

        def post_and_deliver(mailbox: Mailbox = mailbox, loop: Loop = loop, log: list[str] = log) -> None:
            mailbox.post(partial(log.append, "second"))
            loop.turn()

        with BeforeLine(line, post_and_deliver) as before_line:
            mailbox.post(partial(log.append, "first"))
        while loop.woken:
            loop.turn()
        if not before_line.is_reached:
            assert line > 4
            return
        mailbox.post(partial(log.append, "third"))  # The flag is not left raised.
        while loop.woken:
            loop.turn()
        assert (sorted(log[:2]), log[2:]) == (["first", "second"], ["third"]), line
    raise AssertionError("the post never ended")


def test_delivery_at_any_line_of_a_gather_forgets_nothing() -> None:
    for line in range(40):
        loop, log = Loop(), list[str]()
        mailbox = Mailbox(loop.wake)

        def post_and_deliver(mailbox: Mailbox = mailbox, loop: Loop = loop, log: list[str] = log) -> None:
            mailbox.post(partial(log.append, "second"))
            loop.turn()

        with BeforeLine(line, post_and_deliver) as before_line:
            if mailbox.gather(partial(log.append, "first")):
                mailbox.ring_for_gathered()
        while loop.woken:
            loop.turn()
        if not before_line.is_reached:
            assert line > 4
            return
        assert sorted(log) == ["first", "second"], line
    raise AssertionError("the gather never ended")


class BeforeLine:
    """Calls a function before a line that the mailbox executes inside the block; they are counted from 0."""

    def __init__(self, line: int, function: Callable[[], object]) -> None:
        self._lines_left = line
        self._function = function
        self.is_reached = False

    def __enter__(self) -> BeforeLine:
        self._tracer = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer)

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if self.is_reached or frame.f_code.co_filename != mailbox_module.__file__:
            return None
        if event == "line":
            if self._lines_left == 0:
                self.is_reached = True
                self._function()
            self._lines_left -= 1
        return self._trace


def test_posts_of_several_threads_are_all_delivered() -> None:
    sys_interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        _post_from_threads()
    finally:
        sys.setswitchinterval(sys_interval)


def _post_from_threads() -> None:
    loop, log = Loop(), list[int]()
    mailbox = Mailbox(loop.wake)

    def post(numbers: Iterator[int]) -> None:
        for number in numbers:
            mailbox.post(lambda number=number: log.append(number))  # type: ignore[misc]

    threads = [threading.Thread(target=post, args=(iter(range(n, 4000, 4)),)) for n in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        loop.turn()
    while loop.woken:
        loop.turn()
    assert sorted(log) == list(range(4000))
