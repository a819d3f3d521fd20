"""`trio-monque pause` and `resume`."""

from __future__ import annotations

import pytest

from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database

from .command_support import Command, command_of
from .doctor_support import enter


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


def test_pause_and_resume_say_whether_they_changed_anything(command: Command, db: Database, jobs: Collection) -> None:
    enter(db, "worker-1", "send", "grüße")
    assert command("pause").out == f"nothing is paused on {db.name}.monque_jobs\n"
    ended = command("pause", "send", "grüße")
    assert (ended.status, ended.lines, ended.err) == (0, ["paused send", "paused grüße"], "")
    assert command("pause", "send").lines == ["send was paused already"]
    assert command("pause").lines == ["grüße", "send"]
    assert command("pause", "--json").json == {"paused": ["grüße", "send"]}
    assert Monque(db).sync.paused() == ["grüße", "send"]
    assert command("resume", "send", "report").lines == ["resumed send", "report was not paused"]
    assert command("resume", "--json", "grüße").json == {"paused": [], "changed": ["grüße"]}


def test_pause_of_a_name_that_nothing_runs_is_warned_about(command: Command, db: Database) -> None:
    enter(db, "worker-1", "send")
    ended = command("pause", "sned")
    assert (ended.status, ended.out) == (0, "paused sned\n")
    assert "One runs 'send': is the name misspelt?" in ended.err


def test_pause_creates_no_collection(command: Command, db: Database) -> None:
    ended = command("pause", "send", "--collection", "monque_jobz")
    assert ended.status == 2
    assert f"{db.name}.monque_jobz has neither jobs nor instances" in ended.err
    assert command("resume", "send", "--collection", "monque_jobz").status == 0
    assert db.list_collection_names() == []
