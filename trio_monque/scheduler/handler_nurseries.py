"""HandlerNurseries: the job nurseries and the steps of one run of a handler, on the event loop of the handler.

It passes the requests of a nursery on to the run: to write the scope under the fence, to release the slot during a
wait, and to limit the time in which a cancelled run leaves its block.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

import anyio
import anyio.lowlevel

from ..bridge.handler_loop import HandlerLoop
from ..client.monque import Monque
from ..client.nursery_owner import NurseryBlock
from ..engine.run import Run
from ..engine.run_end import CancelReason
from ..error_types import InvalidOptionError, MonqueError
from ..jobs.job import Job, log_extra
from ..jobs.nursery_scopes import Asking, is_key, scope_of
from ..log import logger_of
from ..store.driver.types import ObjectId

logger = logger_of("scheduler")

LONGEST_STEP: Final = 1024


class NurseryReporting(Protocol):
    """Writes for the nurseries of runs, in the trio run of the engine."""

    async def open_scope(self, run: Run[Job]) -> Asking:
        """Write the scope of a run under its claim, unless it has one; return it."""
        ...

    async def record_failure(self, run: Run[Job], block: str, children: Sequence[ObjectId]) -> None:
        """Write that a block has failed under the claim of the run."""
        ...

    async def store_step(self, run: Run[Job], key: str, value: Any) -> None:
        """Write the result of a step under the claim of the run."""
        ...

    async def reset_deaths(self, run: Run[Job]) -> None:
        """Reset the count of deaths in a row: the run has reached a wait."""
        ...

    def park(self, run: Run[Job]) -> None:
        """Release the slot of a run while it waits for its children."""
        ...

    def unpark(self, run: Run[Job]) -> None: ...

    def changed(self) -> None:
        """A run may do nothing but wait from now on."""
        ...


class HandlerNurseries:
    """The `NurseryOwner` of one run of a handler."""

    work = None  # The engine renews the claim.

    def __init__(self, run: Run[Job], loop: HandlerLoop, reporting: NurseryReporting, monque: Monque) -> None:
        self.monque = monque
        self._run = run
        self._loop = loop
        self._reporting = reporting
        # Read when the run begins: an earlier run may have started children.
        self._is_resumed = scope_of(run.claim) is not None
        self._number = 0
        self._keys: set[str] = set()
        self._tasks_without_key: list[int] = []
        self._is_reported = False
        # Each write replaces the whole scope. A step may take long, and must not delay the writes of a block.
        self._one_write = anyio.Lock()
        self._one_step = anyio.Lock()
        self._openers: list[int] = []  # The tasks that opened the blocks that are open.
        self._resting: dict[int, Callable[[], Collection[ObjectId]]] = {}  # Those of them that wait, and for what.
        self._number_to_keep = 0  # Of the open blocks, those that a drain does not release, or that cancel children.

    @property
    def is_open(self) -> bool:
        """Whether a block is open."""
        return bool(self._openers)

    # --- For a nursery ---

    @property
    def job(self) -> Job:
        return self._run.claim

    @property
    def leaves_children(self) -> bool:
        return self._loop.cancel_reason(self._run) in (CancelReason.LOST, CancelReason.SHUTDOWN)

    @asynccontextmanager
    async def opening(self, key: str | None, *, releases: bool) -> AsyncIterator[NurseryBlock]:
        block = self._named(key)
        task = anyio.get_current_task().id
        self._openers.append(task)
        self._number_to_keep += not releases
        self._note_waits()
        if key is None:
            self._tasks_without_key.append(task)
        try:
            try:
                async with self._one_write:
                    asking = await self._loop.engine.call_for(self._run, self._reporting.open_scope, self._run)
            except BaseException:
                self._not_opened(key)
                raise
            scope = scope_of(self.job)
            failed = {} if scope is None or scope.failed is None else scope.failed
            yield NurseryBlock(asking, block, self._is_resumed, failed_by=failed.get(block, ()))
        finally:
            self._openers.remove(task)
            self._number_to_keep -= not releases
            self._note_waits()
            if self._run.waits_for:  # In other blocks, and since before this one ended.
                self._loop.engine.post(self._reporting.changed)
            if key is None:
                self._tasks_without_key.remove(task)

    def _named(self, key: str | None) -> str:
        if key is not None:
            if key in self._keys:
                raise InvalidOptionError("key", key, "is the key of a block that this run has opened already")
            self._keys.add(key)
            return key
        if any(task != anyio.get_current_task().id for task in self._tasks_without_key):
            raise MonqueError(
                f"a block without a key is open in another task of job {self.job}: the next run might open the two in "
                "another order. Give each a key: open_job_nursery(job, key=...)"
            )
        block = self._number
        self._number += 1
        if block == 1 and self._is_resumed and not self._is_reported:
            self._is_reported = True
            logger.info(
                "job %s opens several blocks without keys and continues an earlier run: if a deployment inserts a "
                "block before another, the later one starts its children again. open_job_nursery(job, key=...) "
                "prevents this",
                self.job,
                extra=log_extra(self.job),
            )
        return str(block)

    def _not_opened(self, key: str | None) -> None:
        # If the handler tries again, that is the same block.
        if key is None:
            self._number -= 1
        else:
            self._keys.discard(key)

    async def record_failure(self, block: str, children: Sequence[ObjectId]) -> None:
        async with self._one_write:
            report = self._reporting.record_failure
            await self._loop.engine.call_for(self._run, report, self._run, block, list(children))

    @asynccontextmanager
    async def waiting(
        self, live: Callable[[], Collection[ObjectId]], *, is_cancelling: bool = False
    ) -> AsyncIterator[None]:
        task = anyio.get_current_task().id
        run, reporting, engine = self._run, self._reporting, self._loop.engine
        if run.claim.rescues:
            # Not when the block is opened: a job whose handler kills its process in the body must still be given up.
            await engine.call_for(run, reporting.reset_deaths, run)
        self._number_to_keep += is_cancelling
        if task in self._openers:
            self._resting[task] = live
            self._note_waits()
        engine.post(partial(reporting.park, run))
        try:
            yield
        finally:
            self._number_to_keep -= is_cancelling
            self._resting.pop(task, None)
            self._note_waits()
            engine.post(partial(reporting.unpark, run))

    def _note_waits(self) -> None:
        # Where another task waits, the one that opened the block may work.
        is_all = self._resting.keys() == set(self._openers)
        self._run.waits_for = waits = tuple(self._resting.values()) if is_all else ()
        self._run.is_releasable = bool(waits) and not self._number_to_keep

    async def raise_if_cancelled(self) -> None:
        if self._loop.cancel_reason(self._run) is None:
            return
        # The reason is known before the cancellation arrives on the loop of the handler. What the engine answers after
        # it has cancelled the run arrives later.
        with suppress(MonqueError):  # The engine has ended, and so has the run.
            await self._loop.engine.call_for(self._run, _nothing)
        await anyio.lowlevel.checkpoint_if_cancelled()

    def closing(self, *, is_cancelled: bool) -> AbstractContextManager[object]:
        return self._loop.cleaning_up(self._run, math.inf)

    def lose(self) -> None:
        self._loop.engine.post(self._run.lose)

    # --- Steps ---

    async def step(self, key: str, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """See `RunningJob.step`."""
        given: object = key
        if not is_key(given, LONGEST_STEP):
            raise InvalidOptionError("key", given, f"must be a string of 1 to {LONGEST_STEP} characters")
        async with self._one_step:
            if key not in self._steps():
                value = function(*args)
                if inspect.isawaitable(value):
                    value = await value
                async with self._one_write:
                    await self._loop.engine.call_for(self._run, self._reporting.store_step, self._run, key, value)
            # As another run of the handler would read the result.
            return self._steps()[key]

    def _steps(self) -> Any:
        scope = scope_of(self.job)
        return {} if scope is None or scope.steps is None else scope.steps


async def _nothing() -> None:
    pass
