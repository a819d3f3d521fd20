"""What the route of the minutes does: the figures of each minute, and those of each name over the whole span."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio.to_thread

from ...error_types import InvalidOptionError
from ...jobs.minutes import Figures, Histogram, Minute, totals_by_name
from ...store.jobs.job_json import iso
from ..answers import INVALID_INPUT, RefusedRequestError
from .job_shapes import plain_number
from .moments import moment_in
from .query import single_values
from .route import Call, Pairs

OF_MINUTES = frozenset({"from", "to", "name"})
SHARES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def minutes_asked(pairs: Pairs) -> Mapping[str, Any]:
    """Return the span and the name. Raise RefusedRequestError (400) for a query that has another shape."""
    given: dict[str, Any] = dict(single_values(pairs, OF_MINUTES))
    for key in ("from", "to"):
        if key in given and (moment := moment_in(given[key])) is not None:
            given[key] = moment
        elif key in given:
            raise RefusedRequestError(400, INVALID_INPUT)
    return given


async def minutes(call: Call) -> dict[str, Any]:
    """Return the figures of each minute, and of each name."""
    asked = call.query
    try:
        found = await call.surface.monque.get_minutes(since=asked.get("from"), until=asked.get("to"))
    except InvalidOptionError:  # The span ends before it begins, or is longer than minutes are kept.
        raise RefusedRequestError(400, INVALID_INPUT) from None
    # In a thread: percentiles of a day, or of a hundred names, take many milliseconds.
    return await anyio.to_thread.run_sync(_answer, found, asked.get("name"))


def _answer(found: Sequence[Minute], name: str | None) -> dict[str, Any]:
    names = {one: figures for one, figures in totals_by_name(found).items() if name in (None, one)}
    return {
        "minutes": [
            {
                "at": iso(minute.at),
                "slots": minute.slots,
                **_figures_as_json(minute.in_all if name is None else minute.by_name.get(name, Figures())),
            }
            for minute in found
        ],
        "names": [{"name": one, **_figures_as_json(names[one])} for one in sorted(names)],
    }


def _figures_as_json(figures: Figures) -> dict[str, Any]:
    return {
        "done": figures.done,
        "failedAttempts": figures.failed_attempts,
        "failedForGood": figures.failed_for_good,
        "rescued": figures.rescued,
        "run": _times_as_json(figures.run),
        "wait": _times_as_json(figures.wait),
    }


def _times_as_json(times: Histogram) -> dict[str, Any]:
    """Return the mean and percentiles in milliseconds."""
    found = {"mean": times.mean, **{key: times.percentile(share) for key, share in SHARES.items()}}
    return {key: None if one is None else plain_number(round(1000 * one, 3)) for key, one in found.items()}
