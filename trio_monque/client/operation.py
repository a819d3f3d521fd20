"""Operation: one call of the client as the blocking core makes it, for a door to carry out."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from ..events import Event
from ..jobs.job import Job
from ..store.types import ClientSession

R = TypeVar("R")


@dataclass(slots=True)
class Caused:
    """What an operation caused, for the schedulers of the same run and for listeners.

    The thread that works writes it; the door delivers it after each step, also if the step failed.

    Attributes:
        jobs: Jobs that were stored or changed. Those that are pending wake schedulers.
        are_new: These jobs were just stored, or were found in their place.
        session: The caller's session; while it is in a transaction, the jobs are not visible to others.
        may_be_due: There may be due jobs that `jobs` does not hold.
        changed_pauses: Names were paused or resumed.
        events: For listeners, delivered once, when the operation has ended.
    """

    jobs: Sequence[Job] = ()
    are_new: bool = False
    session: ClientSession | None = None
    may_be_due: bool = False
    changed_pauses: bool = False
    events: list[Event] = field(default_factory=list)


class Operation(ABC, Generic[R]):
    """One call, checked and not begun. It is done in steps, each of them perhaps in another thread.

    The core makes it, and knows nothing of event loops, listeners and schedulers. A door (`Monque`, `SyncMonque`)
    calls `step` until `is_over`.

    Attributes:
        only_reads: It changes nothing, so a caller that is cancelled need not wait for it.
        on_progress: Called with the result so far after each step.
        is_over: No step is left.
        pause: Seconds to wait before the next step.
        result: What the call returns, once it is over.
    """

    only_reads: ClassVar[bool] = False
    on_progress: Callable[[R], object] | None = None
    is_over = False
    pause = 0.0
    result: R

    def __init__(self) -> None:
        self.caused = Caused()

    @abstractmethod
    def step(self) -> None:
        """Do the next part. Blocks until the database has answered."""

    def events(self) -> Sequence[Event]:
        """Return the events for listeners; called once, when the operation has ended or failed."""
        return self.caused.events

    def lost(self) -> None:
        """Note that the database did not answer: what was sent may have made jobs due."""
        self.caused.may_be_due = not self.only_reads

    def finish(self, result: R) -> None:
        """Note the result: no step is left."""
        self.result = result
        self.is_over = True


class Read(Operation[R]):
    """One question."""

    only_reads = True

    def __init__(self, question: Callable[[], R]) -> None:
        super().__init__()
        self._question = question

    def step(self) -> None:
        self.finish(self._question())


class Change(Operation[R]):
    """One change, which notes what it causes."""

    def __init__(self, change: Callable[[Caused], R]) -> None:
        super().__init__()
        self._change = change

    def step(self) -> None:
        self.finish(self._change(self.caused))


class Known(Operation[R]):
    """What need not be asked for."""

    def __init__(self, result: R) -> None:
        super().__init__()
        self.finish(result)

    def step(self) -> None:
        """Nothing: it is over."""


def present_as(method: Callable[..., Any], operation: Callable[..., Operation[Any]]) -> None:
    """Give a door's method the name, the documentation and the signature of the core's function that it carries out.

    `Operation[Job]` is `Job` there, and `context` is `self`.
    """
    signature = inspect.signature(operation)
    (first, *others) = signature.parameters.values()
    returns = str(signature.return_annotation).removeprefix("Operation[").removesuffix("]")
    method.__name__ = operation.__name__
    method.__doc__ = operation.__doc__
    method.__annotations__ = {**{one.name: one.annotation for one in others}, "return": returns}
    # The annotations are text, which means something in the file of the operation only.
    vars(method)["__wrapped__"] = operation
    # `inspect.signature` and `help` read it.
    vars(method)["__signature__"] = signature.replace(
        parameters=[first.replace(name="self", annotation=first.empty), *others], return_annotation=returns
    )
