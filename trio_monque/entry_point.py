"""The entry point of the command `trio-monque`: it catches signals before anything large is imported.

To import trio, PyMongo and the command takes most of a second on a small machine. The first process of a container
(PID 1) that has no handler for SIGTERM does not get it: the kernel drops the signal, and the container is killed at the
end of its grace period. This file imports only what Python has imported already.
"""

from __future__ import annotations

import signal
from types import FrameType

__all__ = ["main"]


def main() -> int:
    """Run the command of this process's arguments, and return its exit status."""
    early = EarlySignals()
    from .cli import main as run_command  # Only here: signals are caught now.

    return run_command(loaded=early.become_ctrl_c)


class EarlySignals:
    """Records SIGTERM and SIGINT during the imports, where an exception might be lost or break a module."""

    def __init__(self) -> None:
        self._received: list[int] = []
        # A shell without job control starts background processes so that they ignore Ctrl-C.
        self._ignores_ctrl_c = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        signal.signal(signal.SIGTERM, self._record)
        if not self._ignores_ctrl_c:
            signal.signal(signal.SIGINT, self._record)

    def become_ctrl_c(self) -> None:
        """From now on, SIGTERM does what Ctrl-C does, until a command handles it in its own way.

        Raises:
            KeyboardInterrupt: A signal was recorded.
        """
        if not self._ignores_ctrl_c:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.default_int_handler if self._ignores_ctrl_c else _pass_on)
        if self._received:
            raise KeyboardInterrupt

    def _record(self, number: int, _frame: FrameType | None) -> None:
        self._received.append(number)


def _pass_on(_number: int, _frame: FrameType | None) -> None:
    # Not `raise KeyboardInterrupt`: the event loops know at which moments it would break them.
    signal.raise_signal(signal.SIGINT)
