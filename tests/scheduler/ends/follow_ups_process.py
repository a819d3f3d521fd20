"""A process that packs and ships one job, and kills itself before one of the writes from the end of the first one on.

    python -m tests.scheduler.ends.follow_ups_process URI DATABASE WRITE

WRITE is the number of that write; 0 for none. Then it enqueues nothing, and ends when all that is there is shipped.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import trio
from pymongo import MongoClient, monitoring

from tests.support.interception import is_settlement
from trio_monque import NewJob, RunningJob, Workers, open_scheduler


class Killer(monitoring.CommandListener):
    """Kills this process before a write is sent."""

    def __init__(self, write: int) -> None:
        self.write = write
        self.count = 0

    def started(self, event: monitoring.CommandStartedEvent) -> None:
        on_jobs = event.command.get(event.command_name) == "monque_jobs"
        if not on_jobs or event.command_name not in ("insert", "update"):
            return
        self.count += bool(self.count) or is_settlement(event.command_name, event.command)
        if self.count == self.write and self.write:
            os.kill(os.getpid(), signal.SIGKILL)

    def succeeded(self, event: monitoring.CommandSucceededEvent) -> None: ...

    def failed(self, event: monitoring.CommandFailedEvent) -> None: ...


async def main(uri: str, database: str, write: int) -> None:
    workers, shipped = Workers(), trio.Event()

    @workers.register("pack", store_result=True, then=lambda job: NewJob("ship", job.result))
    async def pack(job: RunningJob[Any]) -> str:
        return "parcel"

    @workers.register("ship")
    async def ship(job: RunningJob[Any]) -> None:
        shipped.set()

    with MongoClient[Any](uri, event_listeners=[Killer(write)]) as client:
        async with open_scheduler(client[database], workers, heartbeat_interval=1.5) as scheduler:
            if write:
                await scheduler.enqueue("pack")
            elif client[database]["monque_jobs"].count_documents({"name": "ship", "status": "completed"}):
                return
            await shipped.wait()


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
