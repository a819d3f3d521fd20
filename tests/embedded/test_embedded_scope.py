"""The scope of the server: both forms, both event loops, cancellation, and what is left afterwards."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import anyio.from_thread
import pymongo
import pytest
import trio
import trio.testing

from tests.support.waiting import becomes_readable
from trio_monque.embedded import EmbeddedServer, embedded_mongod, replica_set
from trio_monque.errors import EmbeddedServerError, InvalidOptionError


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the servers of the test put what is temporary; none is taken from the environment."""
    monkeypatch.delenv("MONQUE_MONGODB_URI", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def ping(server: EmbeddedServer) -> None:
    with pymongo.MongoClient[dict[str, object]](server.uri, serverSelectionTimeoutMS=5_000) as client:
        client.admin.command("ping")


def assert_exits(pid: int) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert becomes_readable(descriptor, 10.0), f"process {pid} still runs"
    finally:
        os.close(descriptor)


def assert_empty(folder: Path) -> None:
    assert list(folder.iterdir()) == []


@pytest.mark.full
def test_sync_form_gives_a_set_ready_for_change_streams_and_leaves_nothing(temporary_folder: Path) -> None:
    with embedded_mongod() as server:
        assert server.owned
        assert server.folder is not None
        assert server.folder.is_relative_to(temporary_folder)
        with pymongo.MongoClient[dict[str, object]](server.uri) as client:
            jobs = client["scope"]["jobs"]
            with jobs.watch(max_await_time_ms=10_000) as changes:
                jobs.insert_one({"_id": "first"})
                assert next(changes)["documentKey"] == {"_id": "first"}
        assert any("Waiting for connections" in line for line in server.log_tail(10_000))
    assert_exits(server.members[0].pid)
    assert_empty(temporary_folder)
    assert server.log_tail() == []


@pytest.mark.full
async def test_async_form_works_on_trio(temporary_folder: Path) -> None:
    async with embedded_mongod() as server:
        await trio.to_thread.run_sync(ping, server)
    assert_exits(server.members[0].pid)
    assert_empty(temporary_folder)


@pytest.mark.full
def test_async_form_works_on_asyncio(temporary_folder: Path) -> None:
    async def use() -> int:
        async with embedded_mongod() as server:
            await asyncio.to_thread(ping, server)
            return server.members[0].pid

    assert_exits(asyncio.run(use()))
    assert_empty(temporary_folder)


@pytest.mark.full
async def test_async_form_works_in_virtual_time(autojump_clock: trio.testing.MockClock) -> None:
    async with embedded_mongod() as server:
        await trio.sleep(3_600)
        await trio.to_thread.run_sync(ping, server)
    assert_exits(server.members[0].pid)


@pytest.mark.full
async def test_loop_is_not_blocked_while_the_server_starts_and_ends() -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.sleep(0.001)  # At each turn of the loop it would need a whole core.
            turns += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        async with embedded_mongod():
            turns_at_start, turns = turns, 0
        turns_at_end = turns
        nursery.cancel_scope.cancel()
    assert turns_at_start > 10
    assert turns_at_end > 10


@pytest.fixture
def during_start(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Has a function called when the server listens, and the replica set is not formed yet."""

    def arrange(act: Callable[[], object]) -> None:
        form = replica_set.form

        def act_and_form(name: str, ports: Sequence[int], check: Callable[[], None], deadline: float) -> None:
            act()
            form(name, ports, check, deadline)

        monkeypatch.setattr(replica_set, "form", act_and_form)

    return arrange


@pytest.mark.full
async def test_start_cancelled_on_trio_leaves_nothing(
    temporary_folder: Path, during_start: Callable[[Callable[[], object]], None]
) -> None:
    with trio.CancelScope() as scope:
        during_start(lambda: anyio.from_thread.run_sync(scope.cancel))
        async with embedded_mongod():
            pytest.fail("started in spite of the cancellation")
    assert scope.cancelled_caught
    assert_empty(temporary_folder)


@pytest.mark.full
def test_start_cancelled_on_asyncio_leaves_nothing(
    temporary_folder: Path, during_start: Callable[[Callable[[], object]], None]
) -> None:
    async def start() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        during_start(lambda: loop.call_soon_threadsafe(task.cancel))
        async with embedded_mongod():
            pytest.fail("started in spite of the cancellation")

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(start())
    assert_empty(temporary_folder)


@pytest.mark.full
async def test_cancelled_block_still_ends_the_server(temporary_folder: Path) -> None:
    with trio.CancelScope() as scope:
        async with embedded_mongod() as server:
            scope.cancel()
            await trio.sleep_forever()
    assert_exits(server.members[0].pid)
    assert_empty(temporary_folder)


@pytest.mark.full
def test_server_outlives_the_thread_that_started_it() -> None:
    scope = embedded_mongod()
    servers: list[EmbeddedServer] = []
    starter = threading.Thread(target=lambda: servers.append(scope.__enter__()))
    starter.start()
    starter.join()
    try:
        ping(servers[0])
    finally:
        scope.__exit__(None, None, None)
    assert_exits(servers[0].members[0].pid)


@pytest.mark.full
def test_error_of_the_block_gets_the_log_of_a_server_that_died() -> None:
    def lose_the_server() -> None:
        with embedded_mongod() as server:
            os.kill(server.members[0].pid, signal.SIGKILL)
            assert server.wait_exited(0, timeout=10)
            server.check()

    with pytest.raises(EmbeddedServerError, match="killed by signal 9") as caught:
        lose_the_server()
    assert caught.value.log_tail
    assert "killed by signal 9" in caught.value.__notes__[0]


def test_server_of_the_environment_is_used_and_left_alone(
    mongod: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONQUE_MONGODB_URI", mongod.uri)
    with embedded_mongod() as server:
        assert server.uri == mongod.uri
        assert not server.owned
        assert server.members == ()
    ping(mongod)


def test_server_of_the_environment_that_cannot_be_a_server_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MONQUE_MONGODB_URI", "http://user:secret@127.0.0.1")
    with pytest.raises(EmbeddedServerError, match="MONQUE_MONGODB_URI") as caught, embedded_mongod():
        pytest.fail("entered without a server")
    assert "secret" not in str(caught.value)


@pytest.mark.full
def test_scope_in_use_cannot_be_entered_again() -> None:
    scope = embedded_mongod()
    with scope as server:
        with pytest.raises(EmbeddedServerError, match="already in use"), scope:
            pytest.fail("entered twice")
        ping(server)
    with scope as server:
        ping(server)


@pytest.mark.parametrize("members", [0, 2, 5])
def test_number_of_members_that_makes_no_set_is_refused(members: int) -> None:
    with pytest.raises(InvalidOptionError, match="must be 1 or 3"):
        embedded_mongod(members=members)


@pytest.mark.parametrize(("members", "port"), [(1, 0), (1, 65_536), (3, 65_534)])
def test_port_that_cannot_be_is_refused(members: int, port: int) -> None:
    with pytest.raises(InvalidOptionError, match="must be from 1 to"):
        embedded_mongod(members=members, port=port)
