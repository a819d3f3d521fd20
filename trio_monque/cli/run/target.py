"""The targets of `trio-monque run`: `package.module:attribute`, and the workers and resources that they give."""

from __future__ import annotations

import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from inspect import Parameter
from pathlib import Path
from typing import Any, Final

import trio

from ...checks import signature_of
from ...error_types import MonqueError
from ...safe_text import message_of
from ...scheduler.declared_resources import resources_needed
from ...scheduler.workers import Workers, loop_of_all
from ..tracebacks import UserCodeError

LONGEST_TEXT: Final = 1000
"""Characters of an error in which its kind is looked for."""

_EMPTY: Final = Parameter.empty
_ANY: Final = {"uri": "", "database": ""}
_EXPECTED: Final = "a Workers, or a function or async context manager that provides Workers or (Workers, resources)"


@dataclass(frozen=True)
class WorkerTarget:
    """What the user named, imported, and not yet called.

    Attributes:
        name: As it was given: `package.module:attribute`.
        value: The object.
    """

    name: str
    value: object


@dataclass(frozen=True)
class SelectedNames:
    """Which of the workers run.

    Attributes:
        only: The names to run; empty for all.
        without: The names not to run.
    """

    only: tuple[str, ...]
    without: tuple[str, ...]

    def of(self, workers: Workers[Any], targets: str) -> Workers[Any]:
        """Return the selected workers; `targets` are their targets, for messages.

        Raises:
            MonqueError: There is no worker of a name, or none is left.
        """
        for option, names in (("--only", self.only), ("--except", self.without)):
            for name in names:
                if name not in workers.names:
                    raise MonqueError(
                        f"{option} {name}: no worker of {targets} has this name{_meant(name, workers.names)}"
                    )
        selected = [name for name in self.only or workers.names if name not in self.without]
        if not selected:
            raise MonqueError("--only and --except leave no worker to run")
        return workers.subset(selected)


