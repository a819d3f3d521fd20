"""The style sheet, the script and the icon: read once, and served under names that change with their content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from ..answers import RefusedRequestError, refused

MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOR_EVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        path: Below the dashboard, with the hash of the content.
        content: Its bytes.
        media_type: For `Content-Type`.
    """

    path: str
    content: bytes
    media_type: str


@cache
def assets() -> Mapping[str, Asset]:
    """Return the files by their names, such as "monque.css"."""
    found = {}
    for file in files(__package__ or "").joinpath("static").iterdir():
        stem, dot, ending = file.name.rpartition(".")
        if (media_type := MEDIA_TYPES.get(dot + ending)) is not None:
            content = file.read_bytes()
            digest = hashlib.sha256(content).hexdigest()[:12]
            found[file.name] = Asset(f"static/{stem}.{digest}.{ending}", content, media_type)
    return found


async def asset(request: Request) -> Response:
    """Answer with the file that the path names."""
    path = f"static/{request.path_params['file']}"
    for one in assets().values():
        if one.path == path:
            return Response(one.content, media_type=one.media_type, headers={"Cache-Control": FOR_EVER})
    return refused(RefusedRequestError(404, "Not found"))
