"""Manage jobs over HTTP: an ASGI application for any host, which clients of Monque's management API understand.

It needs starlette and jinja2: `python -m pip install starlette jinja2`. Nothing else of the package but the commands
that serve a dashboard imports this room.
"""

from __future__ import annotations

try:
    import jinja2  # noqa: F401
    import starlette  # noqa: F401
except ModuleNotFoundError as error:
    library = (error.name or "").partition(".")[0]
    if library not in ("starlette", "jinja2"):
        raise
    raise ModuleNotFoundError(
        f"trio_monque.web needs {library}: python -m pip install starlette jinja2", name=library
    ) from None

from ..claims.claimed_collection import ClaimRules
from .application import create_app
from .hooks import Authorize, ContextOf, ErrorTextOf, SerializePayload, allow_all

__all__ = ["Authorize", "ClaimRules", "ContextOf", "ErrorTextOf", "SerializePayload", "allow_all", "create_app"]
