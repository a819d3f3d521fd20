"""A program on asyncio ends while its scheduler runs a job: the job is released, and the process ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from typing import Final

import pytest

from tests.asyncio_hosts.scenes import statuses
from tests.support.thoroughly import one_in
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.types import Database

PROGRAM: Final = """
import asyncio, sys
from pymongo import MongoClient
from trio_monque import Workers, open_scheduler

workers = Workers()
began = asyncio.Event()

@workers.register("long")
async def long(job):
    print("began", flush=True)
    began.set()
    await asyncio.sleep(60)

async def main():
    with MongoClient(sys.argv[1], tz_aware=True) as client:
        async with open_scheduler(client[sys.argv[2]], workers, shutdown_timeout=30) as scheduler:
            scheduler.sync_in_loop.enqueue("long")
            await end()

async def end():
    await asyncio.sleep(60)

if sys.argv[3] == "uvloop":
    import uvloop
    run, new_event_loop = uvloop.run, uvloop.new_event_loop
else:
    run, new_event_loop = asyncio.run, asyncio.new_event_loop
"""

ENDS: Final = {
    "the loop is stopped and closed": """
        loop = new_event_loop()
        task = loop.create_task(main())
        loop.create_task(began.wait()).add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        loop.close()
        """,
    "the loop is stopped and never closed": """
        loop = new_event_loop()
        task = loop.create_task(main())
        loop.create_task(began.wait()).add_done_callback(lambda _: loop.stop())
        loop.run_forever()
        """,
    "run ends with the block open": """
        async def other():
            task = asyncio.create_task(main())
            await began.wait()
        run(other())
        """,
    "the body exits": """
        async def end():
            await began.wait()
            sys.exit(3)
        run(main())
        """,
    "SIGINT": """
        run(main())
        """,
}


@pytest.mark.parametrize("loop", one_in(2, ["asyncio", "uvloop"]))
@pytest.mark.parametrize("end", ENDS)
def test_a_program_that_ends_releases_its_jobs(mongod: EmbeddedServer, db: Database, loop: str, end: str) -> None:
    code = PROGRAM + textwrap.dedent(ENDS[end])
    command = [sys.executable, "-c", code, mongod.uri, db.name, loop]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "began\n"
        if end == "SIGINT":
            program.send_signal(signal.SIGINT)
        try:
            _, errors = program.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            program.kill()
            pytest.fail("the process did not end")
    assert statuses(db, "long") == ["pending"], errors
