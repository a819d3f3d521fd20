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
from .reporting import ClaimsReport

logger = logger_of("claims")

DocT = TypeVar("DocT", bound=Mapping[str, Any])


@async_calls("In a thread of trio's, call trio.from_thread.run(claims.{name})")
class RunningClaims:
    """Documents are being claimed. Made by `run_claims`, and what `nursery.start` of it returns."""

    def __init__(self, parts: Parts, config: ClaimConfig) -> None:
        self._parts = parts
        self._config = config

    @property
    def id(self) -> str:
        """This instance's name in locks and in logs."""
        return self._config.instance_id

    @property
    def report(self) -> ClaimsReport | None:
        """What it did; None until it has ended."""
        return self._parts.host.report

    def drain(self) -> None:
        """Begins the orderly end: nothing new is claimed, and what is being worked on gets `shutdown_timeout`.

        May be said again, and from any thread; also when all has ended.
        """
        self._parts.host.drain()

    async def wait_drained(self) -> None:
        """Returns when it has ended, which somebody must have asked for, or nothing was left."""
        await self._parts.host.ended.wait()


class Claims(RunningClaims, Generic[DocT]):
    """An async iterator of claims. Made by `open_claims` only.

    Several tasks may ask for the next at once. It ends when nothing is left (`wait=False`), or after `drain()`.
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
            await trio.sleep_forever()  # Until this body is cancelled for it.
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
    """Claims documents that match a filter, for as long as the body; at most `concurrency` are given out at a time.

        async with open_claims(db.messages, {"location": None}, wait=False) as claims:
            async for claim in claims:
                async with claim:
                    await claim.finish({"$set": {"location": await locate(claim.document["address"])}})

    When the body ends, nothing new is claimed; what nobody works on inside `async with claim` is given back at once,
    and the rest gets `shutdown_timeout`. When the body raises or is cancelled, that is cancelled and given back.

    Args:
        collection: A `pymongo.collection.Collection` of a client with room for 17 connections.
        filter: Which documents; finishing one must make it false.
        listeners: Functions by event class: DocumentFailed, DocumentDeadLettered, DocumentClaimLost, DocumentsRescued.
        options: See ClaimConfig.

    Raises:
        InvalidDatabaseError, InvalidOptionError: At once, naming what is wrong.
        MissingIndexError: No index serves the filter, and the collection is large.
        MonqueConnectionError: The database cannot be reached or used.
        FilterStillMatchesError: A document that was finished was claimed again, and nobody else had touched it.
    """
    config = claim_config(options)
    queue = ClaimQueue(config.concurrency)
    parts = assembled(collection, filter, config, listeners, queue.offer)

    async def close_when_draining(_in_body: trio.CancelScope) -> None:
        await parts.engine.stop.draining.wait()
        queue.close()

    def give_back() -> None:
        queue.close()
        queue.give_back_idle()

    # What a block raises because the claims have crashed says nothing beside that.
    body = Body(
        name="open_claims",
        beside=close_when_draining,
        at_end=give_back,
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
    """Claims documents that match a filter, and calls an async handler with each, in a task of its own.

    A handler calls `claim.finish(update)`. One that returns without has the lock taken away; one that raises has
    failed, and its document is claimed again after a backoff, until `max_attempts`; `Retry`, `Snooze` and `Discard`
    mean what they mean for jobs. It is cancelled when the lock is lost.

    Returns what it did, when nothing is left (`wait=False`), or after `drain()` of what `nursery.start` returns.
    Cancelled, it cuts: handlers are cancelled, their documents given back, and it ends within `cleanup_timeout` plus
    two seconds. Arguments, options and errors are those of `open_claims`.
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
        raise  # It is told by itself.
    except Exception:
        if work.is_over:  # What becomes of the document does not tell of it any more.
            logger.error("the work on document %s failed after its claim had ended", claim.id, exc_info=shows_errors)
        raise
    finally:
        slots.leave(work)
        work.end()
