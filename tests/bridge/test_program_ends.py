"""However a program ends with an open block, the runtime cuts, and the process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.thoroughly import rows_in

pytestmark = pytest.mark.timeout(300)  # On a busy machine, a program needs half a minute to import what it runs.

PROGRAM = """
import asyncio, os, signal, sys, threading
from tests.bridge.support import AppRunner, open_engine
import trio

app = AppRunner({loop!r})
began = threading.Event()

def say(line):
    # In one piece: print writes a line in several, and other threads write theirs in between.
    sys.stdout.write(line + "\\n")
    sys.stdout.flush()

async def handler():
    began.set()
    try:
        await asyncio.sleep(60)
    finally:
        say("handler ended")

async def clean_up():
    say("cut")

async def main(body=lambda: asyncio.sleep(60)):
    async with open_engine(cleanup=clean_up) as engine:
        engine.runtime.post(lambda: engine.nursery.start_soon(engine.app_loop.call, handler))
        while not began.is_set():
            await asyncio.sleep(0.001)
        await body()

async def as_task(go_on=lambda: asyncio.sleep(0)):
    task = asyncio.create_task(main())
    while not began.is_set():
        await asyncio.sleep(0.001)
    await go_on()
    return task

def interrupt_soon(times=1):
    def interrupt():
        began.wait()
        for _ in range(times):
            os.kill(os.getpid(), signal.SIGINT)
            threading.Event().wait(0.02)
    threading.Thread(target=interrupt).start()
"""
ENDS = {
    "loop is stopped and closed": "loop = app.new_loop(); task = loop.run_until_complete(as_task()); loop.close()",
    "loop is stopped and not closed": "loop = app.new_loop(); task = loop.run_until_complete(as_task())",
    "left behind as a task": "app.run(as_task)",
    "sys.exit in the body": "async def leave(): sys.exit(3)\napp.run(lambda: main(leave))",
    "os thread ends": "thread = threading.Thread(target=app.run, args=(as_task,)); thread.start(); thread.join()",
    "Ctrl-C": "interrupt_soon(); app.run(main)",
    "Ctrl-C three times": "interrupt_soon(3); app.run(main)",
    "Ctrl-C on a plain loop": "interrupt_soon(); loop = app.new_loop(); loop.run_until_complete(main())",
}


# uvloop differs where it is left behind, and in how it is interrupted.
ON_UVLOOP = ("loop is stopped and closed", "loop is stopped and not closed", "Ctrl-C on a plain loop")


@pytest.mark.full
@pytest.mark.parametrize(
    ("loop", "end"), rows_in(8, [*(("asyncio", end) for end in ENDS), *(("uvloop", end) for end in ON_UVLOOP)])
)
def test_program_ends_and_the_runtime_is_cut(loop: str, end: str) -> None:
    output, errors = _run(PROGRAM.format(loop=loop) + ENDS[end])
    assert "cut" in output.split("\n"), (output, errors)
    if end in ("left behind as a task", "sys.exit in the body", "os thread ends", "Ctrl-C"):
        assert "handler ended" in output, (output, errors)


@pytest.mark.full
def test_warnings_are_errors_and_debug_mode_is_on() -> None:
    for loop in ("asyncio", "uvloop"):
        program = PROGRAM.format(loop=loop) + (
            "async def nothing(): pass\n"
            "async def patient():\n"
            "    asyncio.get_running_loop().slow_callback_duration = 60  # On a busy machine, all is slow.\n"
            "    await main(nothing)\n"
            "app.run(patient, debug=True)\n"
        )
        output, errors = _run(program + "import gc; gc.collect(); print('end')", "-X", "dev", "-W", "error")
        assert "end" in output.split("\n")
        assert errors == ""


def test_terminated_program_that_handles_the_signal_cuts() -> None:
    program = PROGRAM.format(loop="asyncio") + (
        "async def body():\n"
        "    task = asyncio.current_task()\n"
        "    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)\n"
        "    print('ready', flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "app.run(lambda: main(body))"
    )
    process = _start(program)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=200)
    assert sorted(output.split()) == sorted(["cut", "handler", "ended"])


def _run(program: str, *options: str) -> tuple[str, str]:
    process = _start(program, *options)
    try:
        return process.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # It prints the stacks of its threads.
        pytest.fail("the program does not end: {}{}".format(*process.communicate()))


def _start(program: str, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-X", "faulthandler", *options, "-c", textwrap.dedent(program)],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
