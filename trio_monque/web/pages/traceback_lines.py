"""A traceback in parts: the frames of the program, which a reader looks for, and those of libraries. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

LONGEST: Final = 64 * 1024
"""Characters that are shown. Ours are shorter; another program may have stored any text."""

_FRAME: Final = re.compile(r'(?P<indent>[ \t|+-]*)File "(?P<path>[^"\n]*)", line \d+')
_OF_A_LIBRARY: Final = re.compile(
    r"(^|/)(site-packages|dist-packages|trio_monque|trio|anyio|asyncio|concurrent/futures)/"
    r"|(^|/)lib/python3[.\d]*/|^<frozen "
)
_MARGIN: Final = re.compile(r"[ \t|+-]*")


@dataclass(frozen=True, slots=True)
class TracebackPart:
    """Lines of one kind.

    Attributes:
        kind: "own" for frames of the program, "lib" for those of libraries, "" for the error itself.
        text: The lines.
    """

    kind: str
    text: str


def traceback_parts(text: str) -> Sequence[TracebackPart]:
    """Return the parts of a traceback, or of any text: without a frame it is one part."""
    parts: list[TracebackPart] = []
    for kind, line in _lines(text[:LONGEST].rstrip("\n")):
        if parts and parts[-1].kind == kind:
            parts[-1] = TracebackPart(kind, f"{parts[-1].text}\n{line}")
        else:
            # Before each part but the first, the line break that ends the one before it.
            parts.append(TracebackPart(kind, f"\n{line}" if parts else line))
    return parts


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield each line with its kind: a frame has the lines below it that are indented deeper."""
    kind, depth = "", 0
    for line in text.split("\n"):
        margin = _width(line)
        if found := _FRAME.match(line):
            kind, depth = _kind_of(found["path"]), margin
        elif margin <= depth or not kind:
            kind = ""
        yield ("lib" if not kind and line.rstrip().endswith("(most recent call last):") else kind), line


def _width(line: str) -> int:
    found = _MARGIN.match(line)
    return 0 if found is None else found.end()


def _kind_of(path: str) -> str:
    return "lib" if _OF_A_LIBRARY.search(path.replace("\\", "/")) else "own"
