"""What a host decides for the application: who may do what, who asks, and how payloads are shown."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import anyio
import anyio.to_thread
from anyio.lowlevel import RunVar
from starlette.requests import Request

from ..jobs.job import Job
from ..store.jobs.job_json import value_as_json


class Authorize(Protocol):
    """Decides who may do what; sync or async. Only True allows."""

    def __call__(self, action: str, context: Any, target: Any, /) -> bool | Awaitable[bool]:
        """Return whether the caller may do this.

        Args:
            action: Such as "read" or "cancelBulk"; `GET /permissions` lists all.
            context: What the application's `context` returned for the request.
            target: A Job, the conditions of a selection or of a new job, or None for the action in general.
        """
        ...


class ContextOf(Protocol):
    """Makes what the other hooks get as `context`, from the request; sync or async."""

    def __call__(self, request: Request, /) -> Any: ...


class SerializePayload(Protocol):
    """Makes what is shown of a payload; sync or async. It returns what JSON can hold."""

    def __call__(self, given: Mapping[str, Any], /) -> Any:
        """Return what is shown.

        Args:
            given: `{"job": Job, "payload": data, "context": context, "field": "payload"}`. The result, the progress,
                the checkpoint and the steps of a job come as `payload` too, with "result", "progress", "saved" or
                "steps" as their `field`.
        """
        ...


class ErrorTextOf(Protocol):
    """Makes what is shown of a message or a traceback of an error; sync or async."""

    def __call__(self, job: Job | None, text: str, context: Any, /) -> str | Awaitable[str | None] | None:
        """Return the text to show, or None to hide it. `job` is None for the error of a dead letter of claims."""
        ...


def allow_all(action: str, context: Any, target: Any) -> bool:
    """Allow everything: for an application that only those can reach who may do everything."""
    return True


@dataclass(frozen=True, slots=True)
class ValueOf:
    """A value of the program in a job: its payload, result, progress or checkpoint, by the name of the API."""

    job: Job
    value: Any
    field_name: str


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of one application."""

    authorize: Authorize | None = None
    context: ContextOf | None = None
    serialize_payload: SerializePayload | None = None
    serialize_payload_by_name: Mapping[str, SerializePayload] = field(default_factory=dict)
    show_errors: bool | ErrorTextOf = True

    async def context_of(self, request: Request) -> Any:
        """Return what the host says of this request; None without a hook."""
        return None if self.context is None else await _called(self.context, request)

    async def may(self, action: str, context: Any, target: Any = None) -> bool:
        """Return whether the action is allowed. Without a hook, what only reads is."""
        if self.authorize is None:
            return action in (READ, METRICS)
        # Not whatever counts as true: a hook that returns its token, or forgets to await, must not let everybody in.
        return await _called(self.authorize, action, context, target) is True

    async def values_of(self, values: Sequence[ValueOf], context: Any) -> list[Any]:
        """Return values of the program, such as the results of jobs, as JSON.

        Those without a serializer are made in one thread: a document may have 16 MiB, and the host has other requests.
        """
        serializers = [self.serialize_payload_by_name.get(one.job.name, self.serialize_payload) for one in values]
        plain = [one.value for one, serialize in zip(values, serializers, strict=True) if serialize is None]
        made = iter(await anyio.to_thread.run_sync(_all_as_json, plain) if plain else ())
        return [
            next(made)
            if serialize is None
            else await _called(
                serialize, {"job": one.job, "payload": one.value, "context": context, "field": one.field_name}
            )
            for one, serialize in zip(values, serializers, strict=True)
        ]

    async def error_text_of(self, job: Job | None, text: str | None, context: Any) -> str | None:
        """Return a text of an error as it may be shown; None for nothing. `job` is None for that of a dead letter."""
        if text is None or self.show_errors is False:
            return None
        if self.show_errors is True:
            return text
        shown = await _called(self.show_errors, job, text, context)
        return None if shown is None else str(shown)


READ: Final = "read"
METRICS: Final = "metrics"
"""A read of its own, so that a scraper may be allowed nothing else. It shows names of jobs and numbers."""
MOST_HOOKS: Final = 40
"""Plain hooks that run at once in one event loop; further ones wait."""


async def _called(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook: a plain one in a thread, because it may block, and all other requests would wait."""
    if _is_async(hook):
        return await hook(*arguments)
    result = await anyio.to_thread.run_sync(hook, *arguments, limiter=_threads())
    return await result if isinstance(result, Awaitable) else result


def _threads() -> anyio.CapacityLimiter:
    """Return the threads of plain hooks. Hooks that block must not use up those of the host and of the answers."""
    try:
        return _LIMITER.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(MOST_HOOKS)
        _LIMITER.set(limiter)
        return limiter


_LIMITER: Final[RunVar[anyio.CapacityLimiter]] = RunVar("trio_monque.web.hooks")


def _is_async(hook: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)


def _all_as_json(values: Sequence[Any]) -> list[Any]:
    return [value_as_json(value) for value in values]
