"""One route of the API, and how a request goes through it: shape, permission, act."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response

from ...claims.claimed_collection import ClaimedCollection
from ...client.monque import Monque, announce
from ...store.driver.types import ObjectId
from ..answers import (
    DENIED,
    INVALID_ID,
    INVALID_INPUT,
    READ_DENIED,
    READ_ONLY,
    UNSUPPORTED,
    RefusedRequestError,
    as_json,
    refusal_of,
    refused,
)
from ..guard.audit import Audit
from ..guard.body import NO_BODY, body_of
from ..guard.limits_per_caller import Rates
from ..guard.requests import prefers_early, root_path_of
from ..hooks import READ, Hooks
from ..live.background_actions import BackgroundActions
from ..live.hub import Hub
from ..live.long_answer import LongAnswer
from ..live.metrics_page import MetricsPage
from .query import single_values
from .schema_check import is_valid
from .schemas import ref

PREFIX: Final = "/api/v1"

CLIENT_LEFT: Final = 499
"""What web servers write into their logs for a client that left before the answer."""

_NO_KEYS: Final = frozenset[str]()


@dataclass(frozen=True, slots=True)
class Surface:
    """What all routes of one application share."""

    monque: Monque
    hooks: Hooks
    is_read_only: bool
    rates: Rates
    hub: Hub
    background: BackgroundActions
    metrics: MetricsPage
    allows_enqueue: bool = False
    filters: Collection[str] = ()
    claims: Mapping[str, ClaimedCollection] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    """One request, as far as it has been understood.

    Attributes:
        surface: The application.
        context: What the host says of the request.
        query: What the route has read in the query.
        body: The value of the body, or NO_BODY.
        id_text: What the path names: the id of a job or of an instance, or a source of claims.
        audit: What is to be said of it afterwards.
        root_path: Where the application is mounted; None if that is not a path.
        prefers_early: Whether the client asks for an answer before a long action is done.
        turn: What a bulk action leaves when it is done. An action that goes on after its answer takes it along.
    """

    surface: Surface
    context: Any
    query: Any
    body: Any
    id_text: str
    audit: Audit
    root_path: str | None = None
    prefers_early: bool = False
    turn: ExitStack = field(default_factory=ExitStack)

    @property
    def job_id(self) -> ObjectId:
        """The id. Raises RefusedRequestError (400) if it is not one."""
        if len(self.id_text) != 24 or not ObjectId.is_valid(self.id_text):
            raise RefusedRequestError(400, INVALID_ID)
        return ObjectId(self.id_text)

    def take_turn(self) -> None:
        """Begin a bulk action of the caller, who may do it: denied ones learn nothing of the actions of others.

        Raises:
            RefusedRequestError: Another one is under way (429).
        """
        self.turn.enter_context(self.surface.rates.one_in_bulk(self.audit.rates_key))

    async def may(self, action: str, target: Any = None) -> bool:
        """Return whether the caller may do this."""
        return await self.surface.hooks.may(action, self.context, target)


@dataclass(frozen=True, slots=True)
class RequestParts:
    """What was read in a request.

    Attributes:
        query: What the route has read in the query.
        body: The value of the body, or NO_BODY.
        id_text: What the path names.
        prefer: The values of the header `Prefer`.
    """

    query: Any = None
    body: Any = NO_BODY
    id_text: str = ""
    prefer: Sequence[str] = ()


async def _write(audit: Audit, status: int, surface: Surface) -> None:
    """Write the line of the log, and tell the listeners of the client."""
    if (event := audit.conclude(status)) is not None:
        await announce(surface.monque, event)


Pairs = Sequence[tuple[str, str]]


def no_query(pairs: Pairs) -> Mapping[str, str]:
    """Refuse any query."""
    return single_values(pairs, _NO_KEYS)


def any_query(pairs: Pairs) -> None:
    """Ignore the query."""


def always(surface: Surface) -> bool:
    """Support a route in every application."""
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A method and a path.

    Attributes:
        method, path: Below the prefix.
        operation_id: For OpenAPI.
        summary: A sentence for OpenAPI.
        act: Does it, and returns what the answer holds.
        answer: The schema of the answer.
        read_query: Reads the query, or raises RefusedRequestError.
        parameters: Of the query, for OpenAPI.
        body: The schema of the body; None for a route that ignores what it says.
        needs_body: A request without one has a wrong shape.
        check_body: Refuses a body for what no schema can say.
        action: What the route does: for the log of changes, and for `authorize` if it changes nothing.
        is_open: Everybody may ask.
        only_reads: It changes nothing although it has a body.
        is_supported: Whether the application is made to do it.
        long_answer: The schema of the answer to a client that need not wait; None where each one waits.
        full_answer: The schema of the answer where the query has `view=full`; None for a route without that view.
        is_ours: The contract does not have it.
        statuses: Of the answers to requests that it refuses, for OpenAPI.
        media_type: Of the answer; that of errors is JSON.
    """

    method: str
    path: str
    operation_id: str
    summary: str
    act: Callable[[Call], Awaitable[Any]]
    answer: str
    read_query: Callable[[Pairs], Any] = no_query
    parameters: Sequence[Mapping[str, Any]] = ()
    body: str | None = None
    needs_body: bool = False
    check_body: Callable[[Any], None] | None = None
    action: str = READ
    is_open: bool = False
    only_reads: bool = False
    is_supported: Callable[[Surface], bool] = always
    long_answer: str | None = None
    full_answer: str | None = None
    is_ours: bool = False
    statuses: Sequence[int] = ()
    media_type: str = "application/json"

    @property
    def changes(self) -> bool:
        """Whether it may change something."""
        return self.method != "GET" and not self.only_reads

    async def answer_to(self, request: Request, surface: Surface) -> Response:
        """Return the answer, whatever happens."""
        audit = Audit(self.action, request) if self.changes else Audit.nothing()
        try:
            # The shape first, before anybody is asked: the answer to it depends on nothing but the request.
            query = self.read_query(request.query_params.multi_items())
            body = await body_of(request) if self.method != "GET" else NO_BODY
            asked = RequestParts(
                query, body, next(iter(request.path_params.values()), ""), request.headers.getlist("prefer")
            )
            result = await self._result(request, surface, audit, asked)
            if isinstance(result, LongAnswer):
                return result  # It writes its line when it is done. Nothing may come between: it has the turn.
            # In a thread: an answer may have megabytes.
            answer = result if isinstance(result, Response) else await anyio.to_thread.run_sync(as_json, result)
        except Exception as error:  # noqa: BLE001  # Every error is an answer.
            answer = refused(error)
        except BaseException:
            audit.conclude(CLIENT_LEFT)  # Cancelled: it may have been done all the same.
            raise
        await _write(audit, answer.status_code, surface)
        return answer

    async def done_for_page(self, request: Request, surface: Surface, asked: RequestParts) -> Any:
        """Do the same for a page, which has read it from a form: with the same checks, and a line in the log.

        Raises:
            RefusedRequestError: What the API answers.
        """
        audit = Audit(self.action, request)
        try:
            result = await self._result(request, surface, audit, asked)
        except Exception as error:  # noqa: BLE001  # Every error is an answer.
            refusal = refusal_of(error)
            await _write(audit, refusal.status, surface)
            raise refusal from None
        except BaseException:
            audit.conclude(CLIENT_LEFT)
            raise
        if not isinstance(result, LongAnswer):
            await _write(audit, 200, surface)
        return result

    async def _result(self, request: Request, surface: Surface, audit: Audit, asked: RequestParts) -> Any:
        self._check_shape(asked.body)
        if self.changes and surface.is_read_only:
            raise RefusedRequestError(403, READ_ONLY)
        if not self.is_supported(surface):
            raise RefusedRequestError(403, UNSUPPORTED)
        context = await surface.hooks.context_of(request)
        audit.context = context
        call = Call(
            surface,
            context,
            asked.query,
            asked.body,
            asked.id_text,
            audit,
            root_path_of(request.scope),
            prefers_early(asked.prefer),
        )
        if not self.changes:
            if not self.is_open and not await call.may(self.action):
                raise RefusedRequestError(403, READ_DENIED if self.action == READ else DENIED)
            return await self.act(call)
        # Before `authorize` is asked: a caller who may do nothing is limited, too, and sees nothing but the number of
        # the own requests.
        surface.rates.count(audit.rates_key)
        with call.turn:
            return await self.act(call)

    def _check_shape(self, body: Any) -> None:
        if body is NO_BODY:
            if self.needs_body:
                raise RefusedRequestError(400, INVALID_INPUT)
        elif self.body is not None and not is_valid(body, ref(self.body)):
            raise RefusedRequestError(400, INVALID_INPUT)
        elif self.check_body is not None:
            self.check_body(body)
