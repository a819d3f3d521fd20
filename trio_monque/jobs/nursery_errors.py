"""The errors of job nurseries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..error_types import MonqueError
from ..foreign_errors import leaves_of
from .ended_job_errors import JobEndedError, JobFailedError
from .job import Job


class JobNurseryError(ExceptionGroup[Exception]):
    """Raised where a block of `open_job_nursery` is left, if a child did not complete.

    It is a group, so that `except*` works, too. It has a class of its own, so that a handler can catch just this error
    and `return` from there: Python forbids `return` inside `except*`.

    Attributes:
        exceptions: A `JobFailedError`, `JobCancelledError` or `JobDeletedError` for each child that did not complete,
            and was not cancelled by the block.
    """

    if TYPE_CHECKING:

        def __new__(cls, message: str, exceptions: Sequence[Exception], /) -> JobNurseryError: ...

    def derive(self, exceptions: Sequence[Exception], /) -> JobNurseryError:  # type: ignore[override]
        return JobNurseryError(self.message, exceptions)

    @property
    def jobs(self) -> Sequence[Job[Any]]:
        """The children that failed or were cancelled, as they ended; without those that were deleted."""
        return [leaf.job for leaf in leaves_of(self) if isinstance(leaf, JobEndedError)]

    @property
    def reason(self) -> str:
        """Why the first of these children did not complete: the `fail_reason` of one that failed, or a sentence."""
        first = leaves_of(self)[0]
        # A child that was cancelled may have the reason of an earlier attempt that failed.
        reason = first.job.fail_reason if isinstance(first, JobFailedError) else None
        return reason or str(first)


class NurseryLostError(MonqueError):
    """Raised in a program whose nursery is lost: its job was not renewed in time, or was deleted.

    The fleet cancels its children.
    """


_OF_SCOPE = "_monque_scope"


def marked(error: MonqueError, scope: object) -> MonqueError:
    """Mark an error as that of a child of this scope, and return it."""
    setattr(error, _OF_SCOPE, scope)
    return error


def is_of_own_child(error: BaseException, scope: object) -> bool:
    """Whether this is the error of a child of this scope: another run of its parent would find the same one."""
    return any(vars(leaf).get(_OF_SCOPE) == scope for leaf in leaves_of(error) if isinstance(leaf, MonqueError))
