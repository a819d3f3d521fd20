"""FastAPI: the HTTP API for managing jobs, mounted behind a login.

Why it exists: the host decides who the caller is, and the hooks decide what the caller may do. Run it:
`ADMIN_TOKEN=secret uvicorn --app-dir examples/web_service manage_over_http:app`.
"""

import os
import secrets
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from jobs import monque
from starlette.requests import Request

from trio_monque.web import create_app

TOKENS = {"dana": os.environ["ADMIN_TOKEN"]}  # Stands for the login of your program.


@dataclass
class Caller:
    user: str | None


def caller_of(request: Request) -> Caller:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    known = (user for user, token in TOKENS.items() if secrets.compare_digest(given.encode(), token.encode()))
    return Caller(next(known, None))


def authorize(action: str, caller: Caller, target: Any) -> bool:
    return caller.user is not None and action != "deleteBulk"


app = FastAPI()
app.mount("/admin/jobs", create_app(monque, context=caller_of, authorize=authorize))
