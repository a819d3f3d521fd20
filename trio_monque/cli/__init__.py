"""The command line: `trio-monque`, or `python -m trio_monque`. Each command has a file or folder."""

from .program import main

__all__ = ["main"]
