"""The answer to a viewer: server-sent events that say which regions are stale. Nothing of a job is in them.

The browser reads what is stale with ordinary requests. So permission and redaction are in one place, and a connection
that breaks loses nothing.
"""

from __future__ import annotations

import json
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...store.jobs.job_json import iso
from ..answers import RefusedRequestError, refused
from .hub import Hub, Viewer

HEADERS: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # Otherwise nginx keeps events until it has some kilobytes.
]


@dataclass(frozen=True, slots=True)
class Pace:
    """How often, and for how long, one stream says something. All in seconds.

    Attributes:
        between: From one message to the next, at least.
        between_of_own: The same for the page of one job or one action.
        comment: After this time without a message, a comment shows whether the peer is still there.
        send: A send that takes longer ends the stream: the peer does not read, and would hold its task for ever.
        life, spread: The stream ends after about this time, and the browser opens another: then it is asked again
            whether the viewer may read.
    """

    between: float = 1.0
    between_of_own: float = 0.25
    comment: float = 15.0
    send: float = 10.0
    life: float = 900.0
    spread: float = 180.0


PACE: Final = Pace()


class EventStreamAnswer(Response):
    """An answer that goes on until the viewer leaves, or its life is over.

    Args:
        hub: Of the application.
        own: Regions that the viewer looks at beside those of all.
        now: Returns the server's time, in a thread.
        pace: How often it says something; None for PACE.
    """

    def __init__(
        self, hub: Hub, own: frozenset[str], now: Callable[[], Awaitable[datetime]], pace: Pace | None = None
    ) -> None:
        super().__init__()
        self._hub = hub
        self._own = own
        self._now = now
        self._pace = pace or PACE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with self._hub.viewing(self._own) as viewer:
                await self._serve(viewer, receive, send)
        except RefusedRequestError as error:
            await refused(error)(scope, receive, send)

    async def _serve(self, viewer: Viewer, receive: Receive, send: Send) -> None:
        life = self._pace.life + random.uniform(-1, 1) * self._pace.spread
        with anyio.move_on_after(life):
            async with anyio.create_task_group() as tasks:

                async def leave_with_peer() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    tasks.cancel_scope.cancel()

                tasks.start_soon(leave_with_peer)
                tasks.start_soon(self._hub.take_turns)
                await self._send_all(viewer, send)
                tasks.cancel_scope.cancel()
        # The last piece: so the server knows that the answer is whole. A peer that does not read gets none.
        with anyio.move_on_after(self._pace.send):
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_all(self, viewer: Viewer, send: Send) -> None:
        """Send until a send takes too long, or the peer is gone."""
        pace = self._pace
        between = pace.between_of_own if viewer.own else pace.between
        try:
            with anyio.fail_after(pace.send):
                await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
            while True:
                message = b": still here\n\n"
                with anyio.move_on_after(pace.comment):
                    await viewer.wait()
                if viewer.stale:
                    data = {"regions": viewer.take(), "at": iso(await self._now())}
                    message = b"event: stale\ndata: " + json.dumps(data).encode() + b"\n\n"
                with anyio.fail_after(pace.send):
                    await send({"type": "http.response.body", "body": message, "more_body": True})
                await anyio.sleep(between)
        except (TimeoutError, OSError):
            return
