"""A worker that records when it ran."""

from __future__ import annotations

from typing import Any

import trio

from trio_monque import RunningJob, Workers


class Log:
    """A worker that writes down when it ran, and sleeps a while then."""

    def __init__(self, sleeps: float = 0.0) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.workers = Workers()
        self.workers.register("job", self.handler, concurrency=200)
        self._sleeps = sleeps

    async def handler(self, job: RunningJob[Any]) -> None:
        self.starts.append(trio.current_time())
        await trio.sleep(self._sleeps)
        self.ends.append(trio.current_time())
