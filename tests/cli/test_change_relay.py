"""One change stream for several worker processes: what the parent follows, and what its children learn."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from multiprocessing import Pipe

import pytest
import trio
import trio.testing
from pymongo import WriteConcern

from tests.support.programs import uri_of_database
from tests.support.standalone import standalone_server
from trio_monque import Monque, NewJob
from trio_monque.cli.connection_options import Connection
from trio_monque.cli.run import change_relay
from trio_monque.cli.run.change_relay import MOST_UNREAD, ChangeRelay, StreamOfParent
from trio_monque.cli.run.relayed_changes import RelayedChanges
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.options_and_defaults import scheduler_config
from trio_monque.scheduler.changes import OpenChanges
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs.change_stream import ANYTHING, ChangeKind, JobChange, NoStreamError


class Child:
    """What a worker process has of its parent's changes."""

    def __init__(self) -> None:
        its_end, self.parents_end = Pipe(duplex=False)
        with its_end:
            self.changes = RelayedChanges(os.dup(its_end.fileno()), 30.0)

    async def open(self) -> None:
        await trio.to_thread.run_sync(self.changes.open)

    async def read(self, wait: float = math.inf) -> Sequence[JobChange]:
        return await trio.to_thread.run_sync(self.changes.read, wait)


def stream_of(uri: str) -> StreamOfParent:
    return StreamOfParent(Connection(uri, None), scheduler_config({}))


@pytest.fixture
def uri(mongod: EmbeddedServer, db: Database) -> str:
    return uri_of_database(mongod.uri, db.name)


@pytest.fixture(autouse=True)
def has_written(db: Database) -> None:
    """Every worker process writes before the stream is opened: see `test_job_stream.py`."""
    db["anything"].with_options(write_concern=WriteConcern("majority")).insert_one({})


@pytest.fixture(autouse=True)
def leaves_no_descriptor_open() -> Iterator[None]:
    """A worker process keeps its end of the pipe as long as it lives; other tests count descriptors."""
    yield
    gc.collect()


@asynccontextmanager
async def relaying(stream: StreamOfParent, *children: Child) -> AsyncIterator[tuple[ChangeRelay, trio.Nursery]]:
    relay = ChangeRelay(stream)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        for child in children:
            nursery.start_soon(relay.serve, child.parents_end)
        with trio.fail_after(60):
            yield relay, nursery
        nursery.cancel_scope.cancel()


async def test_each_child_learns_what_has_changed_since_it_opened_its_changes(uri: str, db: Database) -> None:
    children = [Child(), Child()]
    async with relaying(stream_of(uri), *children):
        for child in children:
            await child.open()
        job = await Monque(db).enqueue("greet")
        for child in children:
            (change,) = await child.read()
            assert (change.kind, change.job_id, change.name, change.is_new) == (ChangeKind.JOB, job.id, "greet", True)
            assert child.changes.is_open


@pytest.mark.full
async def test_child_that_comes_later_learns_that_the_stream_is_open(uri: str, db: Database) -> None:
    first, second = Child(), Child()
    async with relaying(stream_of(uri), first) as (relay, nursery):
        await first.open()
        nursery.start_soon(relay.serve, second.parents_end)
        await second.open()
        await Monque(db).enqueue("greet")
        assert [change.name for change in await second.read()] == ["greet"]


@pytest.mark.full
async def test_for_a_child_that_reads_too_slowly_one_change_stands_for_all(uri: str, db: Database) -> None:
    slow, fast = Child(), Child()
    async with relaying(stream_of(uri), slow, fast) as (relay, _):
        for child in (slow, fast):
            await child.open()
        many = [JobChange(ChangeKind.JOB, name="x" * 1000)] * 300  # They fill the pipe.
        read, rounds = 0, 3 * MOST_UNREAD // (2 * len(many))
        for number in range(rounds):
            relay.send_changes(many)
            relay.send_changes(many)
            while read < 2 * len(many) * (number + 1):
                changes = await fast.read()
                assert ANYTHING not in changes
                read += len(changes)
        await Monque(db).enqueue("greet")
        found = list[JobChange]()
        while not any(change.name == "greet" for change in found):
            found += await slow.read()
        assert ANYTHING in found
        assert len(found) <= 2 * MOST_UNREAD
        assert slow.changes.is_open


@pytest.mark.full
async def test_child_is_sent_little_of_many_new_jobs(uri: str, db: Database) -> None:
    child = Child()
    async with relaying(stream_of(uri), child):
        await child.open()
        await Monque(db).enqueue_many([NewJob(name="mail")] * 1_000)
        await Monque(db).enqueue("last")
        found = list[JobChange]()
        while not any(change.name == "last" for change in found):
            found += await child.read()
        assert 2 <= len(found) < 500


