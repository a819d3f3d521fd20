"""The input of the demo: finds files, and measures one."""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path

# Installed packages do not belong to the standard library.
_NOT_OURS = frozenset({"site-packages", "dist-packages"})


@dataclass(frozen=True, slots=True)
class Content:
    """What a job stores about a file."""

    digest: str
    lines: int
    bytes: int


def standard_library() -> Path:
    """Return the folder of the standard library of this interpreter."""
    return Path(sysconfig.get_path("stdlib"))


def find_files(folder: Path, pattern: str, most: int | None) -> Sequence[Path]:
    """Return the readable files below the folder, always in the same order."""
    return list(islice(_walk(folder, pattern), most))


def _walk(folder: Path, pattern: str) -> Iterator[Path]:
    for parent, subfolders, names in os.walk(folder):
        subfolders[:] = sorted(set(subfolders) - _NOT_OURS)
        for name in sorted(names):
            path = Path(parent, name)
            if fnmatch(name, pattern) and path.is_file() and os.access(path, os.R_OK) and _can_be_stored(path):
                yield path


def _can_be_stored(path: Path) -> bool:
    # A name that is not in the encoding of the file system has surrogates, which UTF-8, and so BSON, cannot store.
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def measure(path: Path) -> Content:
    """Read the file; raise OSError if that fails."""
    content = path.read_bytes()
    return Content(hashlib.sha256(content).hexdigest(), content.count(b"\n"), len(content))
