"""A link that lets one browser in: its token is exchanged once for a session. All of it ends with the process.

The token travels in a URL, so it may be seen: in the history of a browser, by a preview of links, on a shared screen.
So it is worth nothing after its first use or ten minutes, and the session is a value of its own that was in no URL.
Both are kept as digests, and compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

RANDOM_BYTES: Final = 32
LINK_LASTS: Final = 600.0
"""Seconds in which the link can be opened."""
SESSION_LASTS: Final = 12 * 3600.0
"""Seconds for which the browser stays signed in."""


@dataclass(frozen=True, slots=True)
class _Secret:
    digest: bytes
    until: float

    def is_it(self, given: str, now: float) -> bool:
        return hmac.compare_digest(self.digest, _digest(given)) and now < self.until


class OneTimeLink:
    """The token of one link, and the session that it was exchanged for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            clock: Seconds that only grow.
        """
        self._clock = clock
        self.token = secrets.token_urlsafe(RANDOM_BYTES)
        self._link: _Secret | None = _Secret(_digest(self.token), clock() + LINK_LASTS)
        self._session: _Secret | None = None

    def exchange(self, token: str) -> str | None:
        """Return a session for the token, the first time within its ten minutes; None for any other text."""
        # No await between the look and the change: of two browsers with the same link, one comes first.
        if self._link is None or not self._link.is_it(token, self._clock()):
            return None
        self._link = None
        session = secrets.token_urlsafe(RANDOM_BYTES)
        self._session = _Secret(_digest(session), self._clock() + SESSION_LASTS)
        return session

    def admits(self, session: str) -> bool:
        """Return whether this is the session, within its twelve hours."""
        return self._session is not None and self._session.is_it(session, self._clock())


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
