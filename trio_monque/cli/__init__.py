"""The command line: `trio-monque`, or `python -m trio_monque`. Each command has a file or folder."""

import signal
import sys
from collections.abc import Callable, Sequence

from .exit_statuses import FAILED, INTERRUPTED

__all__ = ["main"]


def main(argv: Sequence[str] | None = None, *, loaded: Callable[[], None] = lambda: None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: The arguments; those of the process by default.
        loaded: Called when the command is imported, before it runs. If it raises KeyboardInterrupt, because a signal
            came meanwhile, the command does not run.
    """
    try:
        from .program import run_program  # Only here: click is an extra, and the error for it is ours.
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("trio-monque: the command needs click: python -m pip install click rich watchfiles", file=sys.stderr)
        return FAILED
    try:
        status = run_program(argv, loaded)
    except KeyboardInterrupt:
        status = INTERRUPTED
    if argv is None:
        # The process ends: a second Ctrl-C would only interrupt the end of the interpreter, with a traceback.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return status
