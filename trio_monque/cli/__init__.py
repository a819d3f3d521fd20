"""The command line: `trio-monque`, or `python -m trio_monque`. One room a command."""

from .program import main

__all__ = ["main"]
