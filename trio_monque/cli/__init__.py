"""The command line: `trio-monque`, or `python -m trio_monque`. Each command has a file or folder."""

import signal
import sys
from collections.abc import Sequence

from .exit_statuses import FAILED

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        from .program import run_program  # Only here: click is an extra, and the error for it is ours.
    except ModuleNotFoundError as error:
        if error.name != "click":
            raise
        print("trio-monque: the command needs click: python -m pip install click rich watchfiles", file=sys.stderr)
        return FAILED
    status = run_program(argv)
    if argv is None:
        # The process ends: a second Ctrl-C would only interrupt the end of the interpreter, with a traceback.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    return status
