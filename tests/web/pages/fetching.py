"""Requests for pages."""

from __future__ import annotations

from typing import Any

import httpx

from tests.web.http import Ask, asking


def get(app: Any, path: str, *, loop: str = "asyncio", root_path: str = "", **options: Any) -> httpx.Response:
    """Return the answer of the application at this path."""

    async def work(ask: Ask) -> httpx.Response:
        return await ask("GET", path, **options)

    return asking(loop, app, work, root_path=root_path, prefix="")
