"""The loop over the stream of hints, over a stream that a test writes. In virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.support.shelf import Shelf, ShelfEngine, engine_of, running, sleeping
from trio_monque.engine.demand import Hints, KnownItem, StreamFailedError
from trio_monque.engine.run import Run
from trio_monque.engine.run_end import CancelReason, RunEnd
from trio_monque.engine.watcher import (
    CLAIM_TIMEOUT,
    LEAVING_TIMEOUT,
    LONG_WAIT,
    LONGEST_DELAY,
    PACE,
    PACE_BEHIND,
    PACE_OF_ONE,
    SHORT_WAIT,
)

REPORTED = ("stream_connected", "stream_failed", "stream_closed", "stream_fallback")


class Script:
    """A stream that tells what the test says, when it says it.

    Attributes:
        faults: What the next calls of `open` raise; None for nothing.
        opened_at: When it was opened, or that was tried.
        is_deaf: It is not to be had out of its wait.
        fault_of_end_wait: What `end_wait` raises.
        waits: When it was asked, and how long it was to wait.
        requested: The claims with a request to cancel that is stored.
        asked: The claims of each question about such requests.
        answer_takes: Seconds until that is answered.
    """

    def __init__(self, faults: Sequence[Exception | None] = ()) -> None:
        self.faults = list(faults)
        self.opened_at: list[float] = []
        self.open_now = 0
        self.is_deaf = False
        self.fault_of_end_wait: Exception | None = None
        self.waits: list[tuple[float, float]] = []
        self.requested: set[int] = set()
        self.asked: list[Sequence[int]] = []
        self.answer_takes = 0.0
        self._say, self._hear = trio.open_memory_channel[Hints[int] | Exception](math.inf)

    def say(self, what: Hints[int] | Exception) -> None:
        self._say.send_nowait(what)

    async def open(self) -> None:
        self.opened_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        self.open_now += 1

    async def next(self, wait: float) -> Hints[int]:
        self.waits.append((trio.current_time(), wait))
        await trio.lowlevel.checkpoint()
        said: Hints[int] | Exception = Hints()
        try:
            said = self._hear.receive_nowait()
        except trio.WouldBlock:
            with trio.move_on_after(wait):
                said = await self._hear.receive()
        if isinstance(said, Exception):
            raise said
        return said

    async def cancel_requested(self, claims: Sequence[int]) -> Sequence[bool]:
        self.asked.append(claims)
        await trio.sleep(self.answer_takes)
        return [claim in self.requested for claim in claims]

    async def end_wait(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.fault_of_end_wait is not None:
            raise self.fault_of_end_wait
        if not self.is_deaf:
            self.say(Hints())

    async def close(self) -> None:
        self.open_now -= 1
        await trio.lowlevel.checkpoint()


def broken(reason: str = "gone") -> StreamFailedError:
    return StreamFailedError(ConnectionError(reason))


def engine_with(stream: Script, shelf: Shelf, **limits: Any) -> ShelfEngine:
    return engine_of(shelf, stream=stream, **limits)


def reported(shelf: Shelf) -> list[str]:
    return [name for name, _ in shelf.reported if name in REPORTED]


async def test_change_stream_is_opened_at_the_start_and_closed_at_the_end(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    async with running(engine_with(stream, shelf)):
        await trio.sleep(1)
        assert reported(shelf) == ["stream_connected"]
    assert reported(shelf) == ["stream_connected", "stream_closed"]
    assert stream.open_now == 0
    assert trio.current_time() == 1.0


async def test_change_stream_is_not_opened_again_once_the_shutdown_began_during_a_delay(
    autojump_clock: MockClock,
) -> None:
    shelf, stream = Shelf(), Script([broken()] * 50)
    async with running(engine_with(stream, shelf)):
        await trio.sleep(3.5)
        assert stream.opened_at == [0.0, 1.0, 3.0]
    assert trio.current_time() == 3.5
    assert stream.opened_at == [0.0, 1.0, 3.0]


async def test_look_happens_when_an_announced_item_is_due(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    async with running(engine_with(stream, shelf, poll_interval=1000.0, safety_poll_interval=1000.0)):
        await trio.sleep(1)
        before = len(shelf.claimed_at)
        stream.say(Hints(due=40.5))
        stream.say(Hints(due=20.25))
        await trio.sleep(30)
        assert shelf.claimed_at[before:] == [20.25]
        shelf.due = [40.5]


async def test_item_that_is_due_later_is_not_lost_beside_one_that_is_due_now(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    async with running(engine_with(stream, shelf, poll_interval=1000.0, safety_poll_interval=1000.0)):
        await trio.sleep(1)
        before = len(shelf.claimed_at)
        shelf.due = [20.25, 31.5]
        # One answer reported three.
        stream.say(Hints(due=trio.current_time(), last_due=31.5))
        await trio.sleep(40)
    assert shelf.claimed_at[before:] == [1.0, 20.25, 31.5]


async def test_two_future_items_are_on_time_under_steady_traffic(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    shelf.due = [20.25, 31.5]
    async with running(engine_with(stream, shelf, poll_interval=1000.0, safety_poll_interval=1000.0)):
        await trio.sleep(1)
        stream.say(Hints(due=31.5))
        stream.say(Hints(due=20.25))
        for _ in range(400):
            await trio.sleep(0.1)
            stream.say(Hints(due=trio.current_time()))
    assert {20.25, 31.5} <= set(shelf.claimed_at)


async def test_steady_stream_of_hints_delays_no_look(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    async with running(engine_with(stream, shelf, poll_interval=1000.0, safety_poll_interval=1000.0)) as nursery:
        await trio.sleep(1)

        async def chatter() -> None:
            while True:
                stream.say(Hints(look=True))
                await trio.sleep(0.003)

        nursery.start_soon(chatter)
        await trio.sleep(1)
        looks = [at for at in shelf.claimed_at if at > 1]
        assert max(b - a for a, b in pairwise(looks)) < 0.02
        # And they are not looked for one by one.
        assert len(looks) <= 101
        nursery.cancel_scope.cancel()


async def test_wait_becomes_long_only_after_an_answer_without_hints(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    async with running(engine_with(stream, shelf)):
        await trio.sleep(5)
        stream.say(Hints(look=True))
        await trio.sleep(5)
    reported_at = pytest.approx(5 + PACE, abs=0.001)
    assert stream.waits[:4] == [
        (0.0, SHORT_WAIT),
        (pytest.approx(SHORT_WAIT), LONG_WAIT),
        (reported_at, SHORT_WAIT),
        (pytest.approx(5 + PACE + SHORT_WAIT, abs=0.001), LONG_WAIT),
    ]


@pytest.mark.full
async def test_no_wait_stays_open_during_a_backlog_and_one_is_as_soon_as_it_is_over(autojump_clock: MockClock) -> None:
    """Also without a wake-up."""
    shelf, stream = Shelf(items=list(range(2_500)), handler=sleeping(0.001), claim_takes=0.01), Script()
    async with running(engine_with(stream, shelf, poll_interval=1000.0, safety_poll_interval=1000.0)):
        while shelf.items:
            await trio.sleep(0.0005)
        over_at = trio.current_time()
        await trio.sleep(1)
        stream.say(Hints(look=True))
        await trio.sleep(1)
    during = [(at, wait) for at, wait in stream.waits if SHORT_WAIT < at < over_at - 0.02]
    assert len(during) >= 3
    assert {wait for _, wait in during} == {0.0}
    assert {round(b - a, 3) for (a, _), (b, _) in pairwise(during)} == {PACE_BEHIND}
    after = next(at for at, wait in stream.waits if at > SHORT_WAIT and wait > 0)
    assert after - over_at < 0.025
    assert any(over_at + 1 <= at < over_at + 1.001 for at in shelf.claimed_at)


async def test_request_to_end_is_heard_soon_during_a_backlog(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(items=list(range(20_000)), handler=sleeping(0.001), claim_takes=0.01), Script()
    async with running(engine_with(stream, shelf, heartbeat_interval=300.0)) as nursery:
        await trio.sleep(0.5)
        before = len(shelf.renewed)
        asked: list[float] = []

        def is_asked(_: int) -> bool:
            asked.append(trio.current_time())
            return False

        said_at = trio.current_time()
        stream.say(Hints(is_cancel_requested=is_asked))
        await trio.sleep(0.2)
        assert shelf.items
        assert len(shelf.renewed) == before
        assert asked
        assert asked[0] - said_at <= PACE_BEHIND + 0.001
        nursery.cancel_scope.cancel()


async def test_watcher_does_not_keep_pace_while_all_slots_stay_taken(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(items=list(range(300)), handler=sleeping(1000)), Script()
    async with running(engine_with(stream, shelf)) as nursery:
        await trio.sleep(100)
        assert len(stream.waits) < 20
        nursery.cancel_scope.cancel()


async def test_broken_stream_reconnects_with_growing_delays_reports_once_and_never_gives_up(
    autojump_clock: MockClock,
) -> None:
    shelf, stream = Shelf(), Script([broken()] * 12)
    async with running(engine_with(stream, shelf)):
        await trio.sleep(4000)
        delays = [b - a for a, b in pairwise(stream.opened_at)]
        assert delays[:6] == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
        assert max(delays) == LONGEST_DELAY
        assert reported(shelf) == ["stream_failed", "stream_fallback", "stream_connected"]


async def test_stream_that_breaks_is_reported_and_opened_again(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    async with running(engine_with(stream, shelf)):
        await trio.sleep(10)
        stream.say(Hints())
        stream.say(broken())
        await trio.sleep(1.5)
        assert reported(shelf) == ["stream_connected", "stream_closed", "stream_failed", "stream_connected"]
        assert stream.opened_at == [0.0, 11.0]
        assert stream.open_now == 1


async def test_one_that_opens_and_breaks_at_once_again_and_again_is_not_up(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    for _ in range(6):
        stream.say(broken())
    async with running(engine_with(stream, shelf)):
        await trio.sleep(20)
        assert stream.opened_at == [0.0, 1.0, 3.0, 7.0, 15.0]
        assert reported(shelf).count("stream_fallback") == 1


async def test_each_outage_of_the_stream_is_reported_once(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script([broken()] * 5)
    async with running(engine_with(stream, shelf)):
        await trio.sleep(100)
        assert reported(shelf).count("stream_fallback") == 1
        stream.say(Hints())  # It was up.
        stream.faults = [broken()] * 5
        stream.say(broken())
        await trio.sleep(100)
        assert reported(shelf).count("stream_fallback") == 2
        assert reported(shelf)[-1] == "stream_connected"


async def test_stream_that_ends_again_and_again_is_reopened_once_a_second(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    for _ in range(5):
        stream.say(Hints(ended=True))
    async with running(engine_with(stream, shelf)):
        await trio.sleep(4.5)
        assert stream.opened_at == [0.0, 1.0, 2.0, 3.0, 4.0]


async def test_source_without_a_stream_is_polled_and_the_fallback_is_reported_once(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script([StreamFailedError(PermissionError("no"), is_final=True)])
    async with running(engine_with(stream, shelf, poll_interval=5.0)):
        await trio.sleep(21)
    assert reported(shelf) == ["stream_fallback"]
    assert stream.opened_at == [0.0]
    assert shelf.claimed_at == [0.0, 5.0, 10.0, 15.0, 20.0]


async def test_polls_follow_the_mode_and_each_change_looks_at_once(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script([broken(), broken()])
    async with running(engine_with(stream, shelf, poll_interval=2.0, safety_poll_interval=50.0)):
        await trio.sleep(100)
        assert stream.opened_at == [0.0, 1.0, 3.0]
        assert shelf.claimed_at == [0.0, 2.0, 3.0, 53.0]
        stream.say(Hints())
        stream.say(broken())
        stream.faults = [broken()]
        await trio.sleep(10)
    # Broken at 100, tried at 101, up again at 103 (the timer of the polls set anew each time).
    assert shelf.claimed_at[4:] == [100.0, 102.0, 103.0]


async def test_request_to_end_is_looked_for_at_once_among_the_claims_it_concerns(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(items=[1, 2, 3], handler=sleeping(1000)), Script()
    reasons: dict[int, CancelReason | None] = {}

    async def handler(run: Run[int]) -> None:
        try:
            await trio.sleep(1000)
        finally:
            reasons[run.claim] = run.reason

    shelf.handler = handler
    async with running(engine_with(stream, shelf, heartbeat_interval=100.0)) as nursery:
        await trio.sleep(1.5)
        shelf.unwanted.add(2)
        stream.say(Hints(is_cancel_requested=lambda claim: claim == 7))
        stream.say(Hints(is_cancel_requested=lambda claim: claim == 2))
        await trio.sleep(0.5)
        # The one that follows the opening aside, which may have found some claimed already.
        assert [renewal for renewal in shelf.renewed if renewal[0] > 0] == [(1.51, [2])]
        assert reasons == {2: CancelReason.USER}
        nursery.cancel_scope.cancel()


async def test_request_about_a_claim_that_is_in_flight_is_not_lost(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(handler=sleeping(1000), claim_takes=0.25), Script()
    async with running(engine_with(stream, shelf, heartbeat_interval=300.0, safety_poll_interval=1000.0)) as nursery:
        await trio.sleep(1)
        shelf.items = [1]
        shelf.unwanted.add(1)
        stream.say(Hints(look=True))
        await trio.sleep(0.1)
        # The database has granted it, and the answer is on its way.
        stream.say(Hints(is_cancel_requested=lambda claim: claim == 1))
        await trio.sleep(1)
        assert shelf.settled[1].reason is CancelReason.USER
        nursery.cancel_scope.cancel()


async def test_request_that_is_found_when_its_claim_is_settled_does_not_cancel_what_goes_on(
    autojump_clock: MockClock,
) -> None:
    shelf, stream = Shelf(items=[1]), Script()
    engine = engine_with(stream, shelf, heartbeat_interval=100.0)
    ends: list[tuple[float, CancelReason | None]] = []

    async def write() -> tuple[tuple[int, RunEnd], bool | None]:
        await trio.sleep(1)
        return (1, RunEnd(None, "by itself", cancelled=False, reason=None, duration=0.0)), True

    async def handler(run: Run[int]) -> None:
        await trio.sleep(5)
        assert await engine.settle_by(run, write)
        await trio.sleep(50)
        ends.append((trio.current_time(), run.reason))

    shelf.handler = handler
    stream.answer_takes, stream.requested = 3.0, {1}
    async with running(engine):
        await trio.sleep(5.5)
        stream.say(Hints(is_cancel_requested=lambda claim: claim == 1))
        await trio.sleep(60)
    assert stream.asked == [[1]]
    assert ends == [(56.0, None)]


async def test_claim_that_hangs_does_not_keep_others_from_being_asked_to_end(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(items=[1], handler=sleeping(1000)), Script()
    async with running(engine_with(stream, shelf, heartbeat_interval=300.0, safety_poll_interval=1000.0)) as nursery:
        await trio.sleep(1)
        shelf.claim_takes = 100.0
        stream.say(Hints(look=True))
        stream.say(Hints(is_cancel_requested=lambda claim: claim == 7))
        stream.say(Hints(is_cancel_requested=lambda claim: claim == 1))
        shelf.unwanted.add(1)
        await trio.sleep(2 * CLAIM_TIMEOUT + 0.5)
        assert shelf.settled[1].reason is CancelReason.USER
        nursery.cancel_scope.cancel()


async def test_requests_to_end_are_heard_while_the_scheduler_drains(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(items=[1], handler=sleeping(1000)), Script()
    async with running(engine_with(stream, shelf, heartbeat_interval=100.0)) as nursery:
        await trio.sleep(1)
        nursery.start_soon(_ask_to_end, shelf, stream)
    assert trio.current_time() == pytest.approx(6.0, abs=0.02)


async def test_request_that_was_made_while_there_was_no_stream_is_heard_when_it_is_back(
    autojump_clock: MockClock,
) -> None:
    shelf, stream = Shelf(items=[1], handler=sleeping(50)), Script()
    async with running(engine_with(stream, shelf, heartbeat_interval=100.0)):
        await trio.sleep(10)
        stream.say(broken())
        await trio.sleep(0.5)
        shelf.unwanted.add(1)
        await trio.sleep(1)
        assert shelf.settled[1].reason is CancelReason.USER
    assert shelf.renewed[-1] == (11.0, [1])


async def _ask_to_end(shelf: Shelf, stream: Script) -> None:
    await trio.sleep(5)
    shelf.unwanted.add(1)
    stream.say(Hints(is_cancel_requested=lambda claim: claim == 1))


async def test_stream_that_ended_in_order_is_opened_again_at_once(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    async with running(engine_with(stream, shelf)):
        await trio.sleep(5)
        stream.say(Hints(look=True, ended=True))
        await trio.sleep(1)
        assert stream.opened_at == [0.0, 5.0]
        assert reported(shelf) == ["stream_connected", "stream_closed", "stream_connected"]
        assert 5.0 in shelf.claimed_at


async def test_wait_that_cannot_be_ended_is_left_in_time(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(), Script()
    stream.is_deaf = True
    async with running(engine_with(stream, shelf)):
        await trio.sleep(5)
    assert trio.current_time() == 5.0 + LEAVING_TIMEOUT
    assert reported(shelf) == ["stream_connected", "stream_closed"]


async def test_engine_leaves_at_once_where_the_write_that_ends_the_wait_fails(autojump_clock: MockClock) -> None:
    """Nothing else ends that wait: it would use up the time for leaving in vain."""
    shelf, stream = Shelf(), Script()
    stream.fault_of_end_wait = broken()
    async with running(engine_with(stream, shelf)):
        await trio.sleep(5)
    assert trio.current_time() == 5.0
    assert reported(shelf) == ["stream_connected", "stream_closed"]


@pytest.mark.full
async def test_stream_is_opened_again_after_an_outage_of_half_a_day(autojump_clock: MockClock) -> None:
    """The delay is doubled in floats, which end after a thousand failures."""
    shelf, stream = Shelf(), Script([broken()] * 1100)
    async with running(engine_with(stream, shelf, poll_interval=1000.0, safety_poll_interval=1000.0)):
        await trio.sleep(1100 * LONGEST_DELAY)
        assert reported(shelf) == ["stream_failed", "stream_fallback", "stream_connected"]


async def test_single_new_item_waits_little_for_the_one_before(autojump_clock: MockClock) -> None:
    shelf, stream = Shelf(handler=sleeping(0)), Script()
    async with running(engine_with(stream, shelf, poll_interval=1000.0, safety_poll_interval=1000.0)) as nursery:
        await trio.sleep(1)
        looks = len(shelf.claimed_at)
        for item in range(10):
            shelf.items.append(item)
            stream.say(Hints(due=trio.current_time(), last_due=trio.current_time(), item=KnownItem(item, "all")))
            await trio.sleep(1.5 * PACE_OF_ONE)
            assert item in shelf.settled
        assert shelf.asked_for_one == list(range(10))
        assert len(shelf.claimed_at) == looks
        nursery.cancel_scope.cancel()
