"""Which requests are let in: by host, by origin and by length. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
LONGEST_QUERY: Final = 8192

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types monque"
    ),
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # No path and no query, so no token. Not "no-referrer": browsers send the forms of such a page with `Origin: null`,
    # and over plain HTTP, except at localhost, nothing else says that they are ours.
    "Referrer-Policy": "strict-origin",
    "Cache-Control": "no-store",
}
"""On every answer."""


def is_known_host(hosts: Collection[str] | None, given: Collection[str]) -> bool:
    """Return whether a request names one of these hosts; None stands for any.

    Args:
        hosts: With their port, if it is not that of the scheme.
        given: The values of the headers `Host`. There must be one: of two, a proxy may have read the other.
    """
    return hosts is None or (len(given) == 1 and {one.lower() for one in given} <= {one.lower() for one in hosts})


def is_of_this_site(method: str, headers: Mapping[str, str], scheme: str, trusted_origins: Collection[str]) -> bool:
    """Return whether no page of another site has sent the request.

    Such a page can send requests with the cookies of the host, but not these headers of its choice: browsers set them.
    A request without them is not of a browser. As in `net/http.CrossOriginProtection` of Go 1.25.
    """
    if method in SAFE:
        return True
    origin = headers.get("origin")
    if origin is not None and origin.lower() in {one.lower().rstrip("/") for one in trusted_origins}:
        return True
    site = headers.get("sec-fetch-site")
    if site is not None:
        return site in ("same-origin", "none")
    return origin is None or _is_same(origin, scheme, headers.get("host", ""))


def _is_same(origin: str, scheme: str, host: str) -> bool:
    try:
        of_page, own = urlsplit(origin), urlsplit(f"{scheme}://{host}")
        return (of_page.scheme, of_page.hostname, _port(of_page.scheme, of_page.port)) == (
            own.scheme,
            own.hostname,
            _port(own.scheme, own.port),
        )
    except ValueError:  # A port that is none.
        return False


def _port(scheme: str, port: int | None) -> int | None:
    return port or {"http": 80, "https": 443}.get(scheme)


_ROOT_PATH: Final = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def root_path_of(scope: Mapping[str, Any]) -> str | None:
    """Return where the application is mounted, without a slash at the end; None if that is not a path.

    A server may take it from a header, and it is in links that clients follow.
    """
    given = str(scope.get("root_path") or "").removesuffix("/")
    return given if _ROOT_PATH.fullmatch(given) else None


def prefers_early(given: Collection[str]) -> bool:
    """Return whether the headers `Prefer` ask for an answer before the work is done (RFC 7240)."""
    preferences = (one.partition(";")[0].strip().lower() for line in given for one in line.split(","))
    return "respond-async" in preferences


def is_short(query: bytes) -> bool:
    """Return whether the query string has a length that is read."""
    return len(query) <= LONGEST_QUERY