def load_target(name: str) -> WorkerTarget:
    """Import the module, from the current directory too, and return what the name names.

    Raises:
        MonqueError: There is no such module or attribute.
        UserCodeError: The module raised.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise MonqueError(f"{name!r} does not name workers: write MODULE:ATTRIBUTE, for example shop.jobs:workers")
    if module_name.endswith(".py") or "/" in module_name:
        dotted = ".".join(Path(module_name.removesuffix(".py")).parts)
        raise MonqueError(f"{module_name!r} is a path: name the module, as in {dotted}:{path}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        value: object = import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise UserCodeError from error  # The module imports another one that is missing.
        raise MonqueError(f"there is no module {error.name!r}: looked in {here} and on sys.path") from None
    except Exception as error:
        raise UserCodeError from error
    for attribute in path.split("."):
        try:
            value = getattr(value, attribute)
        except AttributeError:
            near = _meant(attribute, [one for one in dir(value) if not one.startswith("_")])
            raise MonqueError(f"{name!r}: {module_name} has no attribute {attribute!r}{near}") from None
    return WorkerTarget(name, value)


def declared_loop(targets: Sequence[WorkerTarget]) -> str | None:
    """Return the event loop that the targets declare; None if none does.

    A function is called on the loop, so what it gives is known too late: the Workers in its module show it, if they
    agree. If it gives others, which declare another loop, the scheduler refuses to start, and names `--loop`.

    Raises:
        MonqueError: They declare two.
    """
    if (declared := loop_of_all([one.value for one in targets if isinstance(one.value, Workers)])) is not None:
        return declared
    probable = {loop for one in targets if (loop := _loop_of_module(one.value)) is not None}
    return probable.pop() if len(probable) == 1 else None


def _loop_of_module(target: object) -> str | None:
    """Return the loop that all Workers in the module of a function declare; None without any, or if they differ."""
    if not callable(target) or isinstance(target, Workers):
        return None
    function = target.func if isinstance(target, partial) else target
    names = getattr(inspect.unwrap(function), "__globals__", {})
    # Not by `isinstance`, which asks an object for its class: a lazy one would be made by that.
    loops = {one.loop for one in list(names.values()) if issubclass(type(one), Workers)}
    return loops.pop() if len(loops) == 1 else None


async def workers_of_all(
    targets: Sequence[WorkerTarget], stack: AsyncExitStack, uri: str = "", database: str = ""
) -> Workers[Any]:
    """Return the workers of all targets, those of each with the resources of their target.

    Functions are called, and async context managers entered, in this order: the stack leaves them. One that has a
    parameter `uri` gets the connection string, and one that has a parameter `database` the name of the database.

    Raises:
        MonqueError: A target gives something else, or no workers, or two targets have a worker of the same name.
        UserCodeError: A target raised.
    """
    names: dict[str, str] = {}
    sets: list[Workers[Any]] = []
    for target in targets:
        workers = await _workers_of(target, stack, {"uri": uri, "database": database})
        if not workers.names:
            raise MonqueError(f"{target.name} has no workers: import the modules that register their handlers")
        for name in workers.names:
            if name in names:
                raise MonqueError(
                    f"both {names[name]} and {target.name} have a worker named {name!r}: name only one of these "
                    "targets, or rename one worker"
                )
            names[name] = target.name
        sets.append(workers)
    return sets[0].union(*sets[1:])


async def _workers_of(target: WorkerTarget, stack: AsyncExitStack, known: Mapping[str, str]) -> Workers[Any]:
    given = target.value
    if not isinstance(given, Workers):
        check_usable(target)
        try:
            if callable(given) and not isinstance(given, AbstractAsyncContextManager):
                # Those that `asynccontextmanager` makes could be called too, to decorate a function.
                given = given(**_taken_by(given, known))
            if inspect.isawaitable(given):
                given = await given
            if isinstance(given, AbstractAsyncContextManager):
                given = await stack.enter_async_context(given)
        except Exception as error:
            _explain_loop(error)
            raise UserCodeError from error
    match given:
        case Workers():
            if (needed := resources_needed(given)) is not None:
                raise MonqueError(
                    f"{target.name} is a Workers[{needed}], and provides no {needed}: name a function or an async "
                    "context manager that provides (workers, resources)"
                )
            return given
        case (Workers() as workers, resources):
            return workers.with_resources(resources)
    raise MonqueError(f"{target.name} provides a value of type {type(given).__name__}: it must be {_EXPECTED}")


def _taken_by(function: Callable[..., Any], known: Mapping[str, str]) -> dict[str, str]:
    """Return those of the known values for which the function has a parameter."""
    try:
        parameters = signature_of(function).parameters
    except (TypeError, ValueError):  # Some builtins have no signature.
        return {}
    # The author of a partial has given it some already.
    own = function.keywords if isinstance(function, partial) else {}
    by_name = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    # A default shows what else a parameter of this name is for: a Database, for example.
    has_own_meaning = {name for name in ("database",) if name in parameters and parameters[name].default is not _EMPTY}
    return {
        name: value
        for name, value in known.items()
        if name in parameters and parameters[name].kind in by_name and name not in own and name not in has_own_meaning
    }


def _explain_loop(error: Exception) -> None:
    """Add a note to an error that a target raises because it needs asyncio, and was called on trio."""
    if isinstance(error, MonqueError):
        return
    modules = [str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(error.__traceback__)]
    is_of_asyncio = any(one.split(".")[0] == "asyncio" for one in modules)
    text = message_of(error, LONGEST_TEXT)
    is_of_trio = type(error) is TypeError and "asyncio" in text  # The task awaited something of asyncio's.
    has_no_loop = type(error) is RuntimeError and "event loop" in text
    if trio.lowlevel.in_trio_task() and (is_of_asyncio or is_of_trio or has_no_loop):
        error.add_note("The target was called on trio. If it needs asyncio, pass --loop asyncio.")


def check_usable(target: WorkerTarget) -> None:
    """Raise MonqueError for a value that cannot give workers, such as a web application or a handler."""
    if isinstance(target.value, AbstractAsyncContextManager):
        return
    problem = f"is a value of type {type(target.value).__name__}"
    if callable(target.value):
        try:
            signature_of(target.value).bind(**_taken_by(target.value, _ANY))
            return
        except ValueError:  # Some builtins have no signature.
            return
        except TypeError:
            problem += " that needs arguments (it can have uri= and database= only)"
    raise MonqueError(f"{target.name} {problem}: it must be {_EXPECTED}")


def _meant(given: str, known: Any) -> str:
    near = get_close_matches(given, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""
