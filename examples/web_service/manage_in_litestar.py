"""Litestar: the HTTP API for managing jobs and its dashboard, to be looked at by all who reach the program.

Why it exists: Litestar does not tell what it mounts under which path, so links need `root_path`. Run it:
`uvicorn --app-dir examples/web_service manage_in_litestar:app`.
"""

from jobs import monque
from litestar import Litestar, asgi
from litestar.types import Receive, Scope, Send

from trio_monque.web import create_app

PATH = "/admin/jobs"
manage = create_app(monque)  # Without `authorize`, nothing can be changed.


@asgi(PATH, is_mount=True, copy_scope=True)
async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
    scope["path"] = PATH + scope["path"]
    scope["root_path"] = PATH
    await manage(scope, receive, send)  # type: ignore[arg-type]  # Litestar has types of its own for ASGI.


app = Litestar([mounted])
