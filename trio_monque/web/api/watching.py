"""The route by which a browser learns what it has to read anew."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from starlette.responses import Response

from ...client.monque import server_time_of
from ...store.driver.types import ObjectId
from ..answers import INVALID_ID, RefusedRequestError
from ..live.event_stream_answer import EventStreamAnswer
from .query import single_values
from .route import Call, Pairs, Route
from .schemas import ID
from .table import parameter

OF_WATCH: Final = frozenset({"job"})


def watch_asked(pairs: Pairs) -> Mapping[str, str]:
    """Return which job is looked at, if any."""
    return single_values(pairs, OF_WATCH)


async def watch(call: Call) -> Response:
    """Answer with events, for as long as the caller listens."""
    job_id = call.query.get("job")
    if job_id is not None and (len(job_id) != 24 or not ObjectId.is_valid(job_id)):
        raise RefusedRequestError(400, INVALID_ID)
    surface = call.surface
    wanted = None if job_id is None else str(ObjectId(job_id))
    return EventStreamAnswer(surface.hub, wanted, partial(server_time_of, surface.monque))


WATCH: Final = Route(
    method="GET",
    path="/events",
    operation_id="watchRegions",
    summary="Server-sent events that say what is to be read anew, with the event `stale`",
    act=watch,
    answer="StaleRegions",
    read_query=watch_asked,
    parameters=[parameter("job", ID)],
    is_ours=True,
    statuses=(400, 403, 503),
    media_type="text/event-stream",
)
