"""Events: what a browser has to read anew, from one change stream for all viewers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from pymongo import MongoClient
from starlette.types import ASGIApp

from tests.support.interception import Recorder
from tests.support.store import handle, insert
from tests.web.http import LOOPS
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import stale_regions
from trio_monque.store.jobs.change_stream import NoStreamError
from trio_monque.store.jobs.stale_regions import ALL_REGIONS
from trio_monque.web import create_app
from trio_monque.web.live import event_stream_answer, hub, rush
from trio_monque.web.live.event_stream_answer import Pace
from trio_monque.web.live.hub import Hub

QUICK = Pace(between=0.01, between_of_own=0.01, comment=0.05, send=5.0, life=60.0, spread=0.0)
PAUSED = {"instances", "names"}
LONG_ENOUGH = 20.0
"""Seconds after which a test fails; what it waits for comes within a tenth of a second."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream_answer, "PACE", QUICK)
    monkeypatch.setattr(hub, "READ_EVERY", 0.0)
    monkeypatch.setattr(stale_regions, "LONGEST_READ", 0.1)


class Peer:
    """One browser, without a server in between.

    Attributes:
        status, headers: Of the answer.
        body: All that was sent.
        has_ended: The answer is whole.
        may_read: Cleared, it reads nothing, and each send to it waits.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.has_ended = False
        self.may_read = anyio.Event()
        self.may_read.set()
        self._has_left = anyio.Event()
        self._news = anyio.Event()

    async def ask(self, app: ASGIApp, query: str = "") -> None:
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/api/v1/events",
            "headers": [],
            "query_string": query.encode(),
            "scheme": "http",
        }
        await app(scope, self._receive, self._send)
        self._news.set()

    async def _receive(self) -> Any:
        await self._has_left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        await self.may_read.wait()
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            self.body += message.get("body", b"")
            self.has_ended = not message.get("more_body", False)
        self._news.set()

    def leave(self) -> None:
        self._has_left.set()

    @property
    def messages(self) -> list[dict[str, Any]]:
        pieces = self.body.decode().split("\n\n")
        return [json.loads(one.partition("data: ")[2]) for one in pieces if one.startswith("event: stale")]

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self._news = anyio.Event()
            await self._news.wait()

    async def learns(self, region: str, after: int = 1) -> None:
        """Return when a message after the first ones has this region."""
        await self.until(lambda: any(region in one["regions"] for one in self.messages[after:]))


@asynccontextmanager
async def viewing(app: ASGIApp, *queries: str) -> AsyncIterator[list[Peer]]:
    """Peers that have got their first message; they leave at the end of the block."""
    peers = [Peer() for _ in queries]
    with anyio.fail_after(LONG_ENOUGH):
        async with anyio.create_task_group() as tasks:
            for peer, query in zip(peers, queries, strict=True):
                tasks.start_soon(peer.ask, app, query)
                await peer.until(lambda peer=peer: bool(peer.messages) or peer.has_ended)  # type: ignore[misc]
            yield peers
            for peer in peers:
                peer.leave()


def on(loop: str, work: Callable[[], Awaitable[None]]) -> None:
    anyio.run(work, backend=loop)


async def in_thread(call: Callable[..., Any], *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(call, *arguments)


@pytest.mark.parametrize("loop", LOOPS)
def test_viewers_learn_what_to_read_again(db: Database, jobs: Collection, loop: str) -> None:
    monque = Monque(db)
    job = insert(handle(db))

    async def work() -> None:
        async with viewing(create_app(monque), "", f"job={job.id}") as (peer, of_job):
            assert peer.status == 200
            assert peer.headers["content-type"].startswith("text/event-stream")
            assert (peer.headers["cache-control"], peer.headers["x-accel-buffering"]) == ("no-store", "no")
            assert set(peer.messages[0]["regions"]) == ALL_REGIONS
            assert set(of_job.messages[0]["regions"]) == {*ALL_REGIONS, f"job:{job.id}"}
            await in_thread(insert, handle(db))
            await peer.learns("names")
            seen = len(peer.messages)
            await in_thread(monque.sync.cancel_job, job.id)
            await of_job.learns(f"job:{job.id}")
            await peer.learns("errors", seen)
            await in_thread(monque.sync.pause, "mail")
            await peer.learns("instances")
            assert not any("job:" in region for one in peer.messages for region in one["regions"])

    on(loop, work)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_all_viewers_have_one_stream_and_the_next_one_goes_on_with_it(
    db: Database, mongod: EmbeddedServer, loop: str
) -> None:
    recorder = Recorder()
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        app = create_app(Monque(client[db.name]))

        def streams() -> int:
            return sum("$changeStream" in str(command.get("pipeline")) for _, command in recorder.commands)

        async def work() -> None:
            async with viewing(app, *[""] * 5) as peers:
                for number, peer in enumerate(peers[:-1]):
                    peer.leave()
                    await peer.until(lambda peer=peer: peer.has_ended)  # type: ignore[misc]
                    last, seen = peers[-1], len(peers[-1].messages)
                    await in_thread(insert, handle(db), f"name-{number}")
                    await last.learns("names", seen)
            assert streams() == 1
            assert any(name == "killCursors" for name, _ in recorder.commands)
            async with viewing(app, "") as (again,):
                await again.learns("names")  # All are, when the stream is opened.
                assert streams() == 2

        on(loop, work)


def test_one_change_is_stale_twice_for_those_who_were_shown_a_kept_answer(
    db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "KEPT_FOR", 0.2)
    job = insert(handle(db))
    region = f"job:{job.id}"

    async def work() -> None:
        async with viewing(create_app(Monque(db)), f"job={job.id}") as (peer,):
            # All are stale at first, and again when the stream is open. These come once: no answer is older.
            await peer.learns("errors")
            seen = len(peer.messages)
            changed = {"$set": {"status": "cancelled"}}
            await in_thread(jobs.update_one, {"_id": job.id}, changed)
            await peer.learns("names", seen)
            await peer.until(lambda: sum("names" in one["regions"] for one in peer.messages[seen:]) == 2)
            # Of the page of a job nothing is kept.
            assert sum(region in one["regions"] for one in peer.messages[seen:]) == 1

    on("asyncio", work)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_beside_a_rush_only_rare_changes_and_jobs_that_are_looked_at_are_announced(
    mongod: EmbeddedServer, db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr(rush, "RUSH_AFTER", 0.0)
    monkeypatch.setattr(rush, "FIRST_WAIT", 600.0)
    monkeypatch.setattr(rush, "LONGEST_WAIT", 600.0)
    recorder = Recorder()
    job, another = insert(handle(db)), insert(handle(db))
    monque, changed = Monque(db), {"$set": {"status": "cancelled"}}
    with MongoClient[Any](mongod.uri, event_listeners=[recorder], tz_aware=True) as client:
        app = create_app(Monque(client[db.name]))

        def narrow_streams() -> int:
            return sum("documentKey._id" in str(command.get("pipeline")) for _, command in recorder.commands)

        def pause_and_resume() -> None:
            monque.sync.pause("mail")
            monque.sync.resume("mail")

        async def work() -> None:
            async with viewing(app, "", f"job={job.id}") as (peer, of_job):
                while not narrow_streams():
                    await in_thread(insert, handle(db))
                # Again and again: one that is made while the streams change is announced with all others, later.
                while set(peer.messages[-1]["regions"]) != PAUSED:
                    await in_thread(pause_and_resume)
                seen, seen_of_job = len(peer.messages), len(of_job.messages)
                await in_thread(jobs.update_one, {"_id": another.id}, {"$set": {"status": "failed"}})
                while len(peer.messages) < seen + 3:
                    await in_thread(pause_and_resume)
                assert all(set(one["regions"]) == PAUSED for one in peer.messages[seen:])
                await in_thread(jobs.update_one, {"_id": job.id}, changed)
                await of_job.learns(f"job:{job.id}", seen_of_job)
                async with viewing(app, f"job={another.id}") as (newcomer,):
                    await newcomer.learns(f"job:{another.id}")  # The stream is opened anew, for this job as well.
                    seen = len(newcomer.messages)
                    await in_thread(jobs.update_one, {"_id": another.id}, changed)
                    await newcomer.learns(f"job:{another.id}", seen)

        on(loop, work)


@pytest.mark.full
def test_after_a_rush_all_is_announced_and_once_more_for_those_who_were_shown_a_kept_answer(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rush, "RUSH_AFTER", 0.0)
    monkeypatch.setattr(rush, "FIRST_WAIT", 0.3)
    monkeypatch.setattr(rush, "LONGEST_WAIT", 0.3)

    async def work() -> None:
        async with viewing(create_app(Monque(db)), "") as (peer,):
            await peer.until(lambda: len(peer.messages) == 2)  # The second one when the stream was opened.
            await in_thread(insert, handle(db))
            await peer.until(lambda: len(peer.messages) == 4)
            assert [set(one["regions"]) for one in peer.messages[2:]] == [ALL_REGIONS, ALL_REGIONS]
            await in_thread(insert, handle(db))
            await peer.until(lambda: len(peer.messages) == 6)

    on("asyncio", work)


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_viewer_that_does_not_read_costs_one_small_set(db: Database, loop: str) -> None:
    app = create_app(Monque(db))

    async def work() -> None:
        async with viewing(app, "", "") as (slow, other):
            slow.may_read = anyio.Event()
            for number in range(20):
                seen = len(other.messages)
                await in_thread(insert, handle(db), f"name-{number}")
                await other.learns("names", seen)
            before = len(slow.messages)
            slow.may_read.set()
            await slow.until(lambda: len(slow.messages) >= before + 1)
            await anyio.lowlevel.checkpoint()
            # One that was on its way, and one in which all the others are merged.
            assert len(slow.messages) <= before + 2
            assert len(other.messages) > 10

    on(loop, work)


@pytest.mark.parametrize("loop", LOOPS)
def test_send_that_takes_too_long_ends_the_stream(db: Database, monkeypatch: pytest.MonkeyPatch, loop: str) -> None:
    monkeypatch.setattr(event_stream_answer, "PACE", Pace(**{**_values(QUICK), "send": 0.1}))

    async def work() -> None:
        peer = Peer()
        peer.may_read = anyio.Event()  # It reads nothing at all, and does not leave.
        with anyio.fail_after(LONG_ENOUGH):
            await peer.ask(create_app(Monque(db)))
        assert peer.body == b""

    on(loop, work)


def _values(pace: Pace) -> dict[str, float]:
    return {name: getattr(pace, name) for name in Pace.__slots__}


@pytest.mark.full
@pytest.mark.parametrize("loop", LOOPS)
def test_silence_is_filled_with_comments_and_a_stream_ends(
    db: Database, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr(event_stream_answer, "PACE", Pace(**{**_values(QUICK), "life": 0.5}))

    async def work() -> None:
        peer = Peer()
        with anyio.fail_after(LONG_ENOUGH):
            await peer.ask(create_app(Monque(db)))
        assert peer.has_ended
        assert b"\n\n: still here\n\n" in peer.body

    on(loop, work)


@pytest.mark.parametrize("loop", LOOPS)
def test_one_viewer_too_many_is_refused_until_another_leaves(
    db: Database, monkeypatch: pytest.MonkeyPatch, loop: str
) -> None:
    monkeypatch.setattr(hub, "MOST_VIEWERS", 3)
    app = create_app(Monque(db))

    async def work() -> None:
        async with viewing(app, "", "", "", "") as (first, *_, refused):
            assert (refused.status, refused.headers["retry-after"]) == (503, "10")
            assert "error" in json.loads(refused.body)
            first.leave()
            await first.until(lambda: first.has_ended)
            async with viewing(app, "") as (another,):
                assert another.status == 200

    on(loop, work)


@pytest.mark.parametrize("loop", LOOPS)
def test_without_change_streams_all_is_stale_from_time_to_time(loop: str) -> None:
    def refuse(_: object) -> Any:
        raise NoStreamError("this server has no change streams", is_of_user=False)

    async def work() -> None:
        board = Hub(refuse, look_every=0.01)
        with anyio.fail_after(LONG_ENOUGH):
            async with board.viewing(frozenset({"job:7"})) as viewer, anyio.create_task_group() as tasks:
                tasks.start_soon(board.take_turns)
                for _ in range(3):
                    await viewer.wait()
                    assert set(viewer.take()) == {*ALL_REGIONS, "job:7"}
                tasks.cancel_scope.cancel()

    on(loop, work)


@pytest.mark.parametrize(
    ("query", "options", "answer"),
    [
        ("job=7", {}, (400, "Invalid job id")),
        ("job=" + "g" * 24, {}, (400, "Invalid job id")),
        ("x=1", {}, (400, "Input validation failed")),
        ("", {"authorize": lambda *_: False}, (403, "Read access denied")),
    ],
)
def test_request_that_may_not_listen_is_refused(
    db: Database, query: str, options: dict[str, Any], answer: tuple[int, str]
) -> None:
    async def work() -> None:
        peer = Peer()
        with anyio.fail_after(LONG_ENOUGH):
            await peer.ask(create_app(Monque(db), **options), query)
        assert (peer.status, json.loads(peer.body)["error"]) == answer

    on("trio", work)
