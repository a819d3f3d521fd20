"""Operation: one call of a client, as blocking steps that the client carries out; and where a call may be made.

Async calls in a thread without an event loop are refused, and blocking calls in a task of an event loop. An async
method that is called in such a thread returns a coroutine that is never awaited: a job that was to be enqueued is lost
without an error. A blocking method in a task stops every other task, and the renewals of leases with them. Both are
refused at the call, because only there the traceback shows the caller.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import WRAPPER_ASSIGNMENTS, update_wrapper, wraps
from types import MethodType
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar, cast

import trio

from ..error_types import CallContextError
from ..events import Event
from ..jobs.job import Job
from ..store.driver.types import ClientSession

R = TypeVar("R")
ClassT = TypeVar("ClassT", bound=type)


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
        asked_to_end: Running children of a job nursery were asked to end.
        events: For listeners, delivered once, when the operation has ended.
    """

    jobs: Sequence[Job] = ()
    are_new: bool = False
    session: ClientSession | None = None
    may_be_due: bool = False
    changed_pauses: bool = False
    asked_to_end: bool = False
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


# --- Where a call may be made ---

# From Python 3.14 on, `wraps` copies `__annotate__` instead of `__annotations__`. It is None where the annotations were
# assigned, as `present_as` does: a wrapper would have none.
COPIED: Final = (*WRAPPER_ASSIGNMENTS, "__annotations__")


def is_in_event_loop() -> bool:
    """Whether this thread runs an event loop now, of trio or asyncio: 0.1 µs."""
    return trio.lowlevel.in_trio_run() or asyncio._get_running_loop() is not None  # noqa: SLF001  # It is in __all__.


class _AsyncCall:
    """An async method that raises at once if no event loop could await its coroutine.

    It is not a wrapping function: frameworks (Starlette's background tasks, asgiref) ask `inspect.iscoroutinefunction`
    whether they must await, and that looks at the code of the callable. Documentation tools get the method itself.
    """

    def __init__(self, function: Callable[..., Any], problem: str) -> None:
        update_wrapper(self, function, assigned=COPIED)
        # With these three, `inspect.iscoroutinefunction` takes the object for a function.
        for attribute in ("__code__", "__defaults__", "__kwdefaults__"):
            setattr(self, attribute, getattr(function, attribute))
        self._function = function
        self._problem = problem

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self._function if instance is None else MethodType(self, instance)

    def __call__(self, instance: object, /, *args: Any, **kwargs: Any) -> Any:
        if not is_in_event_loop():
            raise CallContextError(self._problem)
        return self._function(instance, *args, **kwargs)


def async_calls(instead: str) -> Callable[[ClassT], ClassT]:
    """Decorates a class: its public async methods raise in a thread without an event loop.

    Args:
        instead: Advice what to call there; `{name}` is replaced by the method's name.
    """

    def decorate(cls: ClassT) -> ClassT:
        for name, method in list(vars(cls).items()):
            if inspect.iscoroutinefunction(method) and not name.startswith("_"):
                advice = instead.format(name=name)
                problem = f"{name}() is async, and no event loop runs in this thread: nothing would be done. {advice}"
                setattr(cls, name, _AsyncCall(method, problem))
        return cls

    return decorate


class MayBlock(Protocol):
    """An object with blocking methods."""

    blocks_loops: bool


def blocking_calls(cls: ClassT) -> ClassT:
    """Decorates a class: its public methods, inherited ones too, raise in a task of an event loop.

    An instance with `blocks_loops = True` allows them.
    """
    for name, method in inspect.getmembers(cls, inspect.isfunction):
        if not name.startswith("_"):
            setattr(cls, name, _refused_in_loops(name, method))
    return cls


def _refused_in_loops(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method, assigned=COPIED)
    def call(self: MayBlock, *args: Any, **kwargs: Any) -> Any:
        if is_in_event_loop() and not self.blocks_loops:
            raise CallContextError(
                f"sync.{name}() blocks, and would stop every task of this event loop: await {name}(...) on the client "
                f"itself, or call it in a thread. To block the loop on purpose, call sync_in_loop.{name}(...)"
            )
        return method(self, *args, **kwargs)

    return cast("Callable[..., Any]", call)
