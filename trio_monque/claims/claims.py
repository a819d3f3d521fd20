"""open_claims and run_claims: `SELECT ... FOR UPDATE SKIP LOCKED` for the documents of any collection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, Generic, Self, TypeVar, Unpack

import anyio
import trio

from ..async_with import entered_by_async_with
from ..bridge.handler_loop import ON_TRIO, HandlerLoop
from ..bridge.host_for_asyncio import Opened, opened, run
from ..checks import is_async, problem_of_handler
from ..client.operation import async_calls
from ..clock import in_time_of, virtual_time
from ..engine.run_end import NotBegun
from ..error_types import ClaimLostError, InvalidOptionError, MonqueError
from ..host.health import Health, health_of
from ..host.host import Body
from ..log import exc_info_of, logger_of
from ..store.driver.types import TypedCollection
from ..unfinished_work import unfinished_work
from .assembly import ClaimsParts, Listeners, assembled
from .claim import Claim
from .claim_options import ClaimConfig, ClaimOptions, claim_config
from .claim_work import ClaimWork
from .delivery import ClaimQueue, HandlerSlots
from .events_and_report import ClaimsReport, log_extra
from .statistics import ClaimsStatistics, statistics_of

logger = logger_of("claims")

NOUN: Final = "claims instance"
"""What runs, for errors of the bridge."""

NO_BODY: Final = Body(name="run_claims")

DocT = TypeVar("DocT", bound=Mapping[str, Any])


@async_calls("In a thread of trio's, call trio.from_thread.run(claims.{name}); on asyncio anyio.from_thread.run")
class RunningClaims:
    """Claims that are running: the value that `nursery.start(run_claims, ...)` returns."""

    def __init__(
        self, parts: ClaimsParts, config: ClaimConfig, loop: HandlerLoop, delivery: ClaimQueue | HandlerSlots
    ) -> None:
        self._parts = parts
        self._delivery = delivery
        self._virtual = virtual_time()
        self._config = config
        self._loop = loop

    @property
    def id(self) -> str:
        """This instance's name in locks and in logs."""
        return self._config.instance_id

    @property
    def namespace(self) -> str:
        """The database and the collection of the documents, as in "shop.orders"."""
        return self._parts.locked.collection.full_name

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
        await self._loop.engine.wait(self._parts.host.ended)

    def is_healthy(self) -> bool:
        """Whether `health().reasons` is empty. Call it from any thread; it only reads memory, and does not wait."""
        return not self._parts.host.examine().reasons

    def health(self) -> Health:
        """Whether the claims work, and why not. Call it from any thread; it only reads memory, and does not wait.

        They are unhealthy while one of these is true:

        - A loop is late: its `lag` is longer than twice `operation_timeout` and than `heartbeat_interval`. The
          heartbeat is late when its `lag` is longer than `heartbeat_interval`.
        - Work was cancelled because locks could not be renewed, and no renewal has succeeded since.
        - A loop has crashed, or a finished document still matches the filter, which ends the claims.
        - The event loop has not answered for a second. In a program on asyncio: the thread of the claims has not, or
          the event loop of the program has not answered for half a second.
        - The claims are shutting down, and handlers or blocks go on although their time is over.
        - The claims have ended.
        """
        parts = self._parts
        # The known time of the run: a thread that asked the run for it would wait for a loop that may be blocked.
        with in_time_of(self._virtual):
            now = parts.time.clock.now()
        return health_of(parts.host.examine(), now, broken=parts.locked.count_skipped())

    def statistics(self) -> ClaimsStatistics:
        """What the claims have done since their start, and do now. Call it from any thread; it only reads memory.

        On trio's event loop the numbers agree with each other. In another thread, and so on asyncio, they may be of
        moments that lie a little apart.
        """
        parts = self._parts
        return statistics_of(
            parts.engine,
            parts.reporter.so_far(),
            parts.sources.claims.contention,
            waiting=self._delivery.waiting,
            broken=parts.locked.count_skipped(),
        )


class Claims(RunningClaims, Generic[DocT]):
    """An async iterator of claims. Only `open_claims` makes it.

    Several tasks may iterate at once. The iteration ends when no document is left (`wait=False`), or after `drain()`.
    """

    def __init__(self, parts: ClaimsParts, config: ClaimConfig, loop: HandlerLoop, queue: ClaimQueue) -> None:
        super().__init__(parts, config, loop, queue)
        self._queue = queue

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim[DocT]:
        try:
            taken = await self._loop.engine.call(self._queue.take, orphan=_release_orphan)
        except MonqueError:
            if not self._parts.host.ended.is_set():
                raise
            taken = None  # On asyncio: the thread of the claims has ended.
        if taken is not None:
            claim, work = taken
            self._loop.begin(work.run)
            return claim
        if self._parts.engine.stop.crashes:
            await anyio.sleep_forever()  # The host cancels this body and raises the crash.
        raise StopAsyncIteration


