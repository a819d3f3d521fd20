"""Observes the locks of other holders, and rescues documents whose holder is dead.

The reaper of the engine decides which holders are dead (`observations.py`). The guarded write that takes their locks
away is in `store/documents/rescuing.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from functools import partial

from ..engine.source import Control
from ..error_types import MonqueConnectionError, MonqueError
from ..locks_and_dead_letters import NEVER
from ..observations import Sighting
from ..store import documents
from ..store.documents.rescuing import SeenLock, Takeaway
from ..store.driver.database_threads import Channel
from ..store.driver.driver_errors import is_timeout
from .context import ClaimsContext
from .events_and_report import RescuedDocument
from .locked_document import HeldDocument
from .settlement import DocumentSettlement, lock_after_failure


class DocumentRescues:
    """The `RescueSource` of documents. Used on the thread of the trio run."""

    def __init__(self, shared: ClaimsContext, control: Control[HeldDocument, DocumentSettlement]) -> None:
        self._locked = shared.locked
        self._db_threads = shared.db_threads
        self._time = shared.time
        self._skew = shared.config.clock_skew
        self._policy = shared.policy
        self._control = control
        self._unanswered: Sequence[Takeaway] = ()

    async def observe(self, own: Sequence[HeldDocument]) -> Sequence[Sighting[SeenLock]]:
        """Return the locks of all documents, except our own."""
        look = partial(self._look, {(one.key, one.cycle.stamp.token) for one in own})
        return await self._db_threads.call(look, channel=Channel.CLAIMS, abandon_on_cancel=True)

    def _look(self, ours: Set[tuple[bytes, str | None]]) -> Sequence[Sighting[SeenLock]]:
        found = documents.rescuing.observe(self._locked)
        now = self._time.now()
        # By document and token, and not by the name of this instance: a lock with this name and another token is that
        # of an earlier claim, which this instance does not renew any more.
        return [self._sighting(one, now) for one in found if (one.key, one.lock.token) not in ours]

    def _sighting(self, seen: SeenLock, now: datetime) -> Sighting[SeenLock]:
        lock = seen.lock
        assert lock.until is not None, "a lock that is held has an until"
        left = (lock.until - now) / timedelta(seconds=1) + self._skew
        mark = (lock.by, lock.token, lock.until)
        if lock.is_ours:
            # An instance of this library renews its lock each heartbeat. Clocks differ, so the date in the lock proves
            # nothing: the holder is dead after a whole lease without a renewal, on the clock of this instance. At the
            # start of this instance, before it can have observed that, a date that has passed is enough (`is_stale`).
            return Sighting(seen, seen.key, mark, lock.lease, is_stale=left < 0)
        # A program that knows only `by` and `until` never renews: all that is known of it is its date. Its lock is
        # protected until then, plus `clock_skew`; without an end, for ever.
        return Sighting(seen, seen.key, mark, 0.0, protected_for=left if lock.until < NEVER else math.inf)

    async def rescue(self, dead: Sequence[SeenLock]) -> Sequence[RescuedDocument]:
        """Take these locks away; return the documents that had not changed since they were observed.

        After a transient error, the next call sends what was not answered once more, unchanged.
        """
        # What was sent is kept until it is answered. A second attempt with a new date could not recognize what the
        # first one wrote: these documents would be rescued, but neither reported nor announced.
        sent_before = {self._locked.key_of(one.id) for one in self._unanswered}
        new = [one for one in dead if one.key not in sent_before]
        if new or not self._unanswered:
            now = await self._time.refreshed(self._db_threads, Channel.CLAIMS)
            self._unanswered = [*self._unanswered, *(self._takeaway(one, now) for one in new)]
        sent = self._unanswered
        answers = await self._db_threads.call(partial(self._take, sent), channel=Channel.CLAIMS, abandon_on_cancel=True)
        by_key = {self._locked.key_of(one.id): one for one in sent}
        self._unanswered = [one for key, one in by_key.items() if key not in answers]
        rescued = [one for key, one in by_key.items() if answers.get(key)]
        for one in rescued:
            until = one.becomes["until"]
            if until < NEVER:
                # The document waits for its backoff. No look shows that, so it needs a timer.
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

    def rescue_abandoned(self) -> None:
        """Do nothing: the next look of any instance finds what is free."""

    def _take(self, sent: Sequence[Takeaway]) -> Mapping[bytes, bool]:
        """Return by the key of each document that was answered whether its lock was taken away."""
        try:
            taken = documents.rescuing.rescue(self._locked, sent)
        except MonqueConnectionError as error:
            if not is_timeout(error) or len(sent) == 1:
                raise
            # One locked document must not keep the others from their rescue.
            answers = documents.rescuing.rescue_in_parts(self._locked, sent)
            if not answers:
                raise
            return answers
        return {key: key in taken for key in (self._locked.key_of(one.id) for one in sent)}

    def _takeaway(self, seen: SeenLock, now: datetime) -> Takeaway:
        lock = seen.lock
        error = MonqueError(f"its holder {lock.by} died, or stopped renewing its lock")
        return Takeaway(seen.id, lock, lock_after_failure(lock.tries + 1, error, now, self._policy))
