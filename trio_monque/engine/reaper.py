"""Takes dead claims away (*rescues* them). Whether a claim is dead is observed, not computed from its dates: a claim
that three of its heartbeat intervals have not changed has no living holder. See `observations`.

Two rules protect a holder that lives. The lease of an observed claim is counted from *after* the answer to the look: a
renewal may arrive while the look is in flight. And the source takes a claim only as it was observed: if its holder has
renewed it since the look, it is not taken, and the next look observes it anew.
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


class Reaper(Generic[ClaimT, SeenT, RescuedT]):
    """The loop that looks at the claims of others twice per heartbeat interval, and when one of them may be dead.

    Args:
        own: The claims that this instance itself renews.
        interval: Seconds from one heartbeat of this instance to the next.
        has_local_wakeups: Whether the other engines of this run announce that they claim and leave. If they do, then in
            virtual time the reaper looks at its start and after an announcement, and again only while it sees claims.
    """

    def __init__(
        self,
        source: RescueSource[ClaimT, SeenT, RescuedT],
        observer: RescueObserver[RescuedT],
        own: Callable[[], Sequence[ClaimT]],
        pauses: Pauses,
        *,
        interval: float,
        has_local_wakeups: bool,
    ) -> None:
        self._source = source
        self._observer = observer
        self._own = own
        self._pauses = pauses
        self._interval = interval
        self._waits_for_events = has_local_wakeups and loop_time().is_event_driven
        self._observations: Observations[SeenT] = Observations()
        self._look_at = -math.inf
        self._own_end = math.inf
        self._must_look = True
        self._watched: set[Callable[[], bool]] = set()
        self._signal = trio.Event()
        self.progress = Progress("reaper")
        self._unanswered: Sequence[Sighting[SeenT]] = ()
        # How long the answer to a rescue is awaited although the engine ends.
        self._grace = Grace()

    @property
    def _look_interval(self) -> float:
        return self._interval / LOOKS_PER_INTERVAL

    def look(self) -> None:
        """Another instance may have left claims behind."""
        self._must_look = True
        self._signal.set()

    def watch(self, is_idle: Callable[[], bool]) -> None:
        """Another engine of this run has claimed something, and holds claims until it `is_idle`."""
        # In virtual time no look comes by itself. Without this one, the claims of an engine that dies soon after would
        # first be seen after its death, and be observed for a whole lease from then on.
        if self._waits_for_events:
            self._watched.add(is_idle)
            self._look_at = min(self._look_at, trio.current_time() + self._look_interval)
            self._signal.set()

    def unrenewed_from(self, moment: float) -> None:
        """From that moment on, this instance does not renew one of its own claims: the reaper must observe it too."""
        # In real time a look comes twice per interval anyway.
        if self._waits_for_events and moment < self._own_end:
            self._own_end = moment
            self._signal.set()

    def end_grace(self) -> None:
        """Shortly before the hard end: a cancelled reaper no longer waits for the answer to its rescue."""
        self._grace.end()

    async def run(self) -> NoReturn:
        try:
            await self._run()
        finally:
            # The last rescue may have freed claims that no loop here looks for: the source makes other engines look.
            if self._unanswered:
                self._source.rescue_abandoned()

    async def _run(self) -> NoReturn:
        at_start = True  # Until the first look is answered: claims that are dead by their own dates are taken at once.
        while True:
            self._signal = trio.Event()  # Before the timers and flags are read: what is set after that ends the wait.
            self._check_timers()
            if self._must_look:
                if not await self._look(at_start=at_start):
                    continue
                at_start = False
            if not await self._rescue():
                continue
            self.progress.plan(min(self._look_at, self._own_end, self._observations.next_due))
            with trio.move_on_at(min(self._look_at, self._own_end, self._observations.next_due)):
                await self._signal.wait()

    def _check_timers(self) -> None:
        """Sets `_must_look` if a timer has come, and clears that timer."""
        now = trio.current_time()
        if now >= self._own_end:
            self._own_end = math.inf
            self._must_look = True
        if self._must_look or now < self._look_at:
            return
        self._look_at = math.inf
        watched, self._watched = self._watched, set()
        # In virtual time only while there is a claim to see: otherwise an idle month would be a million looks.
        self._must_look = (
            not self._waits_for_events or bool(self._observations) or not all(is_idle() for is_idle in watched)
        )

    async def _look(self, *, at_start: bool) -> bool:
        # Cleared before the look: a request that comes during it may concern a claim that its answer does not show.
        self._must_look = False
        self._look_at = math.inf
        self.progress.ask()
        try:
            seen = await self._source.observe(self._own())
        except Exception as error:
            if not self._pauses.is_transient(error):
                raise
            self._must_look = True
            await self._after_fault(error)
            return False
        self.progress.answered()
        answered = trio.current_time()  # After the answer, see above: the lease of what it shows begins here.
        self._observations.update(seen, answered, at_start=at_start)
        # In virtual time only the last sign of life before a claim may be taken matters; looks before it are skipped.
        watched_from = self._observations.watched_from if self._waits_for_events else answered
        self._look_at = min(self._look_at, max(watched_from, answered + self._look_interval))
        return True

    async def _rescue(self) -> bool:
        # What was sent and not answered is sent again, whatever a look has shown since. Without this, a first attempt
        # that was applied and whose answer was lost would never be reported and counted.
        while dead := self._unanswered or self._observations.due(trio.current_time(), MOST_AT_ONCE):
            # What follows waits in a shield: without this, a cancelled reaper would rescue batch after batch.
            await trio.lowlevel.checkpoint_if_cancelled()
            self._unanswered = dead
            self.progress.ask()
            try:
                rescued = await self._ask_for(dead)
            except Exception as error:
                if not self._pauses.is_transient(error):
                    raise
                await self._after_fault(error)
                return False
            self.progress.answered(len(rescued))
            self._unanswered = ()
            # All of them: a claim that was not rescued has changed. If it still exists, the next look observes it anew.
            self._observations.forget(dead)
            if rescued:
                self._observer.claims_rescued(rescued)
        return True

    async def _ask_for(self, dead: Sequence[Sighting[SeenT]]) -> Sequence[RescuedT]:
        # Cancelled, it still waits for the answer, until `end_grace`. Without this, a shutdown during a rescue would
        # leave it open which claims it took, and no one would report them.
        scope = trio.CancelScope()
        with self._grace.waiting(scope), scope:
            self._grace.shield(scope)
            return await self._source.rescue([one.claim for one in dead])
        raise AssertionError("`end_grace` takes the shield from the scope, but nothing cancels the scope itself")

    async def _after_fault(self, error: Exception) -> None:
        if self.progress.fail(error):
            self._observer.rescue_delayed(error)
        await self._pauses.after_failed_beat(self._interval)