def _release_orphan(taken: tuple[Claim[Any], ClaimWork] | None) -> None:
    """In the run of the engine: the task that waited for the claim was cancelled, and does not get it."""
    if taken is not None:
        _, work = taken
        work.release_unless_entered()


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

    It works on trio, asyncio and uvloop, and the body works on the claims on its own event loop. On asyncio the claims
    are held, renewed and settled on trio, in a thread of its own. While the body blocks its loop, that thread renews
    the claims, and claims nothing more. Listeners run on the loop of the body.

    When the body ends, no more documents are claimed. Claims that no task has entered with `async with claim` are
    released at once; the others may finish within `shutdown_timeout`. When the body raises or is cancelled, work on
    claims is cancelled, and their documents are released.

    Args:
        collection: A `pymongo.collection.Collection` of a client with room for 21 connections.
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

    def made(loop: HandlerLoop) -> Opened[Claims[DocT], ClaimsReport]:
        queue = ClaimQueue(config.concurrency)
        parts = assembled(collection, filter, config, listeners, queue.offer, loop)
        return Opened(Claims(parts, config, loop, queue), parts.host, _body(parts, queue), loop)

    async with opened("open_claims", NOUN, made) as claims:
        yield claims


def _body(parts: ClaimsParts, queue: ClaimQueue) -> Body:
    async def close_when_draining(_in_body: trio.CancelScope) -> None:
        await parts.engine.stop.draining.wait()
        queue.close()

    def release_idle() -> None:
        queue.close()
        queue.release_idle()

    return Body(
        name="open_claims",
        beside=close_when_draining,
        at_end=release_idle,
        # After a crash, blocks raise ClaimLostError because their work is cancelled. Only the crash is worth raising.
        is_echo=lambda error: isinstance(error, ClaimLostError),
    )


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
    returns; on asyncio, start it in a task group of anyio in the same way. Handlers are tasks of the event loop of the
    caller, with a copy of its context.

    If the call is cancelled, it cancels the handlers, releases their documents, and ends within `cleanup_timeout` plus
    two seconds. Arguments, options and errors are those of `open_claims`.
    """
    if problem := problem_of_handler(handler, "claim") or ("" if is_async(handler) else "must be an async function"):
        raise InvalidOptionError("handler", handler, problem)
    config = claim_config(options)

    def made(loop: HandlerLoop) -> Opened[RunningClaims, ClaimsReport]:
        slots = HandlerSlots(config.concurrency)
        work = partial(_work, handler, loop, slots, config.redact_errors is None)
        parts = assembled(collection, filter, config, listeners, work, loop)
        return Opened(RunningClaims(parts, config, loop, slots), parts.host, NO_BODY, loop)

    return await run("run_claims", NOUN, made, task_status)


# The engine's own loops are protected from Ctrl-C, and a protected caller would protect its handlers, too.
@trio.lowlevel.disable_ki_protection
async def _work(
    handler: Callable[[Claim[Any]], Awaitable[object]],
    loop: HandlerLoop,
    slots: HandlerSlots,
    shows_errors: bool,  # noqa: FBT001
    claim: Claim[Any],
    work: ClaimWork,
) -> None:
    await slots.enter(work)
    try:
        if not work.run.may_begin():
            raise NotBegun
        # On trio, a call by the loop would cost a coroutine more.
        called = handler(claim) if loop is ON_TRIO else loop.call_handler(handler, claim, work.run)
        if (problem := unfinished_work(await called)) is not None:
            raise TypeError(f"the handler {problem}")
    except ClaimLostError:
        raise  # The engine has reported the loss already.
    except Exception as error:
        if work.is_over:  # The settlement is made, so no event or report has this error: only this line.
            logger.error(
                "the work on document %s failed after its claim had ended; the document does not change",
                claim.id,
                exc_info=exc_info_of(error) if shows_errors else None,
                extra=log_extra(claim.id, claim.attempt),
            )
        raise
    finally:
        slots.leave(work)
        work.end()
    work.check_answered()
