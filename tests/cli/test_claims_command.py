"""`trio-monque claims` shows who holds the documents of a collection, and requeues dead letters."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import trio
from bson import ObjectId

from tests.support.programs import uri_of_database
from trio_monque import Claim, run_claims
from trio_monque.cli.program import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.locks_and_dead_letters import LockStamp, dead_letter_lock, freed
from trio_monque.store.documents.indexes import LARGE
from trio_monque.store.driver.extended_json import id_in, text_of_id
from trio_monque.store.driver.types import Collection, Database


@pytest.fixture
def things(db: Database) -> Collection:
    return db["things"]


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def claims(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run `trio-monque claims COMMAND ARGUMENTS`; return the exit status and what was printed."""

    def run(command: str, *arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        status = run_program(["claims", command, *arguments, "--uri", uri_of_database(mongod.uri, db.name)])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return run


def soon(seconds: float = 60.0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def a_lock(by: str, seconds: float) -> dict[str, Any]:
    """One of an instance of this library, which ends after so long."""
    token = LockStamp.new(by, soon(), 20.0, "nonce").token
    return {"by": by, "until": soon(seconds), "every": 20_000, "token": token, "tries": 1}


def plant(things: Collection) -> None:
    locks: list[Any] = [
        None,
        freed(1, soon(-5)),
        freed(2, soon()),
        a_lock("worker-1", 50),
        a_lock("worker-1", 55),
        {"by": "cron", "until": soon(-30)},
        dead_letter_lock(10, "OSError: no\nroute"),
        {"owner": "x"},
    ]
    things.insert_many([{"_id": number, "done": None, "lock": lock} for number, lock in enumerate(locks)])
    things.insert_one({"_id": "other", "done": True})


def test_statistics_count_documents_by_the_state_of_their_locks(claims: Run, things: Collection) -> None:
    plant(things)
    status, printed = claims("stats", "things", "--filter", '{"done": null}')
    assert status == 0
    numbers = dict(line.rsplit(None, 1) for line in printed.split("\n\n")[0].splitlines())
    assert numbers == {
        "claimable": "2",
        "waiting": "1",
        "held": "3",
        "overdue": "1",
        "dead letters": "1",
        "unreadable": "1",
    }
    assert [line.split()[:2] for line in printed.split("\n\n")[1].splitlines()] == [
        ["by", "held"],
        ["worker-1", "2"],
        ["cron", "1"],
    ]
    as_json = json.loads(claims("stats", "things", "--json")[1])
    assert (as_json["claimable"], as_json["dead_letters"]) == (3, 1)
    assert [(one["by"], one["held"]) for one in as_json["holders"]] == [("worker-1", 2), ("cron", 1)]


def test_held_documents_have_their_holders(claims: Run, things: Collection) -> None:
    plant(things)
    found = json.loads(claims("held", "things", "--json")[1])
    by_id = {one["id"]: one for one in found}
    assert [(key, one["by"], one["holder"], one["attempts"]) for key, one in sorted(by_id.items())] == [
        ("3", "worker-1", "instance", 1),
        ("4", "worker-1", "instance", 1),
        ("5", "cron", "other program", 0),
    ]
    assert -60 < by_id["5"]["left"] <= -30 < 0 < by_id["3"]["left"] <= 50
    assert len(json.loads(claims("held", "things", "--json", "--limit", "1")[1])) == 1
    status, printed = claims("held", "things", "--lock-field", "claimed")
    assert (status, printed.endswith(".things is held\n")) == (0, True)


def test_dead_letters_of_a_handler_are_listed_and_readmitted(claims: Run, db: Database, things: Collection) -> None:
    ids = [ObjectId() for _ in range(3)]
    things.insert_many([{"_id": one, "done": None} for one in ids])

    async def fail(claim: Claim[Any]) -> None:
        raise OSError("no\nroute")

    trio.run(partial(run_claims, things, {"done": None}, fail, max_attempts=1, wait=False))
    status, printed = claims("dead-letters", "things")
    assert status == 0
    lines = printed.splitlines()
    assert lines[0].split() == ["id", "attempts", "error"]
    assert sorted(line.split()[0] for line in lines[1:]) == sorted(map(str, ids))
    assert lines[1].split(None, 2)[1:] == ["1", "OSError: no\\nroute"]

    assert claims("readmit", "things", "--all", "--dry-run") == (
        0,
        f"3 dead letters of {db.name}.things would be claimable again\n",
    )
    assert things.count_documents({"lock.error": {"$exists": True}}) == 3
    status, printed = claims("readmit", "things", str(ids[0]), str(ObjectId()))
    assert status == 1
    assert f"1 dead letter of {db.name}.things is claimable again" in printed
    assert "1 of the given documents are not dead letters, or do not exist" in printed
    assert things.find_one({"_id": ids[0]}) == {"_id": ids[0], "done": None}
    as_json = json.loads(claims("readmit", "things", "--all", "--yes", "--json")[1])
    assert as_json == {"collection": f"{db.name}.things", "count": 2, "dry_run": False}
    assert claims("dead-letters", "things") == (0, f"{db.name}.things has no dead letters\n")


@pytest.mark.parametrize("command", ["stats", "held", "dead-letters", "readmit"])
def test_json_of_an_empty_collection_is_valid(claims: Run, db: Database, command: str) -> None:
    status, printed = claims(command, "nothing", "--json", *(["--all", "--yes"] if command == "readmit" else []))
    found = json.loads(printed)
    assert status == 0
    if isinstance(found, dict):
        assert {value for value in found.values() if isinstance(value, int)} == {0}
    else:
        assert found == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["readmit", "things"], "give the ids of documents, or --all"),
        (["readmit", "things", "1", "--all", "--yes"], "give the ids of documents, or --all"),
        (["readmit", "things", "--all"], "--all needs --yes, or --dry-run"),
        (["stats", "things", "--filter", "done"], "is not extended JSON"),
        (["stats", "things", "--filter", "[1]"], "must be an object"),
        (["stats", "things", "--filter", '{"lock.by": "x"}'], "must not name 'lock'"),
        (["stats", "things", "--lock-field", "a.b"], "--lock-field='a.b': must be the name of a top-level field"),
        (["stats", "a$b"], "collection='a$b': collection names must not contain '$'"),
        (["stats", ""], "collection='': collection names cannot be empty"),
        (["nothing"], "No such command 'nothing'"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_invalid_arguments_print_the_usage(claims: Run, arguments: list[str], said: str) -> None:
    status, printed = claims(*arguments)
    assert status == 2
    assert printed.startswith("Usage: trio-monque claims")
    assert said in printed


def test_large_collection_without_an_index_is_refused(claims: Run, things: Collection) -> None:
    things.insert_many([{"_id": number, "done": None} for number in range(LARGE + 1)])
    status, printed = claims("stats", "things", "--filter", '{"done": null}')
    assert status == 2
    assert "serves the filter {'done': None}" in printed
    assert "or give --allow-scan" in printed
    status, printed = claims("stats", "things", "--filter", '{"done": null}', "--allow-scan")
    assert (status, printed.splitlines()[0].split()) == (0, ["claimable", f"{LARGE + 1:,}"])


@pytest.mark.parametrize(
    "document_id",
    [
        ObjectId("6b0408ae7d450bf3a40ba209"),
        "5",
        "text",
        "a" * 24,
        "true",
        5,
        5.5,
        True,
        None,
        {"a": 1},
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
    ids=repr,
)
def test_id_is_read_from_the_text_that_shows_it(document_id: object) -> None:
    read = id_in(text_of_id(document_id))
    assert (type(read), read) == (type(document_id), document_id)
