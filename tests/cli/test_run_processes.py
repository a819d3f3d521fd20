"""`trio-monque run --processes`: the parent restarts what dies, passes signals on, and leaves no process behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.faults.processes import state_of
from tests.support.programs import uri_of_database
from tests.support.standalone import restricted_server, standalone_server
from tests.support.waiting import wait_until
from trio_monque import Monque, NewJob
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

from .demo_process import environment
from .probe import Probe
from .run_process import RunProcess, run_process, write_program

TWO = ("--processes", "2", "--health", "0", "--heartbeat-interval", "1")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_program(tmp_path)
    return tmp_path


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


def statuses(db: Database, name: str) -> Counter[str]:
    return Counter(job["status"] for job in db["monque_jobs"].find({"name": name}))


def pids(probe: Probe) -> list[int]:
    return [one["pid"] for one in json.loads(probe.ask("/healthz")[1])["processes"] if one["pid"] is not None]


def is_running(pid: int) -> bool:
    with suppress(OSError):
        return state_of(pid) not in "ZX"
    return False


@pytest.mark.full
def test_killed_child_is_replaced_and_its_job_runs_again(folder: Path, uri: str, db: Database) -> None:
    Monque(db).sync.enqueue("wait", "for ever")
    with run_process(folder, "shop:workers", *TWO, "--instance-id", "shop", "--uri", uri) as parent:
        probe = Probe(parent)
        probe.wait_for("/readyz", 200)
        parent.wait_for("waiting")
        seen = json.loads(probe.ask("/healthz")[1])["processes"]
        assert [(one["number"], one["instance"], one["ready"]) for one in seen] == [
            (1, "shop-1", True),
            (2, "shop-2", True),
        ]
        (job,) = db["monque_jobs"].find()
        holder = next(one for one in seen if one["instance"] == job["claimedBy"])
        os.kill(holder["pid"], signal.SIGKILL)
        parent.wait_for_log(f"worker process {holder['number']} was killed by SIGKILL (status 137; ")
        assert probe.ask("/livez")[0] == 200
        probe.wait_for("/readyz", 200)
        parent.wait_for("waiting")
        now = json.loads(probe.ask("/healthz")[1])["processes"]
        assert {one["instance"] for one in now} == {f"shop-{holder['number']}-2", f"shop-{3 - holder['number']}"}
        os.killpg(parent.pid, signal.SIGINT)  # As a terminal does.
        parent.wait_for_log("SIGINT was received: draining 2 worker processes")
        assert "process 1: the scheduler is draining" in probe.wait_for("/readyz", 503)
        assert all(map(is_running, pids(probe)))
        parent.send(signal.SIGTERM)  # Not SIGINT: the same signal again within a tenth of a second is one.
        status, errors = parent.wait_ended()
    assert (status, statuses(db, "wait")) == (0, {"pending": 1})
    assert "cutting short" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("loop", ["trio", pytest.param("asyncio", marks=pytest.mark.full)])
def test_signal_under_load_loses_no_job_and_runs_none_twice(folder: Path, uri: str, db: Database, loop: str) -> None:
    jobs = 6000
    Monque(db).sync.enqueue_many([NewJob("count", number) for number in range(jobs)])
    with run_process(folder, "shop:workers", *TWO, "--loop", loop, "--uri", uri) as parent:
        for _ in range(2):  # The jobs outlast the start of the second one.
            parent.wait_for_log("started on")
        for _ in range(100):
            parent.wait_for("counted")
        parent.send(signal.SIGTERM)
        status, errors = parent.wait_ended()
    counted = Counter(line for line in parent.lines if line.startswith("counted"))
    assert status == 0
    assert set(counted.values()) == {1}
    assert statuses(db, "count") == {"completed": len(counted), "pending": jobs - len(counted)}
    assert 100 <= len(counted) < jobs
    # One that the signal meets at the very end of its start is cancelled: what it has claimed is released, uncounted.
    assert len(re.findall(r"ended \((?:SIGTERM was received|it was cancelled)\)", errors)) == 2


@pytest.mark.full
@pytest.mark.parametrize("is_draining", [pytest.param(False, marks=pytest.mark.full), True])
def test_children_of_a_killed_parent_drain(folder: Path, uri: str, db: Database, is_draining: bool) -> None:
    Monque(db).sync.enqueue("until-file", "go on")
    with run_process(folder, "shop:workers", *TWO, "--uri", uri) as parent:
        probe = Probe(parent)
        probe.wait_for("/readyz", 200)
        parent.wait_for("waiting for a file")
        children = pids(probe)
        if is_draining:
            parent.send(signal.SIGTERM)
            for _ in children:
                parent.wait_for_log("draining: SIGTERM was received")
        parent.send(signal.SIGKILL)
        parent.wait_for_log("the parent process ended; draining this worker process")
        (folder / "go on").touch()
        assert parent.wait_ended()[0] == -signal.SIGKILL  # Reads the output to the end: of the children.
        wait_until(lambda: not any(map(is_running, children)), "no process is left")
    assert statuses(db, "until-file") == {"completed": 1}


@pytest.mark.full
def test_children_end_although_their_parent_was_killed_during_the_start(folder: Path, uri: str) -> None:
    with run_process(folder, "shop:slow_to_open", *TWO, "--uri", uri) as parent:
        probe = Probe(parent)
        parent.wait_for("opening")
        (child,) = pids(probe)
        parent.send(signal.SIGKILL)
        parent.wait_for("closed")
        parent.wait_ended()
        wait_until(lambda: not is_running(child), "no process is left")


@pytest.mark.full
@pytest.mark.parametrize("name", ["swallow", "block"])
def test_child_without_a_parent_ends_although_a_handler_does_not(
    folder: Path, uri: str, db: Database, name: str
) -> None:
    Monque(db).sync.enqueue(name)
    options = (*TWO, "--shutdown-timeout", "0", "--cleanup-timeout", "0", "--uri", uri)
    with run_process(folder, "shop:workers", *options) as parent:
        probe = Probe(parent)
        parent.wait_for("swallowing" if name == "swallow" else "blocking")
        children = pids(probe)
        parent.send(signal.SIGKILL)
        _, errors = parent.wait_ended()
        wait_until(lambda: not any(map(is_running, children)), "no process is left")
    assert "did not end within 12 s of its parent; exiting" in errors


@pytest.mark.full
def test_frozen_child_is_not_live(folder: Path, uri: str) -> None:
    with run_process(folder, "shop:workers", *TWO, "--uri", uri) as parent:
        probe = Probe(parent)
        probe.wait_for("/readyz", 200)
        frozen = pids(probe)[1]
        os.kill(frozen, signal.SIGSTOP)
        try:
            assert re.match(r"process 2: the process has not answered for \d", probe.wait_for("/livez", 503))
        finally:
            os.kill(frozen, signal.SIGCONT)
        probe.wait_for("/livez", 200)
        probe.wait_for("/readyz", 200)
        parent.send(signal.SIGTERM)
        assert parent.wait_ended()[0] == 0


@pytest.mark.full
def test_processes_run_on_a_standalone_server(folder: Path) -> None:
    with standalone_server() as server:
        uri = f"{server}shop?retryWrites=false"
        with run_process(folder, "shop:workers", *TWO, "--uri", uri) as parent:
            Probe(parent).wait_for("/readyz", 200)
            parent.send(signal.SIGTERM)
            assert parent.wait_ended()[0] == 0


def first_start_fails(parent: RunProcess) -> list[str]:
    """Return what was printed to standard error, without the log."""
    status, errors = parent.wait_ended()
    assert status == 2
    assert "worker process 1 ended with status 2 before a scheduler started; not restarting any worker" in errors
    assert "worker process 2" not in errors
    return [line for line in errors.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]


@pytest.mark.full
def test_target_that_cannot_be_imported_ends_the_parent_with_one_traceback(folder: Path) -> None:
    with run_process(folder, "raising:workers", *TWO, "--uri", "mongodb://localhost/shop") as parent:
        lines = first_start_fails(parent)
    files = {Path(line.split('"')[1]).name for line in lines if line.startswith("  File ")}
    assert (files, lines[-1]) == ({"raising.py", "shop.py"}, "ValueError: no pool at postgresql://***@db")


SHOWING = """
import os
import sys

