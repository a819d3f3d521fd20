"""Sends writes by halves, after all of them together were not answered in time.

A holder that was killed inside a transaction, between the end of its claim and the commit, leaves that document locked
on the server, for up to a minute. A statement that meets it waits, and does nothing for the other documents either. So
the writes are halved until those that fail are alone. A later call takes these.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from ...error_types import MonqueConnectionError

T = TypeVar("T")
R = TypeVar("R")

TIME_OF_A_PART: Final = 0.25
"""Seconds that one part may take: the `operation_timeout` of the handle that `send` uses."""

LONGEST_SEARCH: Final = 5.0
"""Seconds of all parts that fail while none succeeds."""


def sent_by_halves(writes: Sequence[T], send: Callable[[Sequence[T]], R]) -> Iterator[tuple[Sequence[T], R]]:
    """Send what can be sent; yield each part that was answered, with the answer.

    `send` is called again with writes that may have been applied before, and must recognize those.

    Raises:
        MonqueConnectionError: Sending again would not help.
    """
    parts = [writes]
    is_any_answered = False
    began = time.monotonic()
    while parts and (is_any_answered or time.monotonic() - began < LONGEST_SEARCH):
        part = parts.pop()
        try:
            answer = send(part)
        except MonqueConnectionError as error:
            if not error.transient:
                raise
            # Every other one, so that documents that are locked side by side, as those of one holder may be, come into
            # different parts. With a front and a back half, eight of them at the front used up the whole search.
            parts += [one for one in (part[1::2], part[::2]) if 0 < len(one) < len(part)]
        else:
            is_any_answered = True
            yield part, answer
