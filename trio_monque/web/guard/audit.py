"""What was tried, by whom, and what came of it: one line of the log and one event for each change."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ...events import DashboardActed
from ...log import logger_of

logger = logger_of("web.audit")


class Audit:
    """One request to change something.

    Attributes:
        context: What the host says of the request: `str(context.user)` names the caller, if there is that.
        target: What is to be changed: an id, or a selector. Never a payload.
        count: How many jobs were changed; None if that was not counted.
    """

    def __init__(self, action: str, request: Request | None) -> None:
        self.context: Any = None
        self.target: Any = None
        self.count: int | None = None
        self._action = action
        self._address = request.client.host if request is not None and request.client is not None else ""
        self._is_written = request is not None

    @classmethod
    def nothing(cls) -> Audit:
        """Return one of a request that changes nothing: it writes no line."""
        return cls("", None)

    @property
    def caller(self) -> str:
        """The user, or else the address."""
        user = self.user
        return self._address if user is None else user

    @property
    def rates_key(self) -> str:
        """The caller, for what is counted: a user who is called like an address is another one."""
        user = self.user
        return f"address {self._address}" if user is None else f"user {user}"

    @property
    def user(self) -> str | None:
        """The user; None if the context has none."""
        try:
            user = getattr(self.context, "user", None)
            return None if user is None else str(user)
        except Exception:  # noqa: BLE001  # For example, `request.user` of Starlette without its authentication.
            return None

    def conclude(self, status: int) -> DashboardActed | None:
        """Write the line, with the status of the answer, and return the event of it; None where nothing is written."""
        if not self._is_written:
            return None
        target = str(self.target or "")
        logger.info(
            "%s by %s from %s: %s, answered %s (jobs: %s)",
            self._action,
            self.caller or "unknown",
            self._address or "unknown",
            target or "no target",
            status,
            "-" if self.count is None else self.count,
        )
        return DashboardActed(self.caller, self._action, target, self.count, status)
