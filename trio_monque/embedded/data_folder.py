"""The layout of the data folder, `member0`, `member1`, ..., and whether another server uses it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

from ..errors import EmbeddedServerError
from .replica_set import DEFAULT_NAME

RELEASE_SECONDS = 3.0  # what the server of a program that was just killed needs to end, and more
_POLL_SECONDS = 0.05
_NAME_FILE = "replica_set"


def prepare(folder: Path, members: int, check: Callable[[], None]) -> list[Path]:
    """Make the folder of each member, where it is not there already.

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
        # Which of them has the newest data is for the members to say, so none may be left out.
        raise EmbeddedServerError(
            f"the folder {folder} holds a replica set of {stored}, not of {members}: "
            "give another folder, or the same number of members"
        )
    folders = [folder / f"member{index}" for index in range(members)]
    deadline = time.monotonic() + RELEASE_SECONDS
    if not folder.is_dir() or stored == len(list(folder.iterdir())):  # Others' files beside it need their own mode.
        _make_private(folder)
    for member in folders:
        _make_private(member)
        while is_locked(member / "mongod.lock"):
            check()
            if time.monotonic() > deadline:
                raise EmbeddedServerError(in_use(folder))
            time.sleep(_POLL_SECONDS)
    return folders


def _make_private(folder: Path) -> None:
    """Makes the folder, or closes the one that is there, for this user alone: the server in it asks for no password."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise EmbeddedServerError(f"the folder {folder} cannot be made, or not private: {error}") from error


def keep_name(folder: Path, name: str) -> None:
    """Remember what the replica set of a folder is called: its server refuses to serve it under another name.

    Raises:
        EmbeddedServerError: The folder holds a set of another name.
    """
    first = folder / "member0"
    file = first / _NAME_FILE
    # A folder of an earlier release has data and no such file; all of its sets had the default name.
    has_data = any(first.iterdir())
    stored = file.read_text().strip() if file.exists() else DEFAULT_NAME if has_data else name
    if stored != name:
        raise EmbeddedServerError(
            f"the folder {folder} holds the replica set {stored!r}, not {name!r}: "
            f"give replica_set={stored!r}, or another folder"
        )
    file.write_text(name)


def in_use(folder: Path | None) -> str:
    """The message for a folder that another server uses."""
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
        # Asked before the start, although the server finds out itself: by then the log of the one
        # that runs would have been overwritten.
        try:
            with lock.open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False
