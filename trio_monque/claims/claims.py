"""open_claims and run_claims: `SELECT ... FOR UPDATE SKIP LOCKED` for the documents of any collection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Generic, Self, TypeVar, Unpack

import trio

from ..async_with import entered_by_async_with
from ..call_context import async_calls
from ..checks import is_async, problem_of_handler
from ..errors import ClaimLostError, InvalidOptionError
from ..host.host import Body
from ..log import logger_of
from ..store.types import TypedCollection
from .assembly import Listeners, Parts, assembled
from .claim import Claim
from .claim_work import ClaimWork
from .delivery import ClaimQueue, HandlerSlots
from .options import ClaimConfig, ClaimOptions, claim_config
from .reporting import ClaimsReport, log_extra

logger = logger_of("claims")

DocT = TypeVar("DocT", bound=Mapping[str, Any])


@async_calls("In a thread of trio's, call trio.from_thread.run(claims.{name})")
class RunningClaims:
    """Claims that are running: the value that `nursery.start(run_claims, ...)` returns."""

    def __init__(self, parts: Parts, config: ClaimConfig) -> None:
        self._parts = parts
        self._config = config

    @property
    def id(self) -> str:
        """This instance's name in locks and in logs."""
        return self._config.instance_id

    @property
    def report(self) -> ClaimsReport | None:
        """The report; None until the claims have ended."""
        return self._parts.host.report

    def drain(self) -> None:
        """Begin a graceful shutdown: claim nothing more, and let running work finish within `shutdown_timeout`.

        May be called from any thread, more than once, and after the end.
        """
        self._parts.host.drain()

    async def wait_drained(self) -> None:
        """Wait until the claims have ended. It does not start a drain."""
        await self._parts.host.ended.wait()


class Claims(RunningClaims, Generic[DocT]):
    """An async iterator of claims. Only `open_claims` makes it.

    Several tasks may iterate at once. The iteration ends when no document is left (`wait=False`), or after `drain()`.
    """

    def __init__(self, parts: Parts, config: ClaimConfig, queue: ClaimQueue) -> None:
        super().__init__(parts, config)
        self._queue = queue

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim[DocT]:
        claim = await self._queue.take()
        if claim is not None:
            return claim
        if self._parts.engine.stop.crashes:
            await trio.sleep_forever()  # The host cancels this body and raises the crash.
        raise StopAsyncIteration


@entered_by_async_with("claims")
@asynccontextmanager
async def open_claims(
    collection: TypedCollection[DocT],
    filter: Mapping[str, Any],  # noqa: A002  # As it is called everywhere.
    *,
    listeners: Listeners | None = None,
    **options: Unpack[ClaimOptions],
) -> AsyncIterator[Claims[DocT]]:
    """Claim documents that match a filter while the body runs; hand out at most `concurrency` at a time.

        async with open_claims(db.messages, {"location": None}, wait=False) as claims:
            async for claim in claims:
                async with claim:
                    await claim.finish({"$set": {"location": await locate(claim.document["address"])}})

    When the body ends, no more documents are claimed. Claims that no task has entered with `async with claim` are
    released at once; the others may finish within `shutdown_timeout`. When the body raises or is cancelled, work on
    claims is cancelled, and their documents are released.

    Args:
        collection: A `pymongo.collection.Collection` of a client with room for 17 connections.
        filter: Which documents to claim. After `finish`, a document must not match it any more.
        listeners: Functions by event class: DocumentFailed, DocumentDeadLettered, DocumentClaimLost, DocumentsRescued.
        options: See ClaimConfig.

    Raises:
        InvalidDatabaseError, InvalidOptionError: Raised at once; the message names what is wrong.
        MissingIndexError: No index serves the filter, and the collection is large.
        MonqueConnectionError: The database cannot be reached or used.
        FilterStillMatchesError: A finished document still matched the filter and was claimed again.
    """
    config = claim_config(options)
    queue = ClaimQueue(config.concurrency)
    parts = assembled(collection, filter, config, listeners, queue.offer)

    async def close_when_draining(_in_body: trio.CancelScope) -> None:
        await parts.engine.stop.draining.wait()
        queue.close()

    def release_idle() -> None:
        queue.close()
        queue.release_idle()

    # After a crash, blocks raise ClaimLostError because their work is cancelled. Only the crash is worth raising.
    body = Body(
        name="open_claims",
        beside=close_when_draining,
        at_end=release_idle,
        is_echo=lambda error: isinstance(error, ClaimLostError),
    )
    async with parts.host.opened(body):
        yield Claims(parts, config, queue)


async def run_claims(
    collection: TypedCollection[DocT],
    filter: Mapping[str, Any],  # noqa: A002
    handler: Callable[[Claim[DocT]], Awaitable[object]],
    *,
    listeners: Listeners | None = None,
    task_status: trio.TaskStatus[RunningClaims] = trio.TASK_STATUS_IGNORED,
    **options: Unpack[ClaimOptions],
) -> ClaimsReport:
    """Claim documents that match a filter, and call an async handler with each claim, in a task of its own.

    A handler calls `claim.finish(update)`. If it returns without that call, the lock is removed. If it raises, the
    attempt has failed, and the document is claimed again after a backoff, up to `max_attempts`. `Retry`, `Snooze` and
    `Discard` mean the same as for jobs. A handler is cancelled when the lock is lost.

    Returns the report when no document is left (`wait=False`), or after `drain()` of the object that `nursery.start`
    returns. If the call is cancelled, it cancels the handlers, releases their documents, and ends within
    `cleanup_timeout` plus two seconds. Arguments, options and errors are those of `open_claims`.
    """
    if problem := problem_of_handler(handler, "claim") or ("" if is_async(handler) else "must be an async function"):
        raise InvalidOptionError("handler", handler, problem)
    config = claim_config(options)
    slots = HandlerSlots(config.concurrency)
    parts = assembled(
        collection, filter, config, listeners, partial(_work, handler, slots, config.redact_errors is None)
    )
    return await parts.host.run_unwrapped(lambda: task_status.started(RunningClaims(parts, config)))


# The engine's own loops are protected from Ctrl-C, and a protected caller would protect its handlers, too.
@trio.lowlevel.disable_ki_protection
async def _work(
    handler: Callable[[Claim[Any]], Awaitable[object]],
    slots: HandlerSlots,
    shows_errors: bool,  # noqa: FBT001
    claim: Claim[Any],
    work: ClaimWork,
) -> None:
    await slots.enter(work)
    try:
        await handler(claim)
    except ClaimLostError:
        raise  # The engine has reported the loss already.
    except Exception:
        if work.is_over:  # The settlement is made, so no event or report has this error: only this line.
            logger.error(
                "the work on document %s failed after its claim had ended; the document does not change",
                claim.id,
                exc_info=shows_errors,
                extra=log_extra(claim.id, claim.attempt),
            )
        raise
    finally:
        slots.leave(work)
        work.end()
