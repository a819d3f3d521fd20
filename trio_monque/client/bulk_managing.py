"""Many jobs at once, and documents that are none: through the door, on any anyio backend."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Unpack

from ..call_context import async_calls
from ..jobs.bulk_changes import BulkResult
from ..jobs.job_selector import Selection
from ..jobs.views import BrokenDocument
from ..store.database_threads import DatabaseThreads
from .broken import Sifting
from .bulk import DEFAULT_SPREAD, Bulk, cancelling, check_on_progress, deleting, retrying
from .bus import Bus
from .context import ClientContext
from .enqueuing import IN_A_THREAD
from .wake_board import Announcer

OnProgress = Callable[[BulkResult], Awaitable[object] | object]


@async_calls(IN_A_THREAD)
class BulkManaging:
    """Manages many jobs. A base of Monque, which makes the attributes."""

    _context: ClientContext
    _door: DatabaseThreads
    _bus: Bus
    _announcer: Announcer

    async def cancel_jobs(self, *, on_progress: OnProgress | None = None, **selection: Unpack[Selection]) -> BulkResult:
        """Cancels the selected jobs that are pending; those that run are not asked to end.

        In batches of at most 1,000, in the order of their ids. Each write repeats the selection: what has
        changed meanwhile, and is not selected any more, is left alone. Jobs that are enqueued after the call
        began may be left out. Told as `JobsCancelled`, once, and only if there were any.

        Cancelled, it ends after the batch that is under way. What was done by then stays done, and is told.

        Args:
            name: Only jobs of this name, or of one of these.
            status: Only jobs of this status, or of one of these. If none of them is `pending`, there is
                nothing to do, and the database is not asked.
            older_than: Only jobs with `created_at` before this moment, timezone-aware.
            newer_than: Only jobs with `created_at` after this moment.
            fail_reason: Only jobs with this text somewhere in `fail_reason`, to the letter. No index serves
                that: every job that the rest of the selection leaves is read.
            fail_reason_prefix: Only jobs whose `fail_reason` begins with this text; read in the same way.
            on_progress: Called after each batch with what was done so far; it may be async. What it raises
                ends the action and is raised on.

        Raises:
            InvalidOptionError: The selection cannot be, or selects nothing; names what is wrong.
            PartialBulkError: The database stopped answering after a part of it; tells how many are done.
            MonqueConnectionError: The database cannot be reached or used, and nothing was done.
        """
        return await self._run_bulk(cancelling(self._context, selection), on_progress)

    async def retry_jobs(
        self, *, spread: float = DEFAULT_SPREAD, on_progress: OnProgress | None = None, **selection: Unpack[Selection]
    ) -> BulkResult:
        """Makes the selected jobs that are failed or cancelled pending again, with all their tries.

        As `retry_job` does with one, but due within a window and not all at once. A job whose unique key
        another pending or processing job has is refused and told in the result: also the second of two
        selected jobs with one key. Told as `JobsRetried`. For the rest, see `cancel_jobs`.

        Args:
            spread: Seconds over which each batch falls due, evenly. 0 for all at once.
            on_progress: See `cancel_jobs`.
            selection: See `cancel_jobs`.

        Raises:
            InvalidOptionError, PartialBulkError, MonqueConnectionError: See `cancel_jobs`.
        """
        return await self._run_bulk(retrying(self._context, selection, spread), on_progress)

    async def delete_jobs(
        self, *, everything: bool = False, on_progress: OnProgress | None = None, **selection: Unpack[Selection]
    ) -> BulkResult:
        """Deletes the selected jobs, whatever their status. A run of one loses its claim with that.

        Documents that are not jobs are left, and told in the result. Told as `JobsDeleted`. For the rest, see
        `cancel_jobs`.

        Args:
            everything: Every job, which nothing but this word selects.
            on_progress: See `cancel_jobs`.
            selection: See `cancel_jobs`.

        Raises:
            InvalidOptionError: There is no selection, and not `everything` either; or see `cancel_jobs`.
            PartialBulkError, MonqueConnectionError: See `cancel_jobs`.
        """
        return await self._run_bulk(deleting(self._context, selection, everything=everything), on_progress)

    async def get_broken_documents(self, *, limit: int = 100) -> Sequence[BrokenDocument]:
        """Documents of the collection that no scheduler runs, and why; at most `limit` of them.

        Those that are not jobs (a field is missing or of the wrong type, the status is unknown, the data cannot be
        decoded), and pending jobs that still bear an owner. It reads the whole collection, in
        batches, until it has found so many.

        A scheduler looks at those that it met once a minute: one that was mended runs without a restart.

        Raises:
            InvalidOptionError: `limit` is not a whole number of at least 1.
            MonqueConnectionError: The database cannot be reached or used.
        """
        sifting = Sifting(self._context.jobs, limit)
        while not sifting.is_over:
            await self._door.call(sifting.step, abandon_on_cancel=True)
        return sifting.found

    async def _run_bulk(self, one: Bulk, on_progress: OnProgress | None) -> BulkResult:
        check_on_progress(on_progress)
        try:
            while not one.is_over:
                with one.waking(self._announcer):
                    await self._door.call(one.step)
                if on_progress is not None:
                    answer = on_progress(one.result)
                    if inspect.isawaitable(answer):
                        await answer
        except BaseException:
            await self._bus.tell_all(one.told(), has_failed=True)
            raise
        await self._bus.tell_all(one.told())
        return one.result
