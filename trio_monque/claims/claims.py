"""open_claims and run_claims: `SELECT ... FOR UPDATE SKIP LOCKED` for the documents of any collection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Generic, Self, TypeVar, Unpack

import trio

from ..async_with import entered_by_async_with
from ..call_context import async_calls
from ..callables import is_async, problem_of_handler
from ..clock import is_on_run
from ..engine.groups import raise_unwrapped
from ..engine.guard import cause_of
from ..errors import ClaimLostError, InvalidOptionError
from ..jobs.events import Event
from ..log import logger_of
from ..store.types import TypedCollection
from .claim import Claim
from .gate import Gate
from .handout import Handout
from .life import Claiming
from .options import ClaimConfig, ClaimOptions, claim_config
from .telling import ClaimsReport

logger = logger_of("claims")

DocT = TypeVar("DocT", bound=Mapping[str, Any])

Listeners = Mapping[type[Event], Any]


@async_calls("In a thread of trio's, call trio.from_thread.run(claims.{name})")
class RunningClaims:
    """Documents are being claimed. Made by `run_claims`, and what `nursery.start` of it returns."""

    def __init__(self, claiming: Claiming, config: ClaimConfig) -> None:
        self._claiming = claiming
        self._config = config
        self._token = trio.lowlevel.current_trio_token()

    @property
    def id(self) -> str:
        """This instance's name in locks and in logs."""
        return self._config.instance_id

    @property
    def report(self) -> ClaimsReport | None:
        """What it did; None until it has ended."""
        return self._claiming.report

    def drain(self) -> None:
        """Begins the orderly end: nothing new is claimed, and what is being worked on gets `shutdown_timeout`.

        May be said again, and from any thread; also when all has ended.
        """
        drain = self._claiming.engine.stop.drain
        if is_on_run(self._token):
            drain()
        else:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(drain)

    async def wait_drained(self) -> None:
        """Returns when it has ended, which somebody must have asked for, or nothing was left."""
        await self._claiming.ended.wait()


class Claims(RunningClaims, Generic[DocT]):
    """An async iterator of claims. Made by `open_claims` only.

    Several tasks may ask for the next at once. It ends when nothing is left (`wait=False`), or after `drain()`.
    """

    def __init__(self, claiming: Claiming, config: ClaimConfig, handout: Handout) -> None:
        super().__init__(claiming, config)
        self._handout = handout

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claim[DocT]:
        claim = await self._handout.take()
        if claim is not None:
            return claim
        if self._claiming.engine.stop.crashes:
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
        listeners: Event classes (DocumentFailed, DocumentSetAside, ClaimLost, DocumentsRescued) and who hears of them.
        options: See ClaimConfig.

    Raises:
        InvalidDatabaseError, InvalidOptionError: At once, naming what is wrong.
        ScanRefusedError: No index serves the filter, and the collection is large.
        MonqueConnectionError: The database cannot be reached or used.
        FilterStillMatchesError: A document that was finished was claimed again, and nobody else had touched it.
    """
    config = claim_config(options)
    handout = Handout(config.concurrency)
    claiming = Claiming(collection, filter, config, listeners, handout.offer)
    claims: Claims[DocT] = Claims(claiming, config, handout)
    stop = claiming.engine.stop
    body_error: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(claiming.run)
            with trio.CancelScope() as body:
                nursery.start_soon(_close_when_draining, claiming, handout)
                nursery.start_soon(_end_body_when_crashed, claiming, body)
                try:
                    yield claims
                    handout.close()
                    handout.give_back_idle()
                    stop.drain("the body of open_claims has ended")
                    # Unshielded: cancellation arrives here, and makes the drain a cut.
                    await claims.wait_drained()
                except BaseException as error:
                    body_error = error
                    stop.cut(cause_of(error, " in the body of open_claims"))
                    # What a block raises because the claims have crashed says nothing beside that.
                    if not (stop.crashes and isinstance(error, ClaimLostError)):
                        raise
    except BaseExceptionGroup as group:
        raise_unwrapped(group, around_a_group=isinstance(body_error, BaseExceptionGroup))


async def _close_when_draining(claiming: Claiming, handout: Handout) -> None:
    await claiming.engine.stop.draining.wait()
    handout.close()


async def _end_body_when_crashed(claiming: Claiming, body: trio.CancelScope) -> None:
    """The body of claims that crashed is cancelled, as a child that crashes cancels its nursery's body."""
    await claiming.ended.wait()
    if claiming.engine.stop.crashes:
        body.cancel(reason="the claims crashed")


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
    gate = Gate(config.concurrency)
    claiming = Claiming(
        collection, filter, config, listeners, partial(_work, handler, gate, config.redact_errors is None)
    )
    gate.draining = claiming.engine.stop.draining
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(claiming.run)
            task_status.started(RunningClaims(claiming, config))
    except BaseExceptionGroup as group:
        raise_unwrapped(group)
    assert claiming.report is not None
    return claiming.report


# The engine's own loops are protected from Ctrl-C, and a protected caller would protect its handlers, too.
@trio.lowlevel.disable_ki_protection
async def _work(
    handler: Callable[[Claim[Any]], Awaitable[object]],
    gate: Gate,
    shows_errors: bool,  # noqa: FBT001
    claim: Claim[Any],
) -> None:
    await gate.enter(claim)
    try:
        await handler(claim)
    except ClaimLostError:
        raise  # It is told by itself.
    except Exception:
        if claim.has_ended:  # What becomes of the document does not tell of it any more.
            logger.error("the work on document %s failed after its claim had ended", claim.id, exc_info=shows_errors)
        raise
    finally:
        gate.leave(claim)
        claim.end_work()
