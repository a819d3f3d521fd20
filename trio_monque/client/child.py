"""Child: a job that a job nursery has started, as its handler sees it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import anyio

from ..error_types import MonqueError
from ..jobs.ended_job_errors import problem_of
from ..jobs.job import Job
from ..jobs.nursery_errors import marked
from ..store.driver.types import ObjectId

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    Result_co = TypeVarWithDefault("Result_co", covariant=True, default=Any)
else:
    Result_co = TypeVar("Result_co", covariant=True)


class Child(Generic[Result_co]):
    """A child of a block of `open_job_nursery`. `Child[R]` has a result of type R.

    Attributes:
        id: The id of its job.
        key: The key that it was started with; None for none.
    """

    def __init__(
        self,
        child_id: ObjectId,
        key: str | None,
        scope: ObjectId,
        read: Callable[[Any], Any] | None,
        wait: Callable[[anyio.Event], Awaitable[None]],
    ) -> None:
        self.id = child_id
        self.key = key
        self._scope = scope
        self._read = read
        self._wait = wait
        self._job: Job[Any] | None = None
        self._error: MonqueError | None = None
        self._has_ended = False
        # Set when its end is known, or when its block is over and does not report ends any more.
        self._answered = anyio.Event()

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def job(self) -> Job[Result_co]:
        """The job: as it ended, or as it was stored or found when it was started.

        Raises:
            MonqueError: The block has not stored it.
        """
        if self._job is None:
            raise MonqueError(f"the job of child {self.key or self.id} is not known")
        return self._job

    @property
    def error(self) -> MonqueError | None:
        """Why it did not complete: JobFailedError, JobCancelledError or JobDeletedError; None if it did.

        Raises:
            MonqueError: It has not ended.
        """
        self._check_ended()
        return self._error

    @property
    def result(self) -> Result_co:
        """What its handler returned.

        Raises:
            JobFailedError, JobCancelledError, JobDeletedError: It did not complete.
            UnreadablePayloadError: The result cannot be read as the type that its worker declares.
            MonqueError: It has not ended.
        """
        self._check_ended()
        if self._error is not None:
            raise self._error
        assert self._job is not None
        stored = self._job.result
        return cast("Result_co", stored if self._read is None or stored is None else self._read(stored))

    async def wait(self) -> Result_co:
        """Wait for its end, and return its result; raise as `result` does, and MonqueError if its block is left first.

        While a handler waits here, its run does not occupy a slot. A cancellation ends the wait at once.
        """
        if not self._answered.is_set():
            await self._wait(self._answered)
        if not self._has_ended:
            raise MonqueError(f"child {self.key or self.id} had not ended when its block was left: wait inside it")
        return self.result

    def _check_ended(self) -> None:
        if not self._has_ended:
            raise MonqueError(
                f"child {self.key or self.id} has not ended: await child.wait(), or leave the block first"
            )

    def __repr__(self) -> str:
        how = "not ended" if not self.has_ended else "completed" if self._error is None else "not completed"
        return f"<Child {self.key or self.id}: {how}>"


def note(child: Child[Any], found: Job) -> None:
    """Note the job of a child that is live."""
    child._job = found  # noqa: SLF001  # Of the class above.


def note_end(child: Child[Any], ended: Job | MonqueError) -> None:
    """Note how a child has ended."""
    if isinstance(ended, Job):
        child._job = ended  # noqa: SLF001  # Of the class above.
        error: MonqueError | None = problem_of(ended)
    else:
        error = ended
    child._error = None if error is None else marked(error, child._scope)  # noqa: SLF001  # Of the class above.
    child._has_ended = True  # noqa: SLF001  # Of the class above.
    child._answered.set()  # noqa: SLF001  # Of the class above.


def leave_behind(child: Child[Any]) -> None:
    """End the waits for a child: its block is over."""
    child._answered.set()  # noqa: SLF001  # Of the class above.
