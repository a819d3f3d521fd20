"""Answers as JSON, and every error as an answer of its own: a body `{"error": message}` and a status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from ..error_types import (
    BrokenDocumentError,
    InvalidCursorError,
    InvalidJobIdentifierError,
    InvalidOptionError,
    InvalidPayloadError,
    JobStateError,
    MissingIndexError,
    PayloadTooLargeError,
)
from ..log import logger_of

logger = logger_of("web")

INVALID_INPUT: Final = "Input validation failed"
READ_ONLY: Final = "Management surface is read-only"
UNSUPPORTED: Final = "Unsupported action"
READ_DENIED: Final = "Read access denied"
DENIED: Final = "Action denied"
INVALID_ID: Final = "Invalid job id"
INVALID_LIMIT: Final = "Invalid limit"
NOT_FOUND: Final = "Job not found"
INTERNAL: Final = "Internal server error"


class RefusedRequestError(Exception):
    """A request that is answered with an error.

    Attributes:
        status: Of the answer.
        message: What it says.
        headers: Of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = headers or {}


def as_json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer. Raises ValueError or TypeError if JSON cannot hold the content."""
    # ASCII only: whatever a serializer returns, lone surrogates too, becomes valid text.
    body = json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
    return Response(body, status, headers, media_type="application/json")


def refused(error: Exception) -> Response:
    """Return the answer to a request that has raised this."""
    refusal = refusal_of(error)
    return as_json({"error": refusal.message}, refusal.status, refusal.headers)


def refusal_of(error: Exception) -> RefusedRequestError:
    """Return what the caller is to know of an error; what is unknown is logged."""
    match error:
        case RefusedRequestError():
            return error
        case InvalidCursorError():
            return RefusedRequestError(400, str(error))
        case PayloadTooLargeError():
            return RefusedRequestError(413, str(error))
        case InvalidOptionError() | InvalidJobIdentifierError() | InvalidPayloadError():
            return RefusedRequestError(400, str(error))
        case JobStateError() | BrokenDocumentError() | MissingIndexError():
            return RefusedRequestError(409, str(error))
        case ClientDisconnect():
            return RefusedRequestError(400, "The request ended before its body was complete")
        case _:
            # Nothing of the inside: it may have addresses, and texts of other jobs.
            logger.error("a request failed", exc_info=error)
            return RefusedRequestError(500, INTERNAL)
