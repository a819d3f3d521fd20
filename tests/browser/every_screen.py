"""A job in each state and one of everything else that a screen shows, and the paths of all screens that show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote, urlencode

from tests.cli.doctor_support import enter
from tests.web.pages.job_documents import job_document
from trio_monque.locks_and_dead_letters import LockStamp, dead_letter_lock
from trio_monque.store.driver.types import Database

TABS: Final = ("due", "later", "running", "failed", "done", "cancelled")
HOUR: Final = timedelta(hours=1)


@dataclass(frozen=True)
class Filled:
    """What there is to see.

    Attributes:
        name: Of all jobs but the schedules, and of the instance that holds the running ones.
        ids: Of a job in each state, and of the schedule, "schedule".
    """

    name: str
    ids: Mapping[str, str]

    def screens(self) -> Sequence[str]:
        """The path of every screen in each of its states."""
        return [
            *("", "?sort=name&done=retry&n=2&not=1", "jobs", *(f"jobs?status={one}" for one in TABS)),
            *(f"jobs?status=failed&name={_quoted(self.name)}&since=1h", "jobs?name=none", "errors", "errors?name=none"),
            *(f"jobs/{one}" for one in self.ids.values()),
            *(
                "schedules",
                "instances",
                "claims",
                "claims/orders",
                "health",
                "search",
                f"search?q={_quoted(self.part)}",
            ),
            *(
                f"instances/{_quoted(one)}"
                for one in (self.name, f"{self.name} silent", f"{self.name} ended", "node-1")
            ),
            *(f"confirm?{urlencode(one)}" for one in self._questions()),
        ]

    def one_of_each(self) -> Sequence[str]:
        """The path of every screen, once."""
        return [
            *("", "jobs?status=failed", f"jobs?name={_quoted(self.name)}", f"jobs/{self.ids['failed']}", "errors"),
            *("schedules", "instances", f"instances/{_quoted(self.name)}", "claims", "claims/orders", "health"),
            f"search?q={_quoted(self.part)}",
        ]

    def questions_with_its_text(self) -> Sequence[str]:
        """The paths that have the text of the jobs in their query."""
        text = _quoted(self.name)
        return [
            *(f"jobs?status=failed&{key}={text}" for key in ("name", "error", "text", "key", "prefix", "meta.tenant")),
            *(f"jobs?status=running&instance={text}", f"errors?since=all&name={text}", f"search?q={text}"),
            *(f"?sort={text}&done={text}&n={text}", f"?done=retry&n={text}&not={text}"),
        ]

    @property
    def part(self) -> str:
        """A part of the name: a search for it offers a choice."""
        return self.name[:-1]

    def _questions(self) -> Iterator[Mapping[str, str]]:
        back = {"back": f"jobs/{self.ids['failed']}"}
        yield {"do": "cancel-run", "id": self.ids["running"], **back}
        yield {"do": "move", "id": self.ids["schedule"], "back": "schedules"}
        yield {"do": "delete", "id": self.ids["failed"], **back}
        yield {"do": "retry", "all": "1", "status": "failed", "name": self.name, "error": self.name, "since": "1h"}
        yield {"do": "pause", "target": self.name, **back}
        yield {"do": "readmit", "target": "orders", **back}


def _quoted(text: str) -> str:
    return quote(text, safe="")


def fill(db: Database, text: str = "mail") -> Filled:
    """Insert all of it. The text is in every field of it that can have one."""
    now = datetime.now(UTC)
    tried = [
        {"at": now, "attempt": one, "by": text, "ran": 80, "error": f"{text}: {one}", "traceback": f"{text}\n  {text}"}
        for one in (1, 2)
    ]
    fields: dict[str, Any] = {
        "data": {text: [text, 2**53 + 1]}, "meta": {"tenant": text, text: text}, "timezone": text, "errors": tried,
        "failReason": text, "attempts": 2, "progress": {"done": 1, "total": 2, "message": text}, "saved": {text: text},
        "cancelRequestedBy": text,
    }  # fmt: skip
    states: dict[str, dict[str, Any]] = {
        "due": {}, "later": {"next_run_at": now + HOUR}, "running": {"status": "processing", "claimed_by": text},
        "failed": {"status": "failed"}, "cancelled": {"status": "cancelled"},
        "done": {"status": "completed", "result": {text: text}, "startedAt": now, "finishedAt": now},
    }  # fmt: skip
    made = {
        state: [job_document(text, unique_key=f"{text} {state} {one}", **fields, **given) for one in range(3)]
        for state, given in states.items()
    }
    made["schedule"] = [
        job_document(
            f"{text} daily",
            unique_key=f"{text} {cron}",
            repeatInterval=cron,
            next_run_at=now + HOUR,
            **{**fields, "timezone": zone},
        )
        for cron, zone in (("0 6 * * *", "Europe/Berlin"), (text, text))
    ]
    others = [job_document(text, status="processing", claimed_by=by, **fields) for by in (f"{text} ended", "node-1")]
    del others[-1]["claimToken"]
    db["monque_jobs"].insert_many([*others, *(one for some in made.values() for one in some)])
    enter(db, text, text, overdue_by_name={text: 1})
    enter(db, f"{text} silent", text, heartbeat_ago=3600.0)
    db["orders"].insert_many([
        {"_id": f"{text} held", "lock": {**LockStamp.new(text, now, 30, "x").fields, "tries": 1}},
        *({"_id": f"{text} {one}", "lock": dead_letter_lock(3, text)} for one in range(3)),
    ])  # fmt: skip
    return Filled(text, {state: str(some[0]["_id"]) for state, some in made.items()})
