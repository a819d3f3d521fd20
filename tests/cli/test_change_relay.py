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
from trio_monque import Monque
from trio_monque.cli.connection_options import Connection
from trio_monque.cli.run.change_relay import MOST_UNREAD, ChangeRelay, StreamOfParent
from trio_monque.cli.run.relayed_changes import RelayedChanges
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import MonqueConnectionError
from trio_monque.options_and_defaults import scheduler_config
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs.change_stream import ChangeKind, JobChange, NoStreamError


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
async def relaying(uri: str, *children: Child) -> AsyncIterator[trio.Nursery]:
    relay = ChangeRelay(stream_of(uri))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        for child in children:
            nursery.start_soon(relay.serve, child.parents_end)
        with trio.fail_after(60):
            yield nursery
        nursery.cancel_scope.cancel()


async def test_each_child_learns_what_has_changed_since_it_opened_its_changes(uri: str, db: Database) -> None:
    children = [Child(), Child()]
    async with relaying(uri, *children):
        for child in children:
            await child.open()
        job = await Monque(db).enqueue("greet")
        for child in children:
            (change,) = await child.read()
            assert (change.kind, change.job_id, change.name, change.is_new) == (ChangeKind.JOB, job.id, "greet", True)
            assert child.changes.is_open


async def test_child_that_comes_later_learns_that_the_stream_is_open(uri: str, db: Database) -> None:
    first, second = Child(), Child()
    relay = ChangeRelay(stream_of(uri))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        nursery.start_soon(relay.serve, first.parents_end)
        with trio.fail_after(60):
            await first.open()
            nursery.start_soon(relay.serve, second.parents_end)
            await second.open()
            await Monque(db).enqueue("greet")
            assert [change.name for change in await second.read()] == ["greet"]
        nursery.cancel_scope.cancel()


async def test_child_that_reads_too_slowly_learns_that_and_opens_its_changes_anew(uri: str, db: Database) -> None:
    child = Child()
    relay = ChangeRelay(stream_of(uri))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay.run)
        nursery.start_soon(relay.serve, child.parents_end)
        with trio.fail_after(60):
            await child.open()
            many = [JobChange(ChangeKind.JOB, name="x" * 10_000)] * 100
            for _ in range(2 * MOST_UNREAD):  # Each of them fills the pipe.
                relay.send_changes(many)
            with pytest.raises(MonqueConnectionError, match="could read in time"):
                while True:
                    await child.read()
            assert not child.changes.is_open
            await child.open()
            await Monque(db).enqueue("greet")
            assert "greet" in [change.name for change in await child.read()]
        nursery.cancel_scope.cancel()


async def test_child_learns_that_the_server_has_no_stream() -> None:
    child = Child()
    with standalone_server() as server:
        async with relaying(uri_of_database(server, "shop"), child):
            with pytest.raises(NoStreamError):
                await child.open()


async def test_stream_that_ends_with_its_database_is_opened_again(uri: str, db: Database) -> None:
    child = Child()
    async with relaying(uri, child):
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
