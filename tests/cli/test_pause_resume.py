"""`trio-monque pause` and `resume`."""

from __future__ import annotations

import getpass
import os
import socket

import pytest

from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs.job_json import iso

from .command_support import Command, command_of
from .doctor_support import enter


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


def test_pause_and_resume_say_whether_they_changed_anything(
    command: Command, db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "dana")
    enter(db, "worker-1", "send", "grüße")
    assert command("pause").out == f"nothing is paused on {db.name}.monque_jobs\n"
    ended = command("pause", "send", "grüße")
    assert (ended.status, ended.lines, ended.err) == (0, ["paused send", "paused grüße"], "")
    assert command("pause", "send").lines == ["send was already paused"]
    pauses = Monque(db).sync.pauses()
    assert [(one.name, one.by) for one in pauses] == [("grüße", "dana"), ("send", "dana")]
    assert pauses[0].since is not None
    assert command("pause").lines[1:] == [f"{one.name:5}  {one.since:%Y-%m-%d %H:%M:%SZ}  dana" for one in pauses]
    found = command("pause", "--json").json
    assert found["paused"] == ["grüße", "send"]
    assert found["pauses"][0] == {"name": "grüße", "since": iso(pauses[0].since), "by": "dana"}
    assert command("resume", "send", "report").lines == ["resumed send", "report was not paused"]
    assert command("resume", "--json", "grüße").json == {"paused": [], "pauses": [], "changed": ["grüße"]}


def test_pause_of_a_name_that_nothing_runs_is_warned_about(command: Command, db: Database) -> None:
    enter(db, "worker-1", "send")
    ended = command("pause", "sned")
    assert (ended.status, ended.out) == (0, "paused sned\n")
    assert "One runs 'send': is the name misspelt?" in ended.err


def test_pause_by_a_user_without_a_name_has_the_process(
    command: Command, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4711")  # As in a container, before Python 3.13.

    monkeypatch.setattr(getpass, "getuser", unknown)
    enter(db, "worker-1", "send")
    assert command("pause", "send").status == 0
    (pause,) = Monque(db).sync.pauses()
    assert pause.by == f"process {os.getpid()} on {socket.gethostname()}"


def test_pause_creates_no_collection(command: Command, db: Database) -> None:
    ended = command("pause", "send", "--collection", "monque_jobz")
    assert ended.status == 2
    assert f"{db.name}.monque_jobz has neither jobs nor instances" in ended.err
    assert command("resume", "send", "--collection", "monque_jobz").status == 0
    assert db.list_collection_names() == []
