"""The application as a server runs it: `uvicorn` on asyncio, `hypercorn` on trio. Its order is in ORDER."""

from __future__ import annotations

import json
import logging
import os
from typing import Any, Final

from pymongo import MongoClient
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from trio_monque import Monque
from trio_monque.client import bulk
from trio_monque.web import allow_all, create_app
from trio_monque.web.guard import limits_per_caller
from trio_monque.web.live import hub

ORDER: Final = json.loads(os.environ["ORDER"])

if "viewers" in ORDER:  # For a test that opens more of them than there may be.
    hub.MOST_VIEWERS = ORDER["viewers"]

if "rate" in ORDER:  # For a test that sends more than ten changes a second.
    vars(limits_per_caller)["MOST_A_SECOND"] = ORDER["rate"]

if "batch" in ORDER:  # For a test that ends the server in the middle of an action.
    vars(bulk)["MOST_IN_A_BATCH"] = ORDER["batch"]

if "audit" in ORDER:  # For a test that reads who is said to have changed something.
    logging.getLogger("trio_monque.web.audit").addHandler(logging.StreamHandler())
    logging.getLogger("trio_monque.web.audit").setLevel(logging.INFO)

client = MongoClient[Any](ORDER["uri"], tz_aware=True)
manage = create_app(Monque(client[ORDER["database"]]), authorize=allow_all, allowed_hosts=ORDER.get("hosts"))


def secret(request: Request) -> Response:
    """Something of the host that no path of the application may lead to."""
    return Response("of the host")


mount = ORDER.get("mount", "/admin")
app = Starlette(routes=[Route("/secret", secret), Mount(mount, manage)]) if mount else manage

if "middleware" in ORDER:  # As `@app.middleware("http")` of FastAPI makes it.

    async def passed_on(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    app = Starlette(routes=[Mount("/", app)], middleware=[Middleware(BaseHTTPMiddleware, dispatch=passed_on)])
