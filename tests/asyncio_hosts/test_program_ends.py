"""However a program with an open scheduler ends, its process ends, and the job is given back."""

from __future__ import annotations

import signal

import pytest

from tests.asyncio_hosts.conftest import UVLOOP
from tests.asyncio_hosts.programs import running
from tests.asyncio_hosts.scenes import only_document, statuses
from tests.support.thoroughly import one_in
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

pytestmark = pytest.mark.timeout(300)

LONG_JOB = """
began = threading.Event()

@workers.register("long")
async def long(job):
    say("began")
    # When the handler waits: a Ctrl-C that hits the handler itself is a failed attempt.
    asyncio.get_running_loop().call_soon(began.set)
    try:
        await asyncio.sleep(60)
    finally:
        say("cancelled", job.cancel_reason)
        with job.cleanup(10):
            await job.save("clean")
            say("saved")

async def main(body=lambda: asyncio.sleep(60)):
    async with open_scheduler(db, workers, shutdown_timeout=30, cleanup_timeout=10):
        await asyncio.to_thread(began.wait, 100)
        say("ready")
        await body()

async def as_task():
    task = asyncio.create_task(main())
    while not began.is_set():
        await asyncio.sleep(0.001)
    return task

def interrupt(times=1):
    for _ in range(times):
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(0.02)
"""

ENDS = {
    "left behind as a task": "run(as_task)",
    "loop is stopped and closed": "loop = new_loop(); task = loop.run_until_complete(as_task()); loop.close()",
    "loop is stopped and not closed": "loop = new_loop(); task = loop.run_until_complete(as_task())",
    "sys.exit in the body": "async def leave(): sys.exit(3)\nrun(lambda: main(leave))",
    "thread of the loop ends": "thread = threading.Thread(target=run, args=(as_task,)); thread.start(); thread.join()",
    "Ctrl-C in the body": "async def leave(): interrupt()\nrun(lambda: main(leave))",
    "Ctrl-C twice": "threading.Thread(target=lambda: began.wait() and interrupt(2)).start(); run(main)",
    "Ctrl-C on a plain loop": (
        "threading.Thread(target=lambda: began.wait() and interrupt()).start()\n"
        "loop = new_loop(); loop.run_until_complete(main())"
    ),
    "block is entered and forgotten": (
        "async def enter():\n"
        "    opened = open_scheduler(db, workers)\n"
        "    await opened.__aenter__()\n"
        "    await asyncio.to_thread(began.wait, 100)\n"
        "run(enter)"
    ),
}
WITHOUT_A_LOOP = ("loop is stopped and closed", "loop is stopped and not closed", "Ctrl-C on a plain loop")
"""There the handler gets no word of the end."""


@pytest.mark.full
@pytest.mark.parametrize(("end", "loop"), one_in(6, list(ENDS), ["asyncio", "uvloop"]))
def test_job_is_given_back_and_the_process_ends(mongod: EmbeddedServer, db: Database, end: str, loop: str) -> None:
    Monque(db).sync.enqueue("long")
    with running(LONG_JOB + ENDS[end], mongod.uri, db.name, loop) as process:
        process.wait_ended()
        assert statuses(db, "long") == ["pending"], process.report()
        job = only_document(db)
        # The second Ctrl-C may hit the handler while it cleans up. Then that attempt has failed.
        is_hit = end == "Ctrl-C twice" and job.get("failReason") == "KeyboardInterrupt"
        assert is_hit or job.get("failCount", 0) == 0, process.report()
        if end not in WITHOUT_A_LOOP and not is_hit:
            assert "cancelled shutdown" in process.lines, process.report()
    assert db["monque_scheduler_instances"].count_documents({}) == 0


INTERRUPTED_HANDLER = """
@workers.register("long")
async def long(job):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.sleep(60))
        await asyncio.sleep(0.01)
        say("began")
        while True:  # It keeps the loop: Python raises the KeyboardInterrupt in here.
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.1)

@workers.register("other")
async def other(job):
    try:
        await asyncio.sleep(60)
    finally:
        say("other", job.cancel_reason)

async def main():
    async with open_scheduler(db, workers, shutdown_timeout=30):
        await asyncio.sleep(60)

signal.signal(signal.SIGINT, signal.default_int_handler)
loop = new_loop()
try:
    loop.run_until_complete(main())
except KeyboardInterrupt:
    say("interrupted")
"""


@pytest.mark.full
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_ctrl_c_in_a_handler_ends_the_program_and_gives_the_others_back(
    mongod: EmbeddedServer, db: Database, loop: str
) -> None:
    Monque(db).sync.enqueue("other")
    Monque(db).sync.enqueue("long")
    with running(INTERRUPTED_HANDLER, mongod.uri, db.name, loop) as process:
        process.wait_ended()
        assert "interrupted" in process.lines, process.report()
        assert statuses(db, "other") == ["pending"], process.report()


SIGNALLED = """
async def body():
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    say("handles")
    await asyncio.sleep(60)

try:
    run(lambda: main(body))
except asyncio.CancelledError:
    say("left")
"""


@pytest.mark.full
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("times", [1, 3])
def test_terminated_program_that_cancels_its_main_task(
    mongod: EmbeddedServer, db: Database, loop: str, times: int
) -> None:
    Monque(db).sync.enqueue("long")
    with running(LONG_JOB + SIGNALLED, mongod.uri, db.name, loop) as process:
        process.wait_for("handles")
        for _ in range(times):
            process.send_signal(signal.SIGTERM)
        process.wait_ended()
        assert process.lines[-3:] == ["cancelled shutdown", "saved", "left"], process.report()
    assert statuses(db, "long") == ["pending"]
    assert only_document(db)["saved"] == "clean"


STRICT = """
@workers.register("a", max_attempts=2)
async def a(job):
    await job.save(job.attempt)
    with job.cleanup(1):
        await asyncio.sleep(0)
    if job.attempt == 1:
        raise ValueError("once")

@workers.register("slow", timeout=0.5, max_attempts=1)
async def slow(job):
    async with asyncio.timeout(60):
        await asyncio.sleep(60)

@workers.register("plain")
def plain(job):
    job.from_thread(asyncio.sleep, 0)
    job.scheduler.sync.enqueue("a")

heard = []

async def hear(event):
    await asyncio.sleep(0)
    heard.append(event)

async def main():
    loop = asyncio.get_running_loop()
    loop.slow_callback_duration = 60  # On a busy machine, all is slow.
    if hasattr(asyncio, "eager_task_factory"):
        loop.set_task_factory(asyncio.eager_task_factory)
    listeners = {JobCompleted: hear, JobFailed: hear}
    with client:
        async with open_scheduler(db, workers, listeners=listeners, base_retry_interval=0.01) as scheduler:
            for name in ("a", "slow", "plain"):
                await scheduler.enqueue(name)
            while len(heard) < 6:
                await asyncio.sleep(0.01)
        async with open_scheduler(db, workers) as scheduler:
            await scheduler.enqueue("slow")
    gc.collect()

import logging
logging.getLogger("trio_monque").setLevel(logging.CRITICAL)
run(main, debug=True)
gc.collect()
say("end")
"""


@pytest.mark.full
@pytest.mark.parametrize("loop", ["asyncio", UVLOOP])
def test_warnings_are_errors_and_debug_mode_is_on(mongod: EmbeddedServer, db: Database, loop: str) -> None:
    with running(STRICT, mongod.uri, db.name, loop, "-X", "dev", "-W", "error") as process:
        process.wait_ended()
        assert process.lines == ["end"], process.report()
        assert process.error_lines == []
