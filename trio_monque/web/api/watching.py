"""The route by which a browser learns what it has to read anew."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from starlette.responses import Response

from ...client.monque import server_time_of
from ...store.driver.types import ObjectId
from ...store.jobs.stale_regions import region_of
from ..answers import INVALID_ID, RefusedRequestError
from ..live.background_actions import region_of_action
from ..live.event_stream_answer import EventStreamAnswer
from .query import single_values
from .route import Call, Pairs, Route
from .schemas import ID
from .table import parameter

OF_WATCH: Final = frozenset({"action", "job"})


def watch_asked(pairs: Pairs) -> Mapping[str, str]:
    """Return which job and which action are looked at, if any."""
    return single_values(pairs, OF_WATCH)


async def watch(call: Call) -> Response:
    """Answer with events, for as long as the caller listens."""
    own = set[str]()
    for key, region in (("job", region_of), ("action", region_of_action)):
        if (given := call.query.get(key)) is None:
            continue
        if len(given) != 24 or not ObjectId.is_valid(given):
            raise RefusedRequestError(400, INVALID_ID)
        own.add(region(given.lower()))
    surface = call.surface
    return EventStreamAnswer(surface.hub, frozenset(own), partial(server_time_of, surface.monque))


WATCH: Final = Route(
    method="GET",
    path="/events",
    operation_id="watchRegions",
    summary="Server-sent events, named `stale`, that say what to read again",
    act=watch,
    answer="StaleRegions",
    read_query=watch_asked,
    parameters=[parameter("job", ID), parameter("action", ID)],
    is_ours=True,
    statuses=(400, 403, 503),
    media_type="text/event-stream",
)
