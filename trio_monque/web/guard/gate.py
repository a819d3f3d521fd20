"""The outermost part of the application: it lets requests in or refuses them, and sets headers on every answer."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..answers import RefusedRequestError, refused
from . import requests


@dataclass(frozen=True, slots=True)
class Gate:
    """An ASGI application around the inner one.

    Attributes:
        inner: Where requests go that are let in.
        allowed_hosts: Which hosts a request may name; None for any.
        trusted_origins: Whose pages may send changes, beside those of this site.
    """

    inner: ASGIApp
    allowed_hosts: Collection[str] | None = None
    trusted_origins: Collection[str] = ()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in requests.HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        answer = self.inner if refusal is None else refused(refusal)
        await answer(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> RefusedRequestError | None:
        headers = Headers(scope=scope)
        if not requests.is_known_host(self.allowed_hosts, headers.getlist("host")):
            return RefusedRequestError(421, "This host is not allowed here")
        if not requests.is_short(scope["query_string"]):
            return RefusedRequestError(414, f"The query is longer than {requests.LONGEST_QUERY:,} bytes")
        if not requests.is_of_this_site(scope["method"], headers, scope["scheme"], self.trusted_origins):
            return RefusedRequestError(403, "This request comes from a page of another site")
        return None
