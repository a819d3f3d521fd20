"""Operation: one call of a client, as blocking steps that `Monque` or `SyncMonque` carries out."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, TypeVar

from ..events import Event
from ..jobs.job import Job
from ..store.driver.types import ClientSession

R = TypeVar("R")


@dataclass(slots=True)
class Caused:
    """What an operation caused, for the schedulers of the same run and for listeners.

    A step writes it, in its thread. The client delivers it after each step, also after one that failed.

    Attributes:
        jobs: Jobs that were stored or changed. Those that are pending wake schedulers.
        are_new: These jobs were just inserted, or an insert found that they exist.
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
    """One call of a client. Its arguments are checked, and nothing is sent yet.

    It knows no event loops, listeners or schedulers, so one operation serves both clients. The client calls `step`
    until `is_over`, each time perhaps in another thread, and delivers what the steps caused.

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
        """Do the next part. Block until the database has answered."""

    def events(self) -> Sequence[Event]:
        """Return the events for listeners; called once, when the operation has ended or failed."""
        return self.caused.events

    def lost(self) -> None:
        """Note that the answer of the database did not arrive: what was sent may have made jobs due."""
        # Schedulers in virtual time do not poll: without this, a job that was stored all the same would never start.
        self.caused.may_be_due = not self.only_reads

    def finish(self, result: R) -> None:
        """Note the result: no step is left."""
        self.result = result
        self.is_over = True


class Read(Operation[R]):
    """One query."""

    only_reads = True

    def __init__(self, question: Callable[[], R]) -> None:
        super().__init__()
        self._question = question

    def step(self) -> None:
        self.finish(self._question())


class Write(Operation[R]):
    """One change, which notes what it causes."""

    def __init__(self, change: Callable[[Caused], R]) -> None:
        super().__init__()
        self._change = change

    def step(self) -> None:
        self.finish(self._change(self.caused))


class Known(Operation[R]):
    """A result that is known already: nothing is sent."""

    def __init__(self, result: R) -> None:
        super().__init__()
        self.finish(result)

    def step(self) -> None:
        """Do nothing: the operation is over."""


def present_as(method: Callable[..., Any], operation: Callable[..., Operation[Any]]) -> None:
    """Give a method of a client the name, the documentation and the signature of the operation that it carries out.

    In the signature, `Operation[Job]` becomes `Job`, and `context` becomes `self`.
    """
    signature = inspect.signature(operation)
    (first, *others) = signature.parameters.values()
    returns = str(signature.return_annotation).removeprefix("Operation[").removesuffix("]")
    method.__name__ = operation.__name__
    method.__doc__ = operation.__doc__
    method.__annotations__ = {**{one.name: one.annotation for one in others}, "return": returns}
    # The annotations are strings. `typing.get_type_hints` follows this to the module in which their names exist.
    vars(method)["__wrapped__"] = operation
    # For `inspect.signature` and `help`.
    vars(method)["__signature__"] = signature.replace(
        parameters=[first.replace(name="self", annotation=first.empty), *others], return_annotation=returns
    )
