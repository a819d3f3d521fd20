"""Forms of pages, posted as a browser does."""

from __future__ import annotations

import html
import re
from typing import Any, Final
from urllib.parse import parse_qsl

import httpx
from starlette.types import ASGIApp

from tests.web.http import Ask, asking
from tests.web.pages.job_documents import job_document
from trio_monque.store.driver.types import Database

HERE: Final = {"Sec-Fetch-Site": "same-origin"}


def post(app: ASGIApp, loop: str = "asyncio", headers: Any = HERE, path: str = "/act", **fields: Any) -> httpx.Response:
    async def work(ask: Ask) -> httpx.Response:
        return await ask("POST", path, data=fields, headers=headers)

    return asking(loop, app, work, prefix="")


def hidden_fields(page: str) -> list[tuple[str, str]]:
    """What the first form of a page has asked for."""
    return parse_qsl(html.unescape(re.findall(r'name="asked" value="([^"]*)"', page)[0]))


def sent(app: ASGIApp, page: str, **filled: str) -> httpx.Response:
    """The answer to the first form of a page, as a browser sends it, with what a person has filled in."""
    fields = re.findall(
        r'<input type="hidden" name="([^"]*)" value="([^"]*)">',
        page.partition('action="/act"')[2].partition("</form>")[0],
    )
    return post(app, **{key: html.unescape(value) for key, value in fields}, **filled)


def failed(db: Database, number: int, name: str = "mail", **fields: Any) -> list[str]:
    documents = [job_document(name, status="failed", fail_reason="E: no", **fields) for _ in range(number)]
    return [str(one) for one in db["monque_jobs"].insert_many(documents).inserted_ids]
