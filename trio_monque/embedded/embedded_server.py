"""EmbeddedServer: a running server with its URI, its members and its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import replica_set, server_log
from .supervised_servers import SupervisedServers


@dataclass(frozen=True)
class EmbeddedMember:
    """One `mongod` of the set.

    Attributes:
        port: Where it listens, on 127.0.0.1.
        pid: Its process id.
        folder: Its data and its log.
    """

    port: int
    pid: int
    folder: Path

    @property
    def log(self) -> Path:
        """The file with everything that it printed."""
        return self.folder / "mongod.log"


class EmbeddedServer:
    """A running server, or the one that MONQUE_MONGODB_URI names.

    Attributes:
        uri: A complete connection string.
        members: The processes, in the order of their ports; empty if it was not started here.
        folder: The folder of the data; None if it was not started here.
    """

    def __init__(
        self,
        uri: str,
        members: Sequence[EmbeddedMember] = (),
        folder: Path | None = None,
        supervised: SupervisedServers | None = None,
    ) -> None:
        self.uri = uri
        self.members = tuple(members)
        self.folder = folder
        self._supervised = supervised

    def __repr__(self) -> str:
        where = ", ".join(f"{replica_set.HOST}:{member.port}" for member in self.members)
        return f"<EmbeddedServer at {where or 'MONQUE_MONGODB_URI'}>"

    @property
    def owned(self) -> bool:
        """Whether it was started here, and ends here."""
        return self._supervised is not None

    def check(self) -> None:
        """Return at once if every member runs.

        Raises:
            EmbeddedServerError: One has ended, with the tail of its log.
        """
        if self._supervised is not None:
            self._supervised.check()

    def wait_exited(self, member: int, timeout: float) -> bool:
        """Wait up to `timeout` seconds until that member's process has ended; return False if it has not.

        It blocks the thread: in async code, call it in a thread.
        """
        return self._supervised is not None and self._supervised.wait_exited(member, timeout)

    def step_down(self, seconds: int = 10) -> None:
        """Make the primary step down, and not stand for election again for `seconds` seconds. Blocks the thread.

        Raises:
            MonqueConnectionError: No member is primary, or it refused: a lone member has no successor.
        """
        replica_set.step_down([member.port for member in self.members], seconds)

    def log_tail(self, lines: int = 20, *, member: int = 0) -> list[str]:
        """Return the last lines of a member's log; none if it was not started here, or its folder is gone."""
        return server_log.tail(self.members[member].log, lines) if self.members else []
