"""The doctor, run in this process, and an entry of an instance for it to find."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.store import handle
from trio_monque.cli.doctor.shown_finding import KINDS, LENGTHS, LengthInWords
from trio_monque.cli.program import run_program
from trio_monque.clock import to_milliseconds
from trio_monque.jobs.instance import Instance
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import instances


@dataclass
class Doctor:
    """What it found in a database.

    Attributes:
        uri: Where it looks, with the database.
    """

    uri: str
    capsys: pytest.CaptureFixture[str]

    def looks(self, *arguments: str) -> Report:
        self.capsys.readouterr()
        status = run_program(["doctor", "--uri", self.uri, "--json", *arguments])
        printed = self.capsys.readouterr()
        assert status in (0, 1), printed.err
        return Report(status, json.loads(printed.out)["findings"])


@dataclass(frozen=True)
class Report:
    """The exit status and the findings."""

    status: int
    findings: list[dict[str, Any]]

    @property
    def kinds(self) -> list[str]:
        return [one["kind"] for one in self.findings]

    def sentences(self, kind: str) -> list[str]:
        """Of this kind; each has the advice of its kind, without a field that was not filled in."""
        found = [one for one in self.findings if one["kind"] == kind]
        for one in found:
            fields = {name: LengthInWords(value) if name in LENGTHS else value for name, value in one["fields"].items()}
            assert one["advice"] == KINDS[kind].advice.format_map(fields)
            assert one["severity"] == KINDS[kind].severity
        return [one["sentence"] for one in found]


def now() -> datetime:
    return to_milliseconds(datetime.now(UTC))


def enter(
    db: Database,
    instance_id: str,
    *names: str,
    heartbeat_ago: float = 0.0,
    started_ago: float = 3600.0,
    **fields: Any,
) -> Instance:
    """Insert the entry of an instance that runs these names."""
    instance = Instance(
        id=instance_id,
        incarnation="1",
        host="web-1",
        pid=4711,
        names=names,
        started_at=now() - timedelta(seconds=started_ago),
        last_heartbeat=now() - timedelta(seconds=heartbeat_ago),
        heartbeat_interval=30.0,
        version="1",
        **fields,
    )
    assert instances.insert(handle(db), instance)
    return instance
