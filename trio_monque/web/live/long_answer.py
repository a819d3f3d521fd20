"""An answer that is sent before the work is done.

The work is done in the task of the request, which goes on after its answer was sent, as with the background tasks of
Starlette. So the server owns it: it goes on when the client leaves. When the server shuts down, it waits for it, or
cancels it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.responses import Response
from starlette.types import Receive, Scope, Send


class LongAnswer(Response):
    """The answer that an action has begun, and then the action.

    Args:
        answer: What is sent.
        work: The action. It does not raise, unless it is cancelled.

    Attributes:
        answer: What is sent. It can be changed until then: a page leads to another page.
    """

    def __init__(self, answer: Response, work: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self.answer = answer
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.answer(scope, receive, send)
        finally:
            await self._work()  # Also if the client has left before it was answered.
