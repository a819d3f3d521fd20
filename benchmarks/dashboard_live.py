"""What ten viewers of the dashboard cost beside work, and how often they see a change."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from pymongo import MongoClient

from tests.support.web_servers import WebServer

from .dashboard_jobs import COMMON, JOBS
from .dashboard_pages import TIMEOUT, Browser, processor_seconds, serving, timed
from .measuring import Db, median, server_seconds, tell
from .processes import child

VIEWERS: Final = 10
JOBS_A_SECOND: Final = 1_000
CHANGES_A_SECOND: Final = 10_000
SHOWN: Final = ("/", "/jobs", "/jobs?status=failed", f"/jobs?name={COMMON}")
"""Pages that viewers look at, in turn."""

LEAST_BETWEEN: Final = 1.0
MOST_BETWEEN: Final = 10.0
"""As `static/monque.js`: seconds between two looks of a viewer; ten times what the last one took."""

SETTLED: Final = 3.0
CHANGES_SEEN: Final = 10


class Viewer:
    """A page that is open in a browser, as `static/monque.js` keeps it.

    Attributes:
        messages: How many came by its stream.
        looks: The milliseconds of each page that it has asked for.
    """

    def __init__(self, url: str, path: str, *, reads: bool) -> None:
        self.messages = 0
        self.looks: list[float] = []
        self.page = ""
        self._path = path
        self._reads = reads
        self._is_stale = threading.Event()
        self._browser = Browser(url)
        where = urlsplit(url)
        assert where.hostname is not None
        self._stream = socket.create_connection((where.hostname, where.port or 80), timeout=TIMEOUT)
        self._stream.sendall(b"GET /api/v1/events HTTP/1.1\r\nHost: jobs.test\r\n\r\n")
        self._is_open = True
        self._threads = [threading.Thread(target=run) for run in (self._hear, self._look)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._is_open = False
        with suppress(OSError):
            self._stream.shutdown(socket.SHUT_RDWR)
        self._is_stale.set()
        for thread in self._threads:
            thread.join()
        self._stream.close()
        self._browser.close()

    def _hear(self) -> None:
        with suppress(OSError):
            while piece := self._stream.recv(65_536):
                if news := piece.count(b"event: stale"):
                    self.messages += news
                    if b'"names"' in piece:
                        self._is_stale.set()

    def _look(self) -> None:
        while True:
            self._is_stale.wait()
            if not self._is_open:
                return
            self._is_stale.clear()
            if self._reads:
                took = timed(self._read)
                self.looks.append(took)
                time.sleep(max(LEAST_BETWEEN, min(MOST_BETWEEN, 10 * took / 1000)))

    def _read(self) -> None:
        self.page = self._browser.get(self._path)


@dataclass(frozen=True)
class Load:
    """What was used while something went on, in shares of a core, and what was done.

    Attributes:
        web, mongod: Shares of a core.
        done: Jobs or changes a second.
        streams: Change streams that were open.
        messages, looks: Of each viewer, a second.
        look: Milliseconds of a page that a viewer asked for.
    """

    web: float
    mongod: float
    done: float
    streams: int
    messages: float = 0.0
    looks: float = 0.0
    look: float = 0.0


@contextmanager
def looking(server: WebServer, number: int, *, reads: bool) -> Iterator[Sequence[Viewer]]:
    viewers: list[Viewer] = []
    try:
        for one in range(number):
            viewers.append(Viewer(server.url, SHOWN[one % len(SHOWN)], reads=reads))  # noqa: PERF401 - each is closed
        yield viewers
    finally:
        for viewer in viewers:
            viewer.close()


def load(
    server: WebServer, client: MongoClient[Any], work: Any, seconds: float, number: int, *, reads: bool = True
) -> Load:
    """What so many viewers cost for so many seconds beside the work."""
    with looking(server, number, reads=reads) as viewers:
        time.sleep(SETTLED)
        for viewer in viewers:
            viewer.messages, viewer.looks = 0, []
        begin = (processor_seconds(server), server_seconds(client), work.ask(), time.monotonic())
        time.sleep(seconds)
        end = (processor_seconds(server), server_seconds(client), work.ask(), time.monotonic())
        took = end[3] - begin[3]
        web, mongod, done = ((later - earlier) / took for later, earlier in zip(end[:3], begin[:3], strict=True))
        looks = [one for viewer in viewers for one in viewer.looks]
        return Load(
            web,
            mongod,
            done,
            streams_of(client),
            messages=sum(viewer.messages for viewer in viewers) / took / max(1, number),
            looks=len(looks) / took / max(1, number),
            look=median(looks) if looks else 0.0,
        )


def streams_of(client: MongoClient[Any]) -> int:
    """How many change streams are open, those of schedulers included."""
    open_ones = client.admin.aggregate([{"$currentOp": {"idleCursors": True}}])
    return sum("$changeStream" in json.dumps(one.get("cursor", {}), default=str) for one in open_ones)


def viewers(uri: str, database: Db, seconds: float) -> str:
    """What viewers cost beside a producer and a scheduler."""
    kinds = {
        "nobody looks": (0, False),
        f"{VIEWERS} open streams, no page read": (VIEWERS, False),
        f"{VIEWERS} viewers": (VIEWERS, True),
        "nobody looks, again": (0, False),
    }
    lines = []
    with serving(uri, database.name) as server:
        lines.append(_seen(server, database))
        with child("dashboard_work", uri, database.name, "jobs", str(JOBS_A_SECOND)) as work:
            time.sleep(SETTLED)
            for what, (number, reads) in kinds.items():
                tell(f"  {what}")
                lines.append(_line(what, load(server, database.client, work, seconds, number, reads=reads)))
    return "\n".join([f"beside {JOBS_A_SECOND:,} jobs a second:", *lines])


def changes(uri: str, database: Db, seconds: float) -> str:
    """How often viewers look beside many raw changes."""
    with (
        serving(uri, database.name) as server,
        child("dashboard_work", uri, database.name, "changes", str(CHANGES_A_SECOND)) as work,
    ):
        time.sleep(SETTLED)
        found = {f"{number} viewers": load(server, database.client, work, seconds, number) for number in (0, VIEWERS)}
    lines = [_line(what, one) for what, one in found.items()]
    return "\n".join([f"beside {CHANGES_A_SECOND:,} changes a second:", *lines])


def _seen(server: WebServer, database: Db) -> str:
    """After which time one more job is on a page that is open, while nothing else happens."""
    times = []
    with looking(server, 2, reads=True) as (overview, jobs):
        time.sleep(2 * SETTLED)
        for number in range(CHANGES_SEEN):
            name = f"seen-{number}"
            job = dict.fromkeys(("nextRunAt", "createdAt", "updatedAt"), _now(database))
            database[JOBS].insert_one({"name": name, "status": "pending", "data": None, "failCount": 0, **job})
            times.append(_seconds_until_shown((overview, jobs), name))
            time.sleep(1.3 + 0.1 * number)
        database[JOBS].delete_many({"name": {"$regex": "^seen-"}})
    of_page = dict(zip(("Overview", "Jobs"), zip(*times, strict=True), strict=True))
    return "; ".join(
        f"a change is seen on {page} after {median(one):.2f} s, at worst {max(one):.2f}"
        for page, one in of_page.items()
    )


def _now(database: Db) -> Any:
    return database.client.admin.command("hello")["localTime"]


def _seconds_until_shown(viewers: Sequence[Viewer], text: str) -> Sequence[float]:
    began = time.monotonic()
    found: dict[Viewer, float] = {}
    while len(found) < len(viewers):
        for viewer in viewers:
            if viewer not in found and text in viewer.page:
                found[viewer] = time.monotonic() - began
        if time.monotonic() > began + TIMEOUT:
            raise RuntimeError(f"{text} is not shown after {TIMEOUT:.0f} s")
        time.sleep(0.01)
    return [found[viewer] for viewer in viewers]


def _line(what: str, load: Load) -> str:
    looks = f"; each viewer a second: {load.messages:.2f} messages, {load.looks:.2f} pages of {load.look:.0f} ms"
    return (
        f"{what:40} web process {100 * load.web:5.1f} %, mongod {100 * load.mongod:5.1f} %, "
        f"{load.done:7,.0f} a second, {load.streams} change streams{looks if load.messages else ''}"
    )
