"""A command about jobs, run in this process against the database of the test."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.programs import uri_of_database
from trio_monque.cli.program import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status, and what it printed."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


Command = Callable[..., Ended]


def command_of(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `trio-monque ARGUMENTS --uri …`."""

    def run(name: str, *arguments: str) -> Ended:
        capsys.readouterr()
        status = run_program([name, "--uri", uri_of_database(mongod.uri, db.name), *arguments])
        printed = capsys.readouterr()
        return Ended(status, printed.out, printed.err)

    return run
