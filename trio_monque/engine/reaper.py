"""Takes dead claims away. Whether a claim is dead is observed, not computed from its dates: see `observations`.

Races that this file closes:

- A renewal arrives while a look is in flight. The lease of an observed claim is counted from after the answer.
- The holder renews between the look and the rescue. The source takes a claim only as it was observed; a claim that has
  changed is not taken, and the next look observes it anew.
- The answer to a rescue is lost. The same claims are sent again, whatever a look has shown meanwhile: the first attempt
  may have been applied, and its jobs must be reported once, and counted once.
- The engine ends while a rescue is in flight. The engine waits for the answer (see `grace`), so that what it took is
  reported. If it is unknown, `rescue_abandoned` tells the source: claims may be free that no loop here looks for.
- A look is asked for while one is under way. `_must_look` is cleared before the look, so that the request survives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, Generic, NoReturn, TypeVar

import trio

from ..grace import Grace
from ..loop_time import loop_time
from ..observations import Observations, Sighting
from .observer import RescueObserver
from .pauses import Pauses
from .progress import Progress
from .source import RescueSource

ClaimT = TypeVar("ClaimT")
SeenT = TypeVar("SeenT")
RescuedT = TypeVar("RescuedT")

LOOKS_PER_INTERVAL: Final = 2
MOST_AT_ONCE: Final = 100
"""How many claims one call of the source takes away: it may read all of each item."""

# A failed look or write is tried again after this share of the interval.
RETRY_SHARE: Final = 1 / 10
LONGEST_RETRY: Final = 1.0


class Reaper(Generic[ClaimT, SeenT, RescuedT]):
    """The loop that looks at the claims of others every half of an interval, and when one of them may have died.

    Args:
        held: What this instance itself holds and renews.
        interval: Seconds, of the own heartbeat.
        is_announced: Whether this process announces who claims and who leaves. If it does, then in virtual time the
            reaper looks at the start and after an announcement, and goes on only as long as it sees claims.
    """

    def __init__(
        self,
        source: RescueSource[ClaimT, SeenT, RescuedT],
        observer: RescueObserver[RescuedT],
        held: Callable[[], Sequence[ClaimT]],
        pauses: Pauses,
        *,
        interval: float,
        is_announced: bool,
    ) -> None:
        self._source = source
        self._observer = observer
        self._held = held
        self._pauses = pauses
        self._interval = interval
        self._waits_for_events = is_announced and loop_time().is_event_driven
        self._observations: Observations[SeenT] = Observations()
        self._look_at = -math.inf
        self._own_end = math.inf
        self._must_look = True
        self._watched: set[Callable[[], bool]] = set()
        self._signal = trio.Event()
        self.progress = Progress("reaper")
        self._unanswered: Sequence[Sighting[SeenT]] = ()
        self._grace = Grace()

    @property
    def _pause(self) -> float:
        return self._interval / LOOKS_PER_INTERVAL

    def look(self) -> None:
        """Another instance may have left claims behind."""
        self._must_look = True
        self._signal.set()

    def watch(self, is_idle: Callable[[], bool]) -> None:
        """A neighbour has claimed something, and holds it until it `is_idle`.

        In virtual time it must have seen the last sign of life of an instance that dies soon after, or that death
        would be noticed later than it has to be.
        """
        if self._waits_for_events:
            self._watched.add(is_idle)
            self._look_at = min(self._look_at, trio.current_time() + self._pause)
            self._signal.set()

    def unrenewed_from(self, moment: float) -> None:
        """A claim of this instance's own is renewed no longer from then on, and is as any other's.

        In virtual time it must see that claim, too.
        """
        if self._waits_for_events and moment < self._own_end:
            self._own_end = moment
            self._signal.set()

    def end_grace(self) -> None:
        """If it was cancelled, it no longer waits for an answer."""
        self._grace.end()

    async def run(self) -> NoReturn:
        try:
            await self._run()
        finally:
            if self._unanswered:
                self._source.rescue_abandoned()

    async def _run(self) -> NoReturn:
        at_start = True
        while True:
            self._signal = trio.Event()
            if self._is_time_to_look():
                if not await self._look(at_start=at_start):
                    continue
                at_start = False
            if not await self._rescue():
                continue
            self.progress.plan(min(self._look_at, self._own_end, self._observations.next_due))
            with trio.move_on_at(min(self._look_at, self._own_end, self._observations.next_due)):
                await self._signal.wait()

    def _is_time_to_look(self) -> bool:
        if trio.current_time() >= self._own_end:
            self._own_end = math.inf
            self._must_look = True
        if self._must_look:
            return True
        if trio.current_time() < self._look_at:
            return False
        self._look_at = math.inf
        watched, self._watched = self._watched, set()
        return not self._waits_for_events or bool(self._observations) or not all(is_idle() for is_idle in watched)

    async def _look(self, *, at_start: bool) -> bool:
        # Before the look: what is announced while it is under way may or may not be in its answer.
        self._must_look = False
        self._look_at = math.inf
        self.progress.ask()
        try:
            seen = await self._source.observe(self._held())
        except Exception as error:
            if not self._source.is_transient(error):
                raise
            self._must_look = True
            await self._after_fault(error)
            return False
        self.progress.answered()
        answered = trio.current_time()
        self._observations.update(seen, answered, at_start=at_start)
        # In virtual time it needs to see no sign of life but the last before a claim may be taken.
        watched_from = self._observations.watched_from if self._waits_for_events else answered
        self._look_at = min(self._look_at, max(watched_from, answered + self._pause))
        return True

    async def _rescue(self) -> bool:
        # What was sent and not answered is sent again, whatever a look has shown since: it may have been applied.
        while dead := self._unanswered or self._observations.due(trio.current_time(), MOST_AT_ONCE):
            await trio.lowlevel.checkpoint_if_cancelled()
            self._unanswered = dead
            self.progress.ask()
            try:
                rescued = await self._ask_for(dead)
            except Exception as error:
                if not self._source.is_transient(error):
                    raise
                await self._after_fault(error)
                return False
            self.progress.answered(len(rescued))
            self._unanswered = ()
            # Whatever was not rescued has changed: if it is a claim still, the next look begins to observe it anew.
            self._observations.forget(dead)
            if rescued:
                self._observer.claims_rescued(rescued)
        return True

    async def _ask_for(self, dead: Sequence[Sighting[SeenT]]) -> Sequence[RescuedT]:
        """Rescue these claims. Cancelled, wait for the answer all the same (see `grace`): it says what was done."""
        scope = trio.CancelScope()
        with self._grace.waiting(scope), scope:
            self._grace.shield(scope)
            return await self._source.rescue([one.claim for one in dead])
        raise AssertionError("the scope has no deadline, and nothing cancels it")

    async def _after_fault(self, error: Exception) -> None:
        if self.progress.fail(error):
            self._observer.rescue_delayed(error)
        await self._pauses.after_fault(min(self._interval * RETRY_SHARE, LONGEST_RETRY))
