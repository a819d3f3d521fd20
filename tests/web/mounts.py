"""The application in hosts of several frameworks, at `/admin`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import fastapi
import litestar
from litestar.types import Receive, Scope, Send
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

PATH: Final = "/admin"


def in_starlette(app: ASGIApp) -> ASGIApp:
    return Starlette(routes=[Mount(PATH, app)])


def in_fastapi(app: ASGIApp) -> ASGIApp:
    host = fastapi.FastAPI()
    host.mount(PATH, app)
    return host


def in_litestar(app: ASGIApp) -> ASGIApp:
    """As the page on the HTTP API does it: Litestar itself keeps the path of a mount to itself."""
    inner: Any = app

    async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
        scope["path"] = PATH + scope["path"]
        scope["root_path"] = PATH
        await inner(scope, receive, send)

    # Litestar reads the types of the function, which are texts in this module.
    mounted.__annotations__ = {"scope": Scope, "receive": Receive, "send": Send, "return": None}
    host: Any = litestar.Litestar(route_handlers=[litestar.asgi(PATH, is_mount=True, copy_scope=True)(mounted)])
    made: ASGIApp = host
    return made


HOSTS: Final[dict[str, Callable[[ASGIApp], ASGIApp]]] = {
    "Starlette": in_starlette,
    "FastAPI": in_fastapi,
    "Litestar": in_litestar,
}