raise ValueError(f"read {sys.stdin.read()!r}, leads its group: {os.getpgrp() == os.getpid()}, -O: {sys.flags.optimize}")
"""


@pytest.mark.full
def test_worker_process_is_out_of_reach_of_the_terminal_and_has_the_options_of_the_interpreter(folder: Path) -> None:
    """A Ctrl-C would reach it twice, and a read would stop it."""
    (folder / "showing.py").write_text(SHOWING, encoding="utf-8")
    command = [sys.executable, "-O", "-m", "trio_monque", "run", "showing:workers", "--uri", "mongodb://localhost/shop"]
    ran = subprocess.run(
        [*command, "--processes", "1"],
        input="typed\n",
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "ValueError: read '', leads its group: True, -O: 1\n" in ran.stderr
    assert ran.returncode == 2


@pytest.mark.full
def test_process_that_ends_before_its_scheduler_starts_is_a_failure_whatever_its_status(folder: Path) -> None:
    with run_process(folder, "ending:workers", *TWO, "--uri", "mongodb://localhost/shop") as parent:
        status, errors = parent.wait_ended()
    assert (status, "worker process 1 ended with status 0 before a scheduler started" in errors) == (2, True)


@pytest.mark.full
def test_server_that_cannot_be_reached_ends_the_parent_with_one_line(folder: Path) -> None:
    (line,) = _of_first_start(folder, "mongodb://me:hunter2@127.0.0.1:1/shop")
    assert "check that the server runs" in line
    assert "hunter2" not in line


@pytest.mark.full
def test_wrong_password_ends_the_parent_with_one_line(folder: Path) -> None:
    with restricted_server() as uri:
        (line,) = _of_first_start(folder, uri.replace("worker:worker", "worker:hunter2"))
    assert "check the user, the password and the rights" in line
    assert "hunter2" not in line


def _of_first_start(folder: Path, uri: str) -> list[str]:
    options = (*TWO, "--start-timeout", "0", "--operation-timeout", "0.5", "--uri", uri)
    with run_process(folder, "shop:workers", *options) as parent:
        return first_start_fails(parent)


@pytest.mark.full
def test_all_processes_share_the_change_stream_of_their_parent(folder: Path, uri: str, db: Database) -> None:
    with run_process(folder, "shop:workers", "--processes", "3", "--health", "0", "--uri", uri) as parent:
        probe = Probe(parent)
        probe.wait_for("/readyz", 200)
        # A cursor between two questions is in no list for a moment. Three streams would be seen in some of these.
        for _ in range(15):
            assert len(seen_streams(db)) == 1
        # Without the stream, a job would wait for the next poll: for a minute.
        Monque(db).sync.enqueue("count", 1)
        parent.wait_for("counted 1")
        parent.send(signal.SIGTERM)
        status, _ = parent.wait_ended()
    assert status == 0


def seen_streams(db: Database) -> list[object]:
    """Once there is any."""
    found: list[object] = []

    def are_seen() -> bool:
        found.extend(streams(db))
        return bool(found)

    wait_until(are_seen, "a stream is open")
    return found


def streams(db: Database) -> list[object]:
    """The change streams on this database that are open."""
    operations = db.client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
    return [one for one in operations if "$changeStream" in str(one) and f"{db.name}.$cmd.aggregate" in str(one)]
