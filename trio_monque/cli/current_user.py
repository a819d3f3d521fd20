"""Who runs the command."""

from __future__ import annotations

import getpass


def user_name() -> str | None:
    """Return the user of the operating system; None for one without a name, as in some containers."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return None
