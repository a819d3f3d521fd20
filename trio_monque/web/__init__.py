"""Manage jobs over HTTP: an ASGI application for any host, which clients of Monque's management API understand.

It needs starlette: `python -m pip install starlette`. Nothing else of the package imports this room.
"""

from __future__ import annotations

try:
    import starlette  # noqa: F401
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] != "starlette":
        raise
    raise ModuleNotFoundError(
        "trio_monque.web needs starlette: python -m pip install starlette", name="starlette"
    ) from None

from ..claims.claimed_collection import ClaimRules
from .application import create_app
from .hooks import Authorize, ContextOf, ErrorTextOf, SerializePayload, allow_all

__all__ = ["Authorize", "ClaimRules", "ContextOf", "ErrorTextOf", "SerializePayload", "allow_all", "create_app"]
