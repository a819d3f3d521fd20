"""Ends a block of a job nursery: waits for its children, or cancels them, and raises their failures.

- After its body has returned, the block waits for all children. It cancels those that an earlier run has started and
  this one has not.
- After the first failure, under `fail="cancel"`, the block cancels its body and the other children. It writes the
  failure into the parent before that, so that every later run of the same try ends the block in the same way.
- After an error of the body, or a cancellation of the run, the block cancels its children and waits for them. The next
  run starts them again.
- If the run has lost its claim, is cut short by a shutdown, or raises Snooze, the block leaves the children to the next
  run.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import anyio

from ..error_types import MonqueConnectionError, MonqueError
from ..foreign_errors import is_a, leaves_of
from ..jobs.ended_job_errors import JobDeletedError, problem_of
from ..jobs.job import Job, log_extra
from ..jobs.nursery_errors import JobNurseryError, marked
from ..jobs.outcomes import Snooze
from ..log import logger_of
from ..store.driver.types import ObjectId
from ..store.jobs import nursery_children
from .child_starts import prevent_children, prevent_deleted
from .children_of_block import AGAIN_AFTER, ChildrenOfBlock, has_been_deleted
from .monque import carry_out, context_of
from .operation import Read, Write

logger = logger_of("nursery")

MOST_NAMED: Final = 10

MOST_RECORDED: Final = 100
"""Children of a failed block that are written into its parent. Later runs need only one of them."""


async def wait_for_all(block: ChildrenOfBlock) -> None:
    """Wait until all children have ended; cancel those of earlier runs that this one has not started."""
    if len(block.ended) < len(block.children):
        async with block.owner.waiting(block.ends.live.copy):
            while len(block.ended) < len(block.children):
                await block.some_end()
    block.is_open = False
    if block.block.is_resumed:
        await _end_stragglers(block)


async def _end_stragglers(block: ChildrenOfBlock) -> None:
    is_logged = False
    while alive := await block.live():
        if not is_logged:
            is_logged = True
            names = ", ".join(sorted({child.name for child in alive})[:MOST_NAMED])
            logger.warning(
                "%d children of block %r of job %s were started by an earlier run, but not by this one: %s. "
                "Cancelling them; the handler is not deterministic, or was changed",
                len(alive),
                block.block.key,
                block.owner.job,
                names,
                extra=log_extra(block.owner.job),
            )
        ids = tuple(child.id for child in alive)
        block.ends.add(ids)
        await block.cancel_children(ids)
        await block.some_end(within=AGAIN_AFTER)


async def leave(block: ChildrenOfBlock, error: BaseException | None) -> None:
    """End the block after its body has raised `error`: cancel live children, unless the next run takes them over."""
    block.is_open = False
    if error is not None and (block.owner.leaves_children or _is_snooze(error)):
        return
    if error is None and not block.cancel_scope.cancel_called and not block.unanswered:
        if block.policy == "keep":
            await _keep_failures(block)
        return
    block.is_cancelling = True
    is_ended, cancelled = False, anyio.get_cancelled_exc_class()
    try:
        with block.owner.closing(is_cancelled=isinstance(error, cancelled)):
            is_ended = await _end_all(block)
    except cancelled:
        with block.owner.closing(is_cancelled=True):
            await _end_all(block)
        raise
    if not is_ended and not block.owner.leaves_children:
        logger.warning(
            "left block %r of job %s before all of its children had ended; the fleet cancels the rest",
            block.block.key,
            block.owner.job,
            extra=log_extra(block.owner.job),
        )


async def _record(block: ChildrenOfBlock) -> None:
    """Record the failure, so that every later run of this try fails in the same way."""
    failed = [child.id for child in block.ended if block.is_failure(child)]
    block.failed_by = failed[:MOST_RECORDED]
    await block.record_failure()


async def _keep_failures(block: ChildrenOfBlock) -> None:
    """Make sure that every later run of this try finds the same failures."""
    failed = [child for child in block.ended if block.is_failure(child)]
    deleted = [child.job for child in failed if has_been_deleted(child)]
    if deleted:
        # Cancelled children take their place, so that the next run does not start them again.
        context = context_of(block.owner.monque)
        await carry_out(block.owner.monque, Write(lambda _: prevent_deleted(context, deleted)))


async def _end_all(block: ChildrenOfBlock) -> bool:
    """Cancel children until none is live; return whether none is: the next run may have taken them over."""
    while not block.owner.leaves_children:
        try:
            await _prevent_unanswered(block)
            await block.cancel_children()
            alive = await block.live()
        except MonqueConnectionError as error:
            if not error.transient:
                raise
            logger.warning("%s; retrying (block %r is cancelling its children)", error, block.block.key)
            await anyio.sleep(AGAIN_AFTER)
            continue
        if not alive:
            return True
        # Also children that this run has not started.
        block.ends.add(child.id for child in alive)
        async with block.owner.waiting(block.ends.live.copy, is_cancelling=True):
            await block.some_end(within=AGAIN_AFTER)
    return False


async def _prevent_unanswered(block: ChildrenOfBlock) -> None:
    """Occupy the ids of unanswered starts, so that a first sending that arrives late cannot store a child."""
    if lost := tuple(block.unanswered.values()):
        monque, epoch = block.owner.monque, block.block.asking.epoch
        prevent = partial(prevent_children, context_of(monque), epoch, lost)
        await carry_out(monque, Write(lambda _: prevent()))
        block.unanswered.clear()


# --- What is raised ---


async def outcome(block: ChildrenOfBlock, error: BaseException | None) -> BaseException | None:
    """Return what the block raises if its body has raised `error`; None if it ends normally."""
    if block.fault is not None:
        return block.fault
    if error is not None and (not isinstance(error, Exception) or _is_snooze(error)):
        return error  # A cancellation, in most cases: no other error may replace it.
    failed = None if block.policy == "keep" else await _failure(block)
    if failed is not None:
        # Not written yet if the body has raised, too, or if the clean-up time was over: the handler may act on it.
        await (block.record_failure() if block.failed_by else _record(block))
    if error is None:
        return failed
    if failed is not None and _is_within(error, failed):
        return failed  # The body has raised the error of a child: report that failure once.
    errors = [error] if failed is None else [error, failed]
    return ExceptionGroup(f"errors in block {block.block.key!r} of a job nursery", errors)


async def _failure(block: ChildrenOfBlock) -> JobNurseryError | None:
    errors: dict[ObjectId, Exception] = {}
    for child in block.ended:
        if block.is_failure(child) and child.error is not None:
            errors[child.id] = child.error
    for one in block.failed_by:
        if one not in errors:
            # It has failed in an earlier run, and this one has not started it.
            errors[one] = await _error_of(block, one)
    if not errors:
        return None
    shown = f"{len(errors)} of {len(block.children) or len(errors)} children of block {block.block.key!r}"
    return JobNurseryError(f"{shown} did not complete", list(errors.values()))


async def _error_of(block: ChildrenOfBlock, one: ObjectId) -> Exception:
    jobs = context_of(block.owner.monque).jobs
    found = await carry_out(block.owner.monque, Read(lambda: nursery_children.look(jobs, [one]).get(one)))
    error: MonqueError = JobDeletedError(one)
    if isinstance(found, Job):
        error = problem_of(found) or MonqueError(f"child {found} had failed, and was run again since")
    elif found is not None:
        error = found
    return marked(error, block.block.asking.scope)


def _is_snooze(error: BaseException) -> bool:
    return all(is_a(leaf, Snooze) for leaf in leaves_of(error))


def _is_within(error: BaseException, group: JobNurseryError) -> bool:
    known = {id(leaf) for leaf in leaves_of(group)}
    return all(id(leaf) in known for leaf in leaves_of(error))
