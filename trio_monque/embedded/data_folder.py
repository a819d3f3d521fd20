"""The data folder: makes `member0`, `member1`, ... in it, and checks whether another server uses it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..error_types import EmbeddedServerError
from .replica_set import DEFAULT_NAME

RELEASE_SECONDS = 3.0  # more than the server of a program that was just killed needs to end
_POLL_SECONDS = 0.05
_NAME_FILE = "replica_set"


def prepare(folder: Path, members: int, check: Callable[[], None]) -> list[Path]:
    """Make the folder of each member, if it does not exist.

    Args:
        folder: The folder of all of them.
        members: How many there are.
        check: Called between two looks at a folder in use; what it raises ends the waiting.

    Raises:
        EmbeddedServerError: Another server uses the folder, or it holds a set of another size, or it
            cannot be made.
    """
    stored = len(list(folder.glob("member[0-9]")))
    if stored not in (0, members):
        # Only the members together know which of them has the newest data, so none may be left out.
        raise EmbeddedServerError(
            f"the folder {folder} holds a replica set of {stored}, not of {members}: "
            "give another folder, or the same number of members"
        )
    folders = [folder / f"member{index}" for index in range(members)]
    deadline = time.monotonic() + RELEASE_SECONDS
    if not folder.is_dir() or stored == len(list(folder.iterdir())):
        _make_private(folder)  # But not a folder with other files in it, which may need their permissions.
    for member in folders:
        _make_private(member)
        while is_locked(member / "mongod.lock"):
            check()
            if time.monotonic() > deadline:
                raise EmbeddedServerError(in_use(folder))
            time.sleep(_POLL_SECONDS)
    return folders


def _make_private(folder: Path) -> None:
    """Make the folder private to this user, because the server in it asks for no password. Create it if necessary."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise EmbeddedServerError(f"the folder {folder} cannot be made, or not private: {error}") from error


def keep_name(folder: Path, name: str) -> None:
    """Remember the name of the replica set of a folder: a server refuses to open the data under another name.

    Raises:
        EmbeddedServerError: The folder holds a set of another name.
    """
    first = folder / "member0"
    file = first / _NAME_FILE
    # In a folder of an earlier release this file is missing; all sets had the default name then.
    has_data = any(first.iterdir())
    stored = file.read_text().strip() if file.exists() else DEFAULT_NAME if has_data else name
    if stored != name:
        raise EmbeddedServerError(
            f"the folder {folder} holds the replica set {stored!r}, not {name!r}: "
            f"give replica_set={stored!r}, or another folder"
        )
    file.write_text(name)


def in_use(folder: Path | None) -> str:
    """Return the message for a folder that another server uses."""
    return f"the folder {folder} is in use by another server: end that one, or give another folder"


if sys.platform == "win32":

    def is_locked(lock: Path) -> bool:
        # The server opens the file for itself alone, so it cannot be opened again.
        try:
            with lock.open("r+b"):
                return False
        except FileNotFoundError:
            return False
        except OSError:
            return True

else:
    import fcntl

    def is_locked(lock: Path) -> bool:
        # Checked before the start, although the server checks it too: by then, it would have overwritten the log of the
        # server that runs.
        try:
            with lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False
