"""`open_job_nursery`: opens a block of a job nursery, runs its tasks, and raises what it ends with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, Literal, cast

import anyio

from ..error_types import InvalidOptionError
from ..foreign_errors import unwrapped
from ..jobs.nursery_scopes import is_key
from .children_of_block import POLICIES, ChildrenOfBlock, Policy
from .job_nursery import JobNursery
from .leaving_blocks import leave, outcome, wait_for_all
from .monque import Monque
from .nursery_owner import NurseryOwner
from .program_nurseries import ProgramNurseries

BLOCK_TRACE: Final[ContextVar[Callable[[ChildrenOfBlock], Callable[[BaseException | None], None]] | None]] = ContextVar(
    "monque_block_trace", default=None
)
"""Called at the start of each block of a traced run. The block calls its return value at the end, with its error."""

LONGEST_KEY: Final = 255


def open_job_nursery(
    parent: Any, *, key: str | None = None, fail: Policy = "cancel", on_drain: Literal["wait", "release"] = "wait"
) -> AbstractAsyncContextManager[JobNursery, bool]:
    """`async with open_job_nursery(job) as nursery:` starts jobs, and waits for them when the block is left.

    The children run on any instance of the fleet that has a worker for them. No child outlives the block, whichever
    process dies. If the handler is killed, its next run opens the same block, starts the same children, and finds those
    that exist already. So each run must open the same blocks (by their order, or by `key`) and start the same children
    (by their data, or by `key`); all else may differ from run to run. If either depends on anything but the data of the
    job, decide it in a `job.step`, which keeps the result for later runs.

    While a run waits for its children, it does not occupy a slot of its name or of its instance.

    Leaving the block waits for all children. If the run is ended meanwhile:

    - If a user or its time limit cancels the run, the block cancels the children, and waits for them during the
      clean-up time. The fleet ends those that are left.
    - If the run loses its claim, is cut short by a shutdown, or raises `Snooze`, the block leaves the children to the
      next run.

    Args:
        parent: The RunningJob of the handler; or a client, in a program. The program holds a job of its own meanwhile,
            so that the fleet ends the children if the program dies.
        key: The name of the block, the same in all runs of the handler; by default, its number. Give the blocks of a
            long workflow keys, so that a deployment may put another block before them.
        fail: What happens if a child does not complete. "cancel": the first such child cancels the body and the other
            children. "wait": the others go on, and then the error is raised. "keep": nothing is raised; look at
            `child.error` of each.
        on_drain: What happens if the scheduler shuts down while the run waits for its children, in the task that opened
            the block. "wait": the run has `shutdown_timeout` to end, as any run. "release": it is cut at once, or just
            after its wait, and the next run goes on. Only for a handler in which no other task works meanwhile: that
            would be cut too. If several blocks are open, all must have this option.

    Raises:
        JobNurseryError: A child failed, was cancelled by another caller, was not started by its `start_by`, or was
            deleted. A group with an error for each. If such an error ends the handler, its job fails for good: another
            attempt would find the same failure.
        ExceptionGroup: The body raised an error. The group also has the JobNurseryError, if there is one. The children
            were cancelled.
        MonqueError: The job has had its transaction; or a block without a key is open in another task.
        ClaimLostError: The claim was lost.
    """
    if fail not in POLICIES:
        raise InvalidOptionError("fail", fail, f"must be one of {', '.join(POLICIES)}")
    given: object = key
    if given is not None and not is_key(given, LONGEST_KEY):
        raise InvalidOptionError("key", key, f"must be a string of 1 to {LONGEST_KEY} characters")
    if key is not None and key.isdecimal():
        raise InvalidOptionError("key", key, "is a number, and blocks without a key are numbered: give it a word")
    if on_drain not in ("wait", "release"):
        raise InvalidOptionError("on_drain", on_drain, 'must be "wait" or "release"')
    releases = on_drain == "release"
    if isinstance(parent, Monque):
        if releases:
            raise InvalidOptionError("on_drain", on_drain, "is for handlers: a program leaves its block itself")
        return cast("AbstractAsyncContextManager[JobNursery, bool]", _open(ProgramNurseries(parent), key, fail))
    own = getattr(type(parent), "_nursery_owner", None)
    if own is None:
        raise TypeError(
            f"open_job_nursery takes the RunningJob of a handler, or a client, and not {type(parent).__name__}: for a "
            "claim, enqueue a job, and open the nursery in its handler"
        )
    opened = _open(own(parent), key, fail, releases=releases)
    return cast("AbstractAsyncContextManager[JobNursery, bool]", opened)


@asynccontextmanager
async def _open(
    owner: NurseryOwner, key: str | None, fail: Policy, *, releases: bool = False
) -> AsyncIterator[JobNursery]:
    async with owner.opening(key, releases=releases) as opened:
        block = ChildrenOfBlock(owner, opened, fail)
        error: BaseException | None = None
        raised: BaseException | None = None
        trace = BLOCK_TRACE.get()
        span = None if trace is None else trace(block)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(block.work)
                if owner.work is not None:
                    tasks.start_soon(owner.work)
                try:
                    with block.cancel_scope:
                        yield JobNursery(block)
                        await wait_for_all(block)
                except BaseException as body:  # noqa: BLE001  # Raised again, by `outcome`.
                    error = body
                await leave(block, error)
                await owner.raise_if_cancelled()
                raised = await outcome(block, error)
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            # A task of the block itself has crashed, and the body was cancelled with it.
            raised = unwrapped(group)
        except BaseException as cancelled:  # noqa: BLE001  # Raised again, once its span has ended.
            raised = cancelled
        block.end()
        if span is not None:
            span(raised)
        if raised is not None:
            raise raised
