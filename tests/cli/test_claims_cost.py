"""However many documents there are, each question of `trio-monque claims` reads a bounded number along the index."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

import pytest
import trio

from tests.support.examined import profiling
from tests.support.many_jobs import insert_all
from tests.support.programs import uri_of_database
from tests.support.thoroughly import FULL
from trio_monque.claims import create_claim_index
from trio_monque.cli.program import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.documents import counting
from trio_monque.store.driver.types import Database

NUMBER: Final = 1_000_000 if FULL else 12_000
MOST_COUNTED: Final = counting.MOST_COUNTED if FULL else 1_000

FILTER: Final = '{"done": null}'


def documents() -> Iterator[dict[str, Any]]:
    """Most are free, which an index does not tell from those with an unreadable lock."""
    until = datetime.now(UTC) + timedelta(hours=1)
    for one in range(NUMBER):
        lock = {"by": f"cron-{one % 7}", "until": until} if one % 10 == 0 else None
        yield {"_id": one, "done": None, "lock": lock}


@pytest.mark.larger_in_full
@pytest.mark.timeout(300)
def test_each_question_reads_a_bounded_number_of_documents(
    mongod: EmbeddedServer, db: Database, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(counting, "MOST_COUNTED", MOST_COUNTED)
    insert_all(db["things"], documents())
    trio.run(partial(create_claim_index, db["things"], {"done": None}, operation_timeout=200.0))
    for arguments in (
        ["stats", "things"],
        ["held", "things", "--json"],
        ["dead-letters", "things"],
        ["readmit", "things", "--all", "--dry-run"],
        ["readmit", "things", "1", "2", "--dry-run"],
    ):
        with profiling(db, 16 << 20, "things") as reported:
            uri = uri_of_database(mongod.uri, db.name)
            run_program(["claims", *arguments, "--filter", FILTER, "--operation-timeout", "20s", "--uri", uri])
        entries = [one for one in reported() if one["command"].keys() & {"find", "aggregate"}]
        assert entries, capsys.readouterr().err
        for entry in entries:
            assert "COLLSCAN" not in entry.get("planSummary", ""), entry
            assert entry.get("docsExamined", 0) <= MOST_COUNTED, entry
            assert entry.get("keysExamined", 0) <= MOST_COUNTED + 1, entry
            assert 0 < entry["command"]["maxTimeMS"] <= 20_000, entry


def test_index_that_the_page_names_serves_the_commands_without_a_filter(
    mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    insert_all(db["things"], ({"_id": one} for one in range(10_001)))
    arguments = ["claims", "stats", "things", "--uri", uri_of_database(mongod.uri, db.name)]
    assert run_program(arguments) == 2
    assert "call create_claim_index(collection, filter) once" in capsys.readouterr().err
    db["things"].create_index({"lock.until": 1, "lock.by": 1})
    assert run_program(arguments) == 0
    assert capsys.readouterr().out.splitlines()[0].split() == ["claimable", "10,001"]
