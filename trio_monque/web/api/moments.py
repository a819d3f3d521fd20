"""Moments in requests: one spelling of ISO 8601, in UTC, as the original has it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

_MOMENT: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z", re.ASCII)


def moment_in(text: object) -> datetime | None:
    """Return the moment; None if the text is not one. Fractions are cut to milliseconds, as MongoDB stores them."""
    found = _MOMENT.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    whole, fraction = found.groups()
    try:
        moment = datetime.strptime(whole, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    except ValueError:  # The 30th of February.
        return None
    return moment.replace(microsecond=1000 * int((fraction or "0")[:3].ljust(3, "0")))
