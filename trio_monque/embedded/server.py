"""What the caller holds while the server runs: its URI, its members, its log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import replica_set, server_log
from .process import SupervisedServers


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
        members: The processes, in the order of their ports; empty where the server is not ours.
        folder: Where the data is; None where the server is not ours.
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
        """Return at once where every member runs.

        Raises:
            EmbeddedServerError: One has ended, with the tail of its log.
        """
        if self._supervised is not None:
            self._supervised.check()

    def wait_exited(self, member: int, timeout: float) -> bool:
        """Wait up to `timeout` seconds until that member's process has ended; False where it has not.

        Blocks the thread: from async code call it in one of its own.
        """
        return self._supervised is not None and self._supervised.wait_exited(member, timeout)

    def step_down(self, seconds: int = 10) -> None:
        """Make the primary step down, and not stand for election again for `seconds` seconds. Blocks the thread.

        Raises:
            MonqueConnectionError: No member is primary, or it refused: a lone member has no successor.
        """
        replica_set.step_down([member.port for member in self.members], seconds)

    def log_tail(self, lines: int = 20, *, member: int = 0) -> list[str]:
        """The last lines of a member's log; none where the server is not ours, or its folder is gone."""
        return server_log.tail(self.members[member].log, lines) if self.members else []
