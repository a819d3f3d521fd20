"""How long the pages of the dashboard take, beside a plain find in turns with them, and what the server examines."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from tests.support.web_servers import WebServer
from trio_monque.web.pages.jobs_asked import TABS

from .dashboard_jobs import COMMON, ERROR_NOWHERE, ERROR_SHOWN, JOBS, RARE
from .measuring import Db, median, server_seconds, tell

APPLICATION: Final = Path(__file__).parent / "dashboard_app.py"
TIMEOUT: Final = 60.0
FOUND: Final = 50

CACHED: Final[Mapping[str, dict[str, float]]] = {"cold": {"stats_cache_ttl": 0.001}, "warm": {"stats_cache_ttl": 600.0}}
"""Options of the client: every answer has expired, but the last hour, which is read once a minute; or none has."""


@contextmanager
def serving(uri: str, database: str, **options: Any) -> Iterator[WebServer]:
    order = json.dumps({"uri": uri, "database": database, "options": options})
    with WebServer("uvicorn", APPLICATION, {"ORDER": order}, ["--timeout-keep-alive", "600"]) as server:
        server.wait_until_it_serves()
        yield server


class Browser:
    """One connection that asks for pages."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        assert where.hostname is not None
        self._connection = HTTPConnection(where.hostname, where.port, timeout=TIMEOUT)

    def get(self, path: str) -> str:
        self._connection.request("GET", path)
        with self._connection.getresponse() as answer:
            text = answer.read().decode()
        assert answer.status == 200, text
        return text

    def close(self) -> None:
        self._connection.close()


def paths() -> dict[str, str]:
    """The pages that are measured, by what they show."""
    everywhere: dict[str, dict[str, str]] = {"": {}, ", a name": {"name": COMMON}, ", an error": {"error": ERROR_SHOWN}}
    filters: dict[str, dict[str, str]] = {
        **everywhere,
        ", a rare name": {"name": RARE},
        ", an error of none": {"text": ERROR_NOWHERE},
        ", a tenant": {"meta.tenant": "tenant-007"},
        ", changed in the last hour": {"since": "1h"},
    }
    found = {"Overview": "/"}
    for tab in (None, *TABS):
        of_tab = {} if tab is None else {"status": tab.key}
        for what, given in (filters if tab is None or tab.key in ("due", "failed") else everywhere).items():
            found[f"Jobs {'of all states' if tab is None else tab.key}{what}"] = (
                f"/jobs?{urlencode({**of_tab, **given})}"
            )
    return {**found, "Errors, 1 h": "/errors?since=1h", "Errors, all": "/errors?since=all"}


@dataclass(frozen=True)
class PageCost:
    """What one page takes.

    Attributes:
        cold, warm: Milliseconds of each round.
        used: Milliseconds of the processor in a cold round, of the web process and of the server together: another
            program that needs the processor makes a page later, and this no larger.
        commands, keys, documents: Of the first page of all, or where all answers have expired.
        html: Bytes of the page.
    """

    cold: list[float]
    warm: list[float]
    used: list[float]
    commands: int
    keys: int
    documents: int
    html: int


def measured(uri: str, database: Db, rounds: int) -> tuple[list[float], dict[str, PageCost]]:
    """Milliseconds of the plain find, and what each page takes."""
    ids = [one["_id"] for one in database[JOBS].find({"status": "failed"}, {"_id": 1}, limit=FOUND)]
    times: dict[str, dict[str, list[float]]] = {path: {"cold": [], "warm": [], "used": []} for path in paths().values()}
    found: dict[str, PageCost] = {}
    plain: list[float] = []
    with (
        serving(uri, database.name, **CACHED["cold"]) as cold,
        serving(uri, database.name, **CACHED["warm"]) as warm,
        closing(Browser(cold.url)) as one,
        closing(Browser(warm.url)) as other,
    ):
        browsers = {"cold": one, "warm": other}
        costs = {path: examined(database, lambda path=path: one.get(path)) for path in paths().values()}  # type: ignore[misc]
        for path in paths().values():
            other.get(path)
        for number in range(rounds):
            tell(f"  round {number + 1}")
            for path in paths().values():
                for kept, browser in browsers.items():
                    before = processor_seconds(cold) + server_seconds(database.client)
                    times[path][kept].append(timed(lambda path=path, browser=browser: browser.get(path)))  # type: ignore[misc]
                    if kept == "cold":
                        after = processor_seconds(cold) + server_seconds(database.client)
                        times[path]["used"].append(1000 * (after - before))
                plain.append(timed(lambda: list(database[JOBS].find({"_id": {"$in": ids}}))))
    for what, path in paths().items():
        html, entries = costs[path]
        found[what] = PageCost(
            **times[path],
            commands=len(entries),
            keys=sum(entry.get("keysExamined", 0) for entry in entries),
            documents=sum(entry.get("docsExamined", 0) for entry in entries),
            html=len(html),
        )
    return plain, found


def processor_seconds(server: WebServer) -> float:
    """The processor time that the server's process has used: all threads together, those that have ended, too."""
    # What clock_getcpuclockid(3) returns for a process, and what Python has only for its own.
    return time.clock_gettime(~server.process.pid << 3 | 2)


def timed(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - began)


def examined(database: Db, call: Callable[[], str]) -> tuple[str, list[dict[str, Any]]]:
    """What the call returns, and the profiler's entries of all that was sent meanwhile."""
    database.command("profile", 0)
    database["system.profile"].drop()
    database.command("profile", 2)
    try:
        answer = call()
    finally:
        database.command("profile", 0)
    ours = {"ns": {"$ne": f"{database.name}.system.profile"}, "command.profile": {"$exists": False}}
    return answer, list(database["system.profile"].find(ours))


HEADS_OF_TIMES: Final = f"{'ms':>9}{'worst':>7}{'ratio':>7}"


def table(plain: list[float], found: Mapping[str, PageCost]) -> str:
    beside = median(plain)
    lines = [
        f"a plain find of {FOUND} jobs by id: {beside:.1f} ms, at worst {max(plain):.1f}",
        f"{'':44}{'all answers expired':>32}{'answers kept':>23}",
        f"{'page':44}{HEADS_OF_TIMES}{'processor':>10}{HEADS_OF_TIMES}{'commands':>10}{'keys':>9}{'documents':>11}{'KB':>5}",
    ]
    for what, cost in found.items():
        cold, warm = median(cost.cold), median(cost.warm)
        lines.append(
            f"{what:44}{cold:9.0f}{max(cost.cold):7.0f}{cold / beside:7.0f}{median(cost.used):10.0f}"
            f"{warm:9.0f}{max(cost.warm):7.0f}"
            f"{warm / beside:7.0f}{cost.commands:10}{cost.keys:9,}{cost.documents:11,}{cost.html / 1000:5.0f}"
            f"{'  OVER 200' if max(cold, warm) > 200 else ''}"
        )
    return "\n".join(lines)
