"""What is seen of the locks of others, and how those of dead holders are taken away: through the door."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from datetime import datetime, timedelta
from functools import partial

from ..document_lock import NEVER
from ..engine.source import Control
from ..errors import MonqueError
from ..observations import Sighting
from ..store import documents
from ..store.database_threads import Channel
from ..store.documents.rescuing import SeenLock, Takeaway
from .context import ClaimsContext
from .locked_document import HeldDocument
from .reporting import RescuedDocument
from .settlement import DocumentSettlement, lock_after_try


class Rescues:
    """Looks and takes."""

    def __init__(self, shared: ClaimsContext, control: Control[HeldDocument, DocumentSettlement]) -> None:
        self._locked = shared.locked
        self._door = shared.door
        self._time = shared.time
        self._skew = shared.config.clock_skew
        self._policy = shared.policy
        self._control = control
        self._unanswered: Sequence[Takeaway] = ()

    async def observe(self, ours: Set[tuple[bytes, str | None]]) -> Sequence[Sighting[SeenLock]]:
        """All locks but ours."""
        look = partial(self._look, ours)
        return await self._door.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)

    def _look(self, ours: Set[tuple[bytes, str | None]]) -> Sequence[Sighting[SeenLock]]:
        found = documents.rescuing.observe(self._locked)
        now = self._time.now()
        return [self._sighting(one, now) for one in found if (one.key, one.lock.token) not in ours]

    def _sighting(self, seen: SeenLock, now: datetime) -> Sighting[SeenLock]:
        lock = seen.lock
        assert lock.until is not None, "what is held says until when"
        left = (lock.until - now) / timedelta(seconds=1) + self._skew
        mark = (lock.by, lock.token, lock.until)
        if lock.is_ours:
            # Seen for a whole lease without a renewal. At the start, what its own date says is enough.
            return Sighting(seen, seen.key, mark, lock.lease, is_stale=left < 0)
        # Of whoever knows only this date it is all that there is.
        return Sighting(seen, seen.key, mark, 0.0, protected_for=left if lock.until < NEVER else math.inf)

    async def rescue(self, dead: Sequence[SeenLock]) -> Sequence[RescuedDocument]:
        """Takes these away; asked again after an error that passes, it sends the same: so it knows what was its own."""
        if not self._unanswered:
            now = await self._time.refreshed(self._door, Channel.CLAIMS)
            self._unanswered = [self._takeaway(one, now) for one in dead]
        sent = self._unanswered
        take = partial(documents.rescuing.rescue, self._locked, sent)
        taken = await self._door.call(take, channel=Channel.CLAIMS, abandon_on_cancel=True)
        self._unanswered = ()
        rescued = [one for one in sent if self._locked.key_of(one.id) in taken]
        for one in rescued:
            until = one.becomes["until"]
            if until < NEVER:
                self._control.expect(self._time.clock.on_run_clock(until))
        return [
            RescuedDocument(
                one.id,
                one.becomes["tries"],
                str(one.seen.by),
                one.becomes["until"] >= NEVER,
                str(one.becomes.get("error", "")),
            )
            for one in rescued
        ]

    def _takeaway(self, seen: SeenLock, now: datetime) -> Takeaway:
        lock = seen.lock
        error = MonqueError(f"its holder {lock.by} died, or has stopped renewing its lock")
        return Takeaway(seen.id, lock, lock_after_try(lock.tries + 1, error, now, self._policy))
