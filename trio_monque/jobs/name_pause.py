"""A pause of a name, as a value. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from ..error_types import InvalidOptionError
from ..safe_text import plain

LONGEST_BY: Final = 200
"""Characters of who paused a name that are kept."""


@dataclass(frozen=True, slots=True)
class NamePause:
    """A name that is paused: no instance of the fleet claims its jobs.

    Attributes:
        name: The name.
        since: When it was paused, UTC; None if that is not known.
        by: Who paused it; None if that is not known.
    """

    name: str
    since: datetime | None = None
    by: str | None = None

    @property
    def facts(self) -> Mapping[str, Any]:
        """When it was paused, and by whom."""
        return {"since": self.since, "by": self.by}


def checked_by(by: object) -> str | None:
    """Return who pauses, as it can be stored. Raises InvalidOptionError unless it is a text or None."""
    if by is not None and not isinstance(by, str):
        raise InvalidOptionError("by", by, "must be a string, such as the name of a user, or None")
    return plain(by, LONGEST_BY) if by else None
