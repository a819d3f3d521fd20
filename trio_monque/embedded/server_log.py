"""Reads the log of a server: its last lines, and why it ended, for error messages."""

from __future__ import annotations

import json
import re
from pathlib import Path

_TAIL_BYTES = 64 * 1024
_LONGEST_LINE = 400
_LAST_WORDS = 10
_ERROR = re.compile(r"^\S+ [EF] ")  # severities "error" and "fatal", in a line made readable

# A text in the log -> the cause of the end. Not exit codes: they differ between platforms, and one of them is that of
# the dynamic linker.
_SIGNS = (
    ("Address already in use", "port"),
    ("Only one usage of each socket address", "port"),
    ("DBPathInUse", "folder"),
)


def tail(log: Path, lines: int = 20) -> list[str]:
    """Return the last lines of the log, shortened for reading; none if there is no log."""
    return [_readable(line) for line in _last_lines(log)[-lines:]]


def last_words(log: Path) -> list[str]:
    """Return the errors and the last lines of the log of a server that has ended.

    Not only the last lines: a server that shuts down logs the reason first, and then forty steps of its shutdown.
    """
    lines = [_readable(line) for line in _last_lines(log) if line]
    errors = [line for line in lines[:-_LAST_WORDS] if _ERROR.search(line)]
    return errors[-_LAST_WORDS:] + lines[-_LAST_WORDS:]


def has_listening_line(log: Path) -> bool:
    """Return whether the server has logged that it accepts connections.

    A connection to the port proves less: another program may listen there, and our server has not noticed it yet.
    """
    try:
        return b"waiting for connections" in log.read_bytes().lower()
    except OSError:
        return False


def cause_of_death(log: Path) -> str:
    """Return why the server ended: "port", "folder" or "other"."""
    text = "\n".join(_last_lines(log))
    return next((cause for sign, cause in _SIGNS if sign in text), "other")


def _last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read()
    except OSError:
        return []
    return text.decode(errors="replace").splitlines()


def _readable(line: str) -> str:
    try:
        entry = json.loads(line)
        time = entry["t"]["$date"]
        attributes = f" {json.dumps(entry['attr'])}" if "attr" in entry else ""
        line = f"{time} {entry['s']} {entry['c']}: {entry['msg']}{attributes}"
    except (ValueError, KeyError, TypeError):
        pass
    return line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 3] + "..."
