"""However a scheduler ends, its wait for changes ends with it: no thread, no connection and no cursor stays behind.

A wait takes ten seconds where nothing ends it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any, Final

import pytest
import trio
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tests.support.internals import engine_of
from tests.support.open_resources import Connections, threads
from tests.support.thoroughly import one_in
from trio_monque import Scheduler, open_scheduler
from trio_monque.errors import MonqueConnectionError
from trio_monque.events import ChangeStreamConnected
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import change_stream
from trio_monque.testing import fail_next

from .processes import OwnServer, frozen

SOON: Final = change_stream.LONGEST_AWAIT / 2

Way = Callable[[Scheduler, trio.CancelScope], None]


class LeftError(Exception):
    """What a body raises."""


def drain(scheduler: Scheduler, _: trio.CancelScope) -> None:
    scheduler.drain()


def cut(_: Scheduler, around: trio.CancelScope) -> None:
    around.cancel()


def raise_in_body(_: Scheduler, __: trio.CancelScope) -> None:
    raise LeftError


def crash(scheduler: Scheduler, _: trio.CancelScope) -> None:
    # One of its own loops: the claimer.
    fail_next(scheduler, OperationFailure("not to be repaired", 59), command="look for due jobs")
    engine_of(scheduler).wake.set()


RAISES: Final[Mapping[Way, type[Exception]]] = {raise_in_body: LeftError, crash: MonqueConnectionError}


async def run_until(db: Database, leave: Way) -> None:
    """A scheduler that ends like this while its stream waits."""
    connected = trio.Event()

    def hear(_: ChangeStreamConnected) -> None:
        trio.from_thread.run_sync(connected.set)

    with trio.CancelScope() as around:
        async with open_scheduler(db, listeners={ChangeStreamConnected: hear}, cleanup_timeout=0.2) as scheduler:
            scheduler.register("greet", lambda _: None)
            await connected.wait()
            with trio.fail_after(SOON):
                while not _waits(db):
                    await trio.sleep(0.001)
            leave(scheduler, around)
            if leave is not drain:
                await trio.sleep_forever()


def _cursors(db: Database) -> list[Any]:
    reported = db.client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
    # The namespace of one that is being waited for is another than that of an idle one.
    return [one for one in reported if one.get("ns") in (f"{db.name}.$cmd.aggregate", f"{db.name}.$cmd")]


def _waits(db: Database) -> bool:
    return any("getMore" in one.get("command", {}) for one in _cursors(db))


async def assert_nothing_left(db: Database, connections: Connections, before: int, within: float = SOON) -> None:
    with trio.fail_after(within):
        while any(" from " in name for name in threads()) or _cursors(db):
            await trio.sleep(0.005)
    # What the driver made for the commands of this scheduler; none of them is in use.
    assert connections.open <= before + 3
    assert all(pool.active_sockets == 0 for pool in _pools(db))


def _pools(db: Database) -> list[Any]:
    topology: Any = db.client._topology
    return [server.pool for server in topology._servers.values()]


@pytest.mark.full
@pytest.mark.parametrize("leave", one_in(2, [drain, cut, raise_in_body, crash]))
async def test_nothing_is_left_of_a_stream_however_its_scheduler_ends(mongod: Any, db: Database, leave: Way) -> None:
    connections = Connections()
    with MongoClient[dict[str, Any]](mongod.uri, tz_aware=True, event_listeners=[connections]) as client:
        own, before = client[db.name], 0
        for number in range(3):
            with ExitStack() as raising:
                if leave in RAISES:
                    raising.enter_context(pytest.raises(RAISES[leave]))
                await run_until(own, leave)
            if number == 0:
                before = connections.open
            await assert_nothing_left(own, connections, before)


@pytest.mark.full
async def test_nothing_is_left_of_a_stream_whose_server_was_frozen_when_it_was_left(
    own_server: OwnServer, own_db: Database
) -> None:
    connections = Connections()
    with MongoClient[dict[str, Any]](own_server.uri, tz_aware=True, event_listeners=[connections]) as client:
        own = client[own_db.name]
        with ExitStack() as until_left:

            def freeze(scheduler: Scheduler, around: trio.CancelScope) -> None:
                until_left.enter_context(frozen(own_server.pid))
                around.cancel()

            await run_until(own, freeze)
        # What was to end the wait may not have been sent: then it ends by itself.
        longest = change_stream.LONGEST_AWAIT + change_stream.ANSWER_MARGIN
        await assert_nothing_left(own, connections, connections.open, within=longest)
