"""What becomes of the server when the program that started it is killed, interrupted, or forks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pymongo
import pytest

from tests.support.waiting import becomes_readable
from trio_monque.embedded import embedded_mongod
from trio_monque.embedded.supervised_servers import kill_if_serving

_REPOSITORY = Path(__file__).parents[2]

_START = """
import json, os, signal, sys
import pymongo
from trio_monque.embedded import embedded_mongod

def report(**facts):
    os.write(1, json.dumps(facts).encode() + b"\\n")
"""

_SIMPLE = """
with embedded_mongod() as server:
    report(pid=server.members[0].pid)
    signal.pause()
"""

_INTERRUPTIBLE = """
with embedded_mongod() as server:
    try:
        report(pid=server.members[0].pid)
        signal.pause()
    except KeyboardInterrupt:
        with pymongo.MongoClient(server.uri) as client:
            report(after_interrupt=client.admin.command("ping")["ok"])
        sys.stdin.readline()
"""

_FORKING = """
with embedded_mongod() as server:
    child = os.fork()
    if child == 0:
        report(child=os.getpid(), pid=server.members[0].pid)
    signal.pause()
"""

_LEAVING_FORK = """
with embedded_mongod() as server:
    if os.fork() == 0:
        raise SystemExit  # leaves the block, in the child
    os.wait()
    with pymongo.MongoClient(server.uri) as client:
        report(after_child=client.admin.command("ping")["ok"])
"""


class Parent:
    """A program of its own that runs an embedded server, in a process group of its own."""

    def __init__(self, program: str, tmp_path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(_REPOSITORY), "TMPDIR": str(tmp_path)}
        environment.pop("MONQUE_MONGODB_URI", None)
        self.process = subprocess.Popen(
            [sys.executable, "-c", _START + program],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )

    def next_report(self) -> dict[str, int]:
        assert self.process.stdout is not None
        report: dict[str, int] = json.loads(self.process.stdout.readline())
        return report


@contextmanager
def parent_of(program: str, tmp_path: Path) -> Iterator[Parent]:
    parent = Parent(program, tmp_path)
    with parent.process:
        try:
            yield parent
        finally:
            parent.process.kill()


@contextmanager
def watched(pid: int) -> Iterator[int]:
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def has_exited(descriptor: int, seconds: float = 10) -> bool:
    return becomes_readable(descriptor, seconds)


def supervisor_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.full
def test_killed_parent_leaves_no_server_and_no_folder(tmp_path: Path) -> None:
    with parent_of(_SIMPLE, tmp_path) as parent:
        pid = parent.next_report()["pid"]
        with watched(pid) as server, watched(supervisor_of(pid)) as supervisor:
            parent.process.kill()
            assert has_exited(server)
            assert has_exited(supervisor)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_parent_killed_after_forking_leaves_no_server(tmp_path: Path) -> None:
    with parent_of(_FORKING, tmp_path) as parent:
        report = parent.next_report()
        with watched(report["pid"]) as server, watched(report["child"]) as child:
            try:
                parent.process.kill()
                assert has_exited(server)
                assert not has_exited(child, 0)
            finally:
                signal.pidfd_send_signal(child, signal.SIGKILL)


@pytest.mark.full
def test_forked_child_that_leaves_the_block_does_not_end_the_server(tmp_path: Path) -> None:
    with parent_of(_LEAVING_FORK, tmp_path) as parent:
        assert parent.next_report() == {"after_child": 1.0}
        assert parent.process.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_interrupt_from_the_terminal_does_not_reach_the_server(tmp_path: Path) -> None:
    with parent_of(_INTERRUPTIBLE, tmp_path) as parent:
        with watched(parent.next_report()["pid"]) as server:
            os.killpg(parent.process.pid, signal.SIGINT)
            assert parent.next_report() == {"after_interrupt": 1.0}
            assert not has_exited(server, 0)
            assert parent.process.stdin is not None
            parent.process.stdin.write(b"\n")
            parent.process.stdin.flush()
            assert has_exited(server)
        assert parent.process.wait(30) == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_server_of_a_killed_supervisor_is_ended_with_the_scope(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONQUE_MONGODB_URI", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with embedded_mongod() as mongod:
        pid = mongod.members[0].pid
        with watched(supervisor_of(pid)) as supervisor:
            signal.pidfd_send_signal(supervisor, signal.SIGKILL)
            assert has_exited(supervisor)
            with pymongo.MongoClient[dict[str, object]](mongod.uri) as client:
                client.admin.command("ping")
    with suppress(ProcessLookupError), watched(pid) as server:
        assert has_exited(server)
    assert list(tmp_path.iterdir()) == []


def test_process_that_has_got_the_id_of_a_server_that_ended_is_not_killed(tmp_path: Path) -> None:
    """The lock file of the data says whose it is."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as another:
        for owner in ("", str(another.pid + 1)):
            (tmp_path / "mongod.lock").write_text(owner)
            kill_if_serving(another.pid, tmp_path)
        another.communicate(b"\n")
    assert another.returncode == 0
