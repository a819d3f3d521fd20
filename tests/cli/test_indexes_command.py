"""`trio-monque indexes` lists, creates and drops indexes."""

from __future__ import annotations

import io

import pytest

from tests.support.store import handle
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes

from .command_support import Command, command_of

OURS = [indexes.name_of(one) for one in indexes.ALL]


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


def states(command: Command, *arguments: str) -> dict[str, str]:
    return {one["name"]: one["state"] for one in command("indexes", "--json", *arguments).json}


def test_missing_ones_are_listed_with_their_definition_and_created_on_request(
    command: Command, db: Database, jobs: Collection
) -> None:
    ended = command("indexes")
    assert ended.status == 1
    assert [line.split()[0] for line in ended.lines[1:]] == OURS
    assert all(" missing " in line for line in ended.lines[1:])
    assert "key: {name: 1, status: 1, nextRunAt: 1, _id: 1}" in ended.out
    assert db.list_collection_names() == []

    created = command("indexes", "--create")
    assert created.status == 0
    assert {one["name"] for one in jobs.list_indexes()} == {"_id_", *OURS}
    assert states(command) == dict.fromkeys(["_id_", *OURS], "present")


def test_index_of_a_field_is_created_listed_and_not_dropped(command: Command, db: Database, jobs: Collection) -> None:
    indexes.ensure(handle(db))
    assert states(command, "--filter", "meta.tenant")["trio_monque_by_meta.tenant"] == "missing"
    assert command("indexes", "--filter", "meta.tenant").status == 1
    both = ("--filter", "meta.tenant", "--filter", "data.order.id")
    assert command("indexes", "--create", *both).status == 0
    description = jobs.index_information()["trio_monque_by_data.order.id"]
    assert description["key"] == [("data.order.id", 1), ("createdAt", 1), ("_id", 1)]
    assert description["partialFilterExpression"] == {"data.order.id": {"$exists": True}}
    known = states(command)
    assert known["trio_monque_by_meta.tenant"] == known["trio_monque_by_data.order.id"] == "present"
    assert "no index to drop" in command("indexes", "--drop-surplus", "--yes").out

    jobs.drop_index("trio_monque_by_meta.tenant")
    jobs.create_index("other", name="trio_monque_by_meta.tenant")
    jobs.create_index("more", name="trio_monque_by_meta.$where")
    known = states(command)
    assert known["trio_monque_by_meta.tenant"].startswith("its definition differs")
    assert known["trio_monque_by_meta.$where"] == "surplus"


def test_doctor_takes_the_index_of_a_field_for_one_of_ours(db: Database, jobs: Collection) -> None:
    indexes.ensure(handle(db), also=[indexes.of_field("meta.tenant")])
    monque = Monque(db)
    assert "surplus-index" not in {one.kind for one in monque.sync.findings().findings}
    jobs.create_index("meta.tenant")
    assert "surplus-index" in {one.kind for one in Monque(db).sync.findings().findings}


@pytest.mark.parametrize("path", ["", "meta", "meta.a.b", "meta.$where", "data.a..b", "data.a-b", "status", "data.é"])
def test_filter_that_is_not_a_path_is_refused(command: Command, db: Database, path: str) -> None:
    assert "is not a path such as meta.tenant" in command("indexes", "--create", "--filter", path).err
    assert db.list_collection_names() == []


def test_surplus_ones_are_dropped_and_no_others(command: Command, db: Database, jobs: Collection) -> None:
    indexes.ensure(handle(db))
    jobs.create_index("tenant", name="tenant")
    jobs.create_index("endedAt", name="ended", expireAfterSeconds=60)
    jobs.create_index([("status", 1), ("nextRunAt", 1)])
    before = states(command)
    assert before["tenant"] == "surplus"
    assert before["ended"] == "surplus: it deletes jobs after 60 s"
    assert before["status_1_nextRunAt_1"] == "of Monque for Node"

    asked = command("indexes", "--drop-surplus", "--dry-run")
    assert "would drop 2 indexes of " in asked.lines[0]
    assert states(command) == before

    dropped = command("indexes", "--drop-surplus", "--yes")
    assert dropped.status == 0
    assert dropped.lines[0].endswith(": tenant, ended")
    assert set(states(command)) == {"_id_", *OURS, "status_1_nextRunAt_1"}
    assert command("indexes", "--drop-surplus", "--yes").lines[0] == "no index to drop"

    command("indexes", "--drop-node", "--yes")
    assert set(states(command)) == {"_id_", *OURS}


def test_index_of_another_definition_is_named(command: Command, jobs: Collection) -> None:
    jobs.create_index("name", name=OURS[0])
    jobs.create_index([("nextRunAt", 1), ("_id", 1)], name="mine")
    found = states(command)
    assert found[OURS[0]].startswith("its definition differs: drop it")
    assert found["trio_monque_listing"] == "missing: mine has its definition"
    ended = command("indexes", "--create")
    assert ended.status == 2
    assert "dropIndex" in ended.err


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [("y\n", 0, "dropped 1 index"), ("n\n", 130, "Aborted: nothing was changed."), ("", 130, "Aborted")],
    ids=["yes", "no", "end of input"],
)
def test_user_in_a_terminal_is_asked(
    command: Command,
    db: Database,
    jobs: Collection,
    monkeypatch: pytest.MonkeyPatch,
    answer: str,
    status: int,
    said: str,
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    indexes.ensure(handle(db))
    jobs.create_index("tenant", name="tenant")
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    ended = command("indexes", "--drop-surplus")
    assert ended.status == status
    assert said in ended.out + ended.err
    assert f"Drop 1 index of {db.name}.monque_jobs: tenant?" in ended.err
    assert ("tenant" in {one["name"] for one in jobs.list_indexes()}) == bool(status)


def test_without_a_terminal_nothing_is_dropped(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs.create_index("tenant", name="tenant")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    ended = command("indexes", "--drop-surplus")
    assert ended.status == 2
    assert "--yes" in ended.err
    assert "tenant" in {one["name"] for one in jobs.list_indexes()}