@pytest.mark.full
async def test_child_learns_that_the_server_has_no_stream() -> None:
    child = Child()
    with standalone_server() as server:
        async with relaying(stream_of(uri_of_database(server, "shop")), child):
            with pytest.raises(NoStreamError):
                await child.open()


class StreamOfSteps(StreamOfParent):
    """One that opens, or fails to open, step by step."""

    def __init__(self, uri: str, *steps: Exception | None) -> None:
        super().__init__(Connection(uri, None), scheduler_config({}))
        self._steps = iter(steps)

    def open(self) -> OpenChanges:
        if (error := next(self._steps)) is not None:
            raise error
        return Broken()


class Broken:
    """Changes that fail at once."""

    is_open = True

    def read(self, wait: float) -> Sequence[JobChange]:
        raise MonqueConnectionError("gone", transient=True)

    def close(self) -> None: ...


async def states_of(child: Child, number: int) -> list[str]:
    """What opening its changes, again and again, comes to."""
    found = list[str]()
    while len(found) < number:
        try:
            await child.open()
            found.append("open")
            await child.read()
        except MonqueConnectionError as error:
            found.append(str(error))
    return found


async def test_right_that_was_lost_may_come_back_and_a_bug_ends_nothing(
    uri: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(change_relay, "FIRST_DELAY", 0.0)
    child = Child()
    lost = NoStreamError("no right", is_of_user=True)
    stream = StreamOfSteps(uri, None, lost, ValueError("a bug"), None, NoStreamError("standalone", is_of_user=False))
    async with relaying(stream, child):
        assert await states_of(child, 6) == ["open", "gone", "no right", "ValueError: a bug", "open", "gone"]
        assert await states_of(child, 1) == ["standalone"]
    assert [record.levelname for record in caplog.records if "of the parent failed" in record.message] == ["ERROR"]


@pytest.mark.full
async def test_user_without_the_right_has_no_stream(uri: str) -> None:
    child = Child()
    relay = ChangeRelay(StreamOfSteps(uri, NoStreamError("no right", is_of_user=True)))
    await relay.run()  # It returns.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.serve, child.parents_end)
        assert await states_of(child, 1) == ["no right"]
        nursery.cancel_scope.cancel()


async def test_child_that_reads_too_slowly_learns_the_state_of_the_stream_all_the_same(uri: str) -> None:
    child = Child()
    relay = ChangeRelay(StreamOfSteps(uri, NoStreamError("no right", is_of_user=True)))
    many = [JobChange(ChangeKind.JOB, name=f"{number:01000}") for number in range(300)]  # They fill the pipe.
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.serve, child.parents_end)
        await trio.testing.wait_all_tasks_blocked()
        relay.send_changes(many)
        await relay.run()  # Its state waits behind these changes.
        for _ in range(MOST_UNREAD // len(many) + 1):
            relay.send_changes(many)
        assert await states_of(child, 1) == ["no right"]
        nursery.cancel_scope.cancel()


@pytest.mark.full
async def test_stream_that_ends_with_its_database_is_opened_again(uri: str, db: Database) -> None:
    child = Child()
    async with relaying(stream_of(uri), child):
        await child.open()
        await Monque(db).enqueue("greet")
        assert len(await child.read()) == 1
        await trio.to_thread.run_sync(partial(db.client.drop_database, db.name))
        kinds = set[ChangeKind]()
        while child.changes.is_open:
            kinds |= {change.kind for change in await child.read()}
        assert kinds <= {ChangeKind.GONE, ChangeKind.PAUSE}
        await child.open()
        await Monque(db).enqueue("again")
        assert "again" in [change.name for change in await child.read()]


async def test_wait_of_a_child_ends_when_it_ends() -> None:
    child = Child()
    child.changes.is_open = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(child.read)
        await trio.testing.wait_all_tasks_blocked()
        child.changes.end_wait()


async def test_child_whose_parent_has_died_has_no_changes() -> None:
    child = Child()
    child.parents_end.close()
    with pytest.raises(MonqueConnectionError, match="the parent process has ended"):
        await child.open()


def test_parent_that_opens_no_stream_in_time_is_an_outage() -> None:
    its_end, parents_end = Pipe(duplex=False)
    with its_end, parents_end, pytest.raises(MonqueConnectionError, match="has not opened") as caught:
        RelayedChanges(os.dup(its_end.fileno()), 0.01).open()
    assert caught.value.transient


def test_end_of_a_child_is_not_for_what_its_handlers_start() -> None:
    its_end, parents_end = Pipe(duplex=False)
    with its_end, parents_end:
        descriptor = os.dup(its_end.fileno())
        os.set_inheritable(descriptor, True)  # As a child gets it.
        changes = RelayedChanges(descriptor, 30.0)
        assert not os.get_inheritable(descriptor)
        del changes
