"""What a host decides for the application: who may do what, who asks, and how payloads are shown."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio.to_thread
from starlette.requests import Request

from ..jobs.job import Job
from ..store.jobs.job_json import value_as_json

Authorize = Callable[[str, Any, Any], Any]
"""`authorize(action, context, target)`, sync or async: only True allows. The target is a Job, a selector, or None."""

ContextOf = Callable[[Request], Any]
"""Makes what the other hooks get as `context`, from the request; sync or async."""

SerializePayload = Callable[[Mapping[str, Any]], Any]
"""Gets `{"job": Job, "payload": data, "context": context}`, and returns what JSON can hold; sync or async."""


def allow_all(action: str, context: Any, target: Any) -> bool:
    """Allow everything: for an application that only those can reach who may do everything."""
    return True


@dataclass(frozen=True, slots=True)
class Hooks:
    """The hooks of one application."""

    authorize: Authorize | None = None
    context: ContextOf | None = None
    serialize_payload: SerializePayload | None = None
    serialize_payload_by_name: Mapping[str, SerializePayload] = field(default_factory=dict)

    async def context_of(self, request: Request) -> Any:
        """Return the context that the host gives to this request; None if it gives none."""
        return None if self.context is None else await _called(self.context, request)

    async def may(self, action: str, context: Any, target: Any = None) -> bool:
        """Return whether the action is allowed. Without a hook, reads are."""
        if self.authorize is None:
            return action == READ
        # Not whatever counts as true: a hook that returns its token, or forgets to await, must not let everybody in.
        return await _called(self.authorize, action, context, target) is True

    async def payload_of(self, job: Job, context: Any) -> Any:
        """Return the data of the job as JSON."""
        serialize = self.serialize_payload_by_name.get(job.name, self.serialize_payload)
        if serialize is None:
            return value_as_json(job.data)
        return await _called(serialize, {"job": job, "payload": job.data, "context": context})


READ: Final = "read"


async def _called(hook: Callable[..., Any], *arguments: Any) -> Any:
    """Call a hook: a plain one in a thread, because it may block, and all other requests would wait."""
    if _is_async(hook):
        return await hook(*arguments)
    result = await anyio.to_thread.run_sync(hook, *arguments)
    return await result if isinstance(result, Awaitable) else result


def _is_async(hook: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(hook) or inspect.iscoroutinefunction(type(hook).__call__)
