"""When the attempts of a name fail too often: one rule for the overview and for the doctor. Pure.

It judges what schedulers counted in the last ten minutes, so it ends by itself when the attempts succeed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Final

from ..jobs.minutes import Figures

RECENT: Final = timedelta(minutes=10)

MANY_FAILED: Final = 20
"""Attempts of a name that may fail in `RECENT`, unless they are over `MOST_FAILED` of all."""

SHARE_FAILED: Final = 0.1
"""The share of the attempts of a name that may fail in `RECENT` in any case."""

FEW_FAILED: Final = 2
"""Attempts of a name that may fail in `RECENT` in any case: one job fails twice, and succeeds then."""

MOST_FAILED: Final = 0.5
"""The share of the attempts of a name that may fail in `RECENT` if they are few."""


def is_failing(figures: Figures) -> bool:
    """Return whether the attempts of a name fail too often: many of them and a part, or some and most of them."""
    failed = figures.failed_attempts
    attempts = figures.done + failed
    is_many = failed > MANY_FAILED and failed > SHARE_FAILED * attempts
    return is_many or (failed > FEW_FAILED and failed > MOST_FAILED * attempts)


def failing_names(recent: Mapping[str, Figures]) -> Iterator[dict[str, Any]]:
    """Yield the names whose attempts fail too often, that with the most failures first, as values of a judgement."""
    for name, figures in sorted(recent.items(), key=lambda one: -one[1].failed_attempts):
        if is_failing(figures):
            yield {
                "name": name,
                "failed": figures.failed_attempts,
                "attempts": figures.done + figures.failed_attempts,
                "failed_for_good": figures.failed_for_good,
                "seconds": RECENT.total_seconds(),
            }
