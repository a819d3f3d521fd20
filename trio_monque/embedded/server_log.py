"""Reads the server's log: its last lines for a person, and the cause of a death for the message."""

from __future__ import annotations

import json
import re
from pathlib import Path

_TAIL_BYTES = 64 * 1024
_LONGEST_LINE = 400
_LAST_WORDS = 10
_ERROR = re.compile(r"^\S+ [EF] ")  # severities "error" and "fatal", in a line made readable

# What the server says -> which of the causes below it is. Texts rather than exit codes: the codes
# differ between platforms, and the dynamic linker's is not the server's own.
_SIGNS = (
    ("Address already in use", "port"),
    ("Only one usage of each socket address", "port"),
    ("DBPathInUse", "folder"),
    ("error while loading shared libraries", "library"),
)


def tail(log: Path, lines: int = 20) -> list[str]:
    """The last lines of the log, shortened for reading; none where there is no log."""
    return [_readable(line) for line in _last_lines(log)[-lines:]]


def last_words(log: Path) -> list[str]:
    """What a server that died left behind: its errors, and the last lines.

    The last lines alone would not do: a server that ends in order says why first, and then reports
    forty steps of its shutdown.
    """
    lines = [_readable(line) for line in _last_lines(log) if line]
    errors = [line for line in lines[:-_LAST_WORDS] if _ERROR.search(line)]
    return errors[-_LAST_WORDS:] + lines[-_LAST_WORDS:]


def has_listening_line(log: Path) -> bool:
    """Whether the server has said that it accepts connections.

    Its own word is taken rather than a connection to the port, because another program may be
    listening there while ours is about to find that out.
    """
    try:
        return b"waiting for connections" in log.read_bytes().lower()
    except OSError:
        return False


def cause_of_death(log: Path) -> str:
    """One of "port", "folder", "library", "other"."""
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
