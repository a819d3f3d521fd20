"""The command line: `trio-monque`, or `python -m trio_monque`. Each command has a file or folder."""

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
        print('trio-monque: the command needs click: python -m pip install "trio-monque[cli]"', file=sys.stderr)
        return FAILED
    return run_program(argv)
