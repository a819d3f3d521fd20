"""The door in front of a dashboard that a command serves: it lets in the browser that has opened the link.

A GET changes nothing: previews of links open them, too. So the link shows one button, and its POST takes the token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ..answers import RefusedRequestError, refused
from ..guard.body import form_bytes
from ..guard.one_time_link import SESSION_LASTS, OneTimeLink
from .assets import assets
from .form import pairs_in
from .rendering import rendered
from .screen import links_from, root_of

PATH: Final = "/sign-in"
_OPEN: Final = frozenset(f"/{one.path}" for one in assets().values())
CLOSED: Final = "Open the link that the command has printed. For another browser, start the command again."


@dataclass(frozen=True, slots=True)
class SignIn:
    """An ASGI application around the inner one.

    Attributes:
        inner: Where the requests of the browser go that was let in.
        link: Its link.
        cookie: The name of its cookie. Cookies are shared between the ports of a machine, so it has the port.
    """

    inner: ASGIApp
    link: OneTimeLink
    cookie: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        request = Request(scope, receive)
        answer = self.inner if self._is_let_in(request) else await self._at_the_door(request)
        await answer(scope, receive, send)

    def _is_let_in(self, request: Request) -> bool:
        # The style sheet of the page with the button has nothing to hide. Only its exact path: an instance may be
        # called "a/static/b", and a header Host is part of a request's URL.
        return self.link.admits(request.cookies.get(self.cookie, "")) or _path_of(request) in _OPEN

    async def _at_the_door(self, request: Request) -> Response:
        try:
            root = root_of(request)
            path = _path_of(request)
            if request.method == "POST" and path == PATH:
                return await self._sign_in(request, root)
            token = request.query_params.get("token")
            if request.method == "GET" and path in ("", "/") and token:
                return _page(root, "Open the dashboard", None, token, 200)
            if path.startswith("/api/"):
                return refused(RefusedRequestError(401, CLOSED))
            return _page(root, "This dashboard is closed", CLOSED, None, 401)
        except RefusedRequestError as error:
            return refused(error)

    async def _sign_in(self, request: Request, root: str) -> Response:
        given = dict(pairs_in(await form_bytes(request)))
        session = self.link.exchange(given.get("token", ""))
        if session is None:
            return _page(root, "This link was already used, or is older than ten minutes", CLOSED, None, 403)
        answer = RedirectResponse(f"{root}/", 303)
        answer.set_cookie(
            self.cookie,
            session,
            max_age=int(SESSION_LASTS),
            path=root or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer


def _path_of(request: Request) -> str:
    root = str(request.scope.get("root_path") or "").removesuffix("/")
    return str(request.scope["path"]).removeprefix(root)


def _page(root: str, title: str, sentence: str | None, token: str | None, status: int) -> Response:
    html = rendered(
        "sign_in.html",
        {
            "link": links_from(root),
            "asset": {name: f"{root}/{one.path}" for name, one in assets().items()},
            "title": title,
            "sentence": sentence,
            "token": token,
            "path": PATH.removeprefix("/"),
        },
    )
    return HTMLResponse(html, status)
