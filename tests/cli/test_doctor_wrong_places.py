"""The doctor names what lies beside the jobs: another database that a program enqueues into, and a validator."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.programs import uri_of_database
from tests.support.store import handle
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads.diagnosis import other_databases

from .doctor_support import Doctor, enter


@pytest.fixture
def doctor(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Doctor:
    indexes.ensure(handle(db))
    enter(db, "worker-1", "mail")
    return Doctor(uri_of_database(mongod.uri, db.name), capsys)


# --- Other databases ---


@pytest.fixture
def other(db: Database) -> Iterator[Database]:
    """Another database of the server. Its name sorts before those of all other tests."""
    other: Database = db.client.get_database(f"a_{db.name}")
    yield other
    db.client.drop_database(other.name)


def elsewhere(doctor: Doctor, *arguments: str) -> list[list[str]]:
    found = doctor.looks(*arguments).findings
    return [
        re.sub(r" \(\d+ pending\)", "", one["fields"]["databases"]).split(", ") for one in found if is_elsewhere(one)
    ]


def is_elsewhere(finding: dict[str, Any]) -> bool:
    return bool(finding["kind"] == "jobs-elsewhere")


def test_database_with_waiting_jobs_and_no_instance_is_noted(doctor: Doctor, db: Database, other: Database) -> None:
    for _ in range(2):
        Monque(other).sync.enqueue("mail")
    found = doctor.looks()
    (one,) = filter(is_elsewhere, found.findings)
    assert (one["severity"], found.status) == ("note", 0)
    (sentence,) = found.sentences("jobs-elsewhere")
    assert sentence.endswith(f", and no live instance: {other.name} (2 pending).")
    assert f"--database {other.name}`" in one["advice"]
    assert elsewhere(doctor, "mail") == []  # With a name, it looks at the jobs of this name.
    enter(other, "worker-2", "mail", heartbeat_ago=1000)
    assert elsewhere(doctor) == [[other.name]]
    enter(other, "worker-3", "mail")
    assert elsewhere(doctor) == []


def test_name_of_a_database_is_quoted_in_the_command(doctor: Doctor, db: Database) -> None:
    other: Database = db.client.get_database(f"a`id`;{db.name}")
    Monque(other).sync.enqueue("mail")
    try:
        (one,) = filter(is_elsewhere, doctor.looks().findings)
    finally:
        db.client.drop_database(other.name)
    assert f"--database '{other.name}'`" in one["advice"]


def test_program_without_the_connection_string_is_not_shown_other_databases(db: Database, other: Database) -> None:
    Monque(other).sync.enqueue("mail")
    Monque(db).sync.enqueue("mail")
    assert "jobs-elsewhere" not in [one.kind for one in Monque(db).sync.findings().findings]


def test_database_without_waiting_jobs_is_not_noted(doctor: Doctor, other: Database) -> None:
    job = Monque(other).sync.enqueue("mail")
    assert elsewhere(doctor) == [[other.name]]
    Monque(other).sync.cancel_job(job.id)
    assert elsewhere(doctor) == []


def test_collection_of_another_program_is_passed_over(doctor: Doctor, other: Database) -> None:
    other["monque_jobs"].insert_one({"status": "pending"})  # It has none of the indexes.
    found = doctor.looks()
    assert found.kinds == []


def test_no_more_databases_are_looked_into_than_the_bound(
    doctor: Doctor, other: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    Monque(other).sync.enqueue("mail")
    first = sorted(set(other.client.list_database_names()) - {"admin", "config", "local"})[0]
    assert first == other.name
    monkeypatch.setattr(other_databases, "MOST_DATABASES", 1)
    assert elsewhere(doctor) == [[other.name]]
    monkeypatch.setattr(other_databases, "MOST_DATABASES", 0)
    assert elsewhere(doctor) == []


# --- A validator ---

RULE = {"$or": [{"name": {"$ne": "mail"}}, {"data.language": {"$type": "string"}}]}


def test_validator_is_noted_with_its_rule(doctor: Doctor, db: Database) -> None:
    assert doctor.looks().findings == []
    db.command("collMod", "monque_jobs", validator=RULE)
    found = doctor.looks()
    assert (found.kinds, found.status) == (["validator"], 0)
    (sentence,) = found.sentences("validator")
    assert sentence.startswith(f"The collection monque_jobs has a validator (level strict): {json.dumps(RULE)}.")
    # The way out that the doctor names.
    db.command("collMod", "monque_jobs", validationLevel="moderate")
    (sentence,) = doctor.looks().sentences("validator")
    assert "has a validator (level moderate)" in sentence


def test_long_rule_is_cut(doctor: Doctor, db: Database) -> None:
    db.command("collMod", "monque_jobs", validator={"name": {"$nin": [str(number) for number in range(1000)]}})
    (one,) = doctor.looks().findings
    assert len(one["fields"]["rule"]) <= 300


@pytest.mark.parametrize("option", [{"validationLevel": "off"}, {"validationAction": "warn"}, {"validator": {}}])
def test_validator_that_refuses_nothing_is_not_noted(doctor: Doctor, db: Database, option: dict[str, Any]) -> None:
    db.command("collMod", "monque_jobs", **{"validator": RULE, **option})
    assert doctor.looks().findings == []
