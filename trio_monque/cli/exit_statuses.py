"""The exit statuses of every command."""

from typing import Final

SUCCEEDED: Final = 0
CHECK_FAILED: Final = 1
"""The command did its work, and what it found is wrong."""
FAILED: Final = 2
"""The command could not do its work; click also uses it for invalid arguments."""
INTERRUPTED: Final = 130
"""Ended by Ctrl-C or SIGTERM, in order; what a shell expects of an interrupted program."""
OUTPUT_CLOSED: Final = 141
"""The reader of the output left, as in `| head`; what a shell reports of a program that SIGPIPE ended."""
