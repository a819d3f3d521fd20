"""Requests to the application, on asyncio and on trio."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import anyio
import httpx
from starlette.types import ASGIApp

T = TypeVar("T")

Ask = Callable[..., Awaitable[httpx.Response]]

HOST = "http://jobs.test"
LOOPS = ("asyncio", "trio")


def asking(
    loop: str, app: ASGIApp, work: Callable[[Ask], Awaitable[T]], *, root_path: str = "", prefix: str = "/api/v1"
) -> T:
    """Run `work` on this event loop; its argument sends a request to the application, at a path below `prefix`."""

    async def run() -> T:
        transport = httpx.ASGITransport(app, raise_app_exceptions=True, root_path=root_path)
        async with httpx.AsyncClient(transport=transport, base_url=HOST) as client:
            return await work(partial(_ask, client, prefix))

    return anyio.run(run, backend=loop)


async def _ask(client: httpx.AsyncClient, prefix: str, method: str, path: str, **options: Any) -> httpx.Response:
    return await client.request(method, prefix + path, **options)
