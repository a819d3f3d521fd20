"""MinuteWriter: writes what the scheduler did in the last minutes, beside its heartbeats. No job depends on it."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from ..client.client_context import ClientContext
from ..error_types import MonqueConnectionError
from ..jobs.minutes import Part
from ..log import logger_of
from ..store.driver.database_threads import DatabaseThreads
from ..store.jobs import minutes_written
from .minute_counts import MinuteCounts

logger = logger_of("scheduler")

TTL_KNOWN_FOR: Final = timedelta(hours=1)
"""Then it is created again if it is gone: with the collection, for example, which the next write makes anew."""


class MinuteWriter:
    """Writes the minutes of one scheduler. A minute is written once it is over, and the last one at the end."""

    def __init__(
        self, context: ClientContext, db_threads: DatabaseThreads, counts: MinuteCounts, instance_id: str
    ) -> None:
        self._context = context
        self._db_threads = db_threads
        self._counts = counts
        self._id = instance_id
        self._incarnation = secrets.token_hex(8)
        self._ttl_until: datetime | None = None
        self._has_failed = False

    async def write_what_is_over(self, now: datetime) -> None:
        """Write the minutes that are over; `now` is the server's time."""
        await self._write(self._counts.over_by(now))

    async def write_all(self) -> None:
        """Write what is left, when nothing more is counted."""
        await self._write(self._counts.all_so_far())

    async def _write(self, parts: Sequence[Part]) -> None:
        if not parts:
            return
        try:
            await self._db_threads.call(partial(self._send, parts), abandon_on_cancel=True)
        except MonqueConnectionError as error:
            if not self._has_failed:
                logger.warning(
                    "%s; retrying at each heartbeat (no job is affected; minutes=False turns it off)",
                    error,
                )
            self._has_failed = True  # Logged once: the user may not be allowed to write there.
            return
        self._has_failed = False
        self._counts.written(parts)

    def _send(self, parts: Sequence[Part]) -> None:
        last = parts[-1].at
        if not self._context.config.skip_index_creation and (self._ttl_until is None or last > self._ttl_until):
            minutes_written.ensure_ttl(self._context.jobs)
            self._ttl_until = last + TTL_KNOWN_FOR
        minutes_written.write(self._context.jobs, self._id, self._incarnation, parts)
