"""However many jobs there are, each command that acts on jobs reads a bounded number of them, along an index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.examined import profiling
from tests.support.many_jobs import insert
from tests.support.store import handle
from tests.support.thoroughly import in_full
from trio_monque.client.bulk import MOST_IN_A_WINDOW
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database
from trio_monque.store.jobs import indexes
from trio_monque.store.reads.queries import MOST_EXAMINED
from trio_monque.store.reads.selection_counts import MOST_COUNTED, MOST_READ

from .command_support import Command, command_of
from .doctor_support import enter

NUMBER = in_full(20_000, 1_000_000)


@dataclass(frozen=True)
class Server:
    """A database with many jobs, and what commands send to it."""

    db: Database
    command: Command

    def sent_by(self, *arguments: str) -> list[dict[str, Any]]:
        """Return what the server did for a command that succeeds, without writes of the profiler."""
        with profiling(self.db, 16 << 20) as reported:
            ended = self.command(*arguments, "--operation-timeout", "60s")
        assert ended.status == 0, ended.err
        return list(reported())

    def assert_bounded(self, sent: list[dict[str, Any]], documents: int, keys: int) -> None:
        for one in sent:
            assert "COLLSCAN" not in one.get("planSummary", ""), one
            assert one.get("docsExamined", 0) <= documents, one
            assert one.get("keysExamined", 0) <= keys, one


@pytest.fixture
def server(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Server:
    insert(db["monque_jobs"], NUMBER)
    indexes.ensure(handle(db, operation_timeout=300.0))
    enter(db, "worker-1", "mail", "report", "sync", "rare")
    return Server(db, command_of(mongod, db, capsys))


@pytest.mark.full
@pytest.mark.larger_in_full
@pytest.mark.timeout(600)
def test_commands_read_a_bounded_number_of_documents_along_an_index(server: Server) -> None:
    pending = [str(one["_id"]) for one in server.db["monque_jobs"].find({"status": "pending"}).limit(4)]
    arguments: tuple[str, ...]
    for arguments in (
        ("enqueue", "mail"),
        ("enqueue", "mail", "--unique-key", "k"),
        ("enqueue", "mail", "--unique-key", "k"),
        ("schedule", "@daily", "report", "--unique-key", "k"),
        ("reschedule", pending[0], "1h"),
        ("cancel", pending[1]),
        ("retry", pending[1]),
        ("delete", pending[2]),
        ("pause", "mail"),
        ("resume", "mail"),
    ):
        server.assert_bounded(server.sent_by(*arguments), documents=2, keys=3)

    # The indexes alone have the number; a few jobs are shown.
    for arguments in (
        ("cancel", "--name", "rare"),
        ("cancel", "--status", "pending"),
        ("delete", "--status", "completed"),
        ("delete", "--name", "rare"),
        ("delete", "--everything"),
    ):
        server.assert_bounded(server.sent_by(*arguments, "--dry-run"), documents=1_000, keys=MOST_COUNTED + 2)

    for arguments in (
        ("cancel", "--status", "pending", "--older-than", "1d"),
        ("cancel", "--name", "mail", "--name", "sync", "--newer-than", "2026-01-01T00:00:01"),
        ("retry", "--fail-reason-prefix", "card"),
        ("retry", "--name", "mail", "--fail-reason", "out"),
        ("delete", "--status", "completed", "--fail-reason", "x"),
    ):
        sent = server.sent_by(*arguments, "--dry-run")
        assert sent
        server.assert_bounded(sent, documents=max(MOST_READ, MOST_EXAMINED), keys=MOST_COUNTED + 2)

    for arguments in (
        ("cancel", "--name", "rare"),
        ("retry", "--name", "rare"),
        ("delete", "--status", "failed", "--fail-reason", "card"),
    ):
        sent = server.sent_by(*arguments, "--yes")
        assert sent
        server.assert_bounded(sent, documents=MOST_IN_A_WINDOW + 1_000, keys=MOST_IN_A_WINDOW + 1_000)
