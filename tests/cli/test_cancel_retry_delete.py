"""`trio-monque cancel`, `retry` and `delete` on a selection: what they ask, change, print and refuse."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.bulk_calls import DAY, put, statuses
from tests.support.store import handle
from trio_monque.cli.jobs import acting_in_bulk
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes

from .command_support import Command, command_of
from .doctor_support import now


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


class Terminal(io.StringIO):
    """A standard input at which a person types this."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda text: monkeypatch.setattr(sys, "stdin", Terminal(text))


@pytest.fixture
def not_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())


UNKNOWN = "6" * 24
"""An id that no job has."""


def plant(jobs: Collection) -> None:
    put(jobs, "pending", "mail", uniqueKey="user:1")
    put(jobs, "pending", "mail", createdAt=DAY + timedelta(days=100))
    put(jobs, "pending", "grüße")
    put(jobs, "processing", "mail")
    put(jobs, "completed", "mail")
    put(jobs, "failed", "mail", failReason="TimeoutError: bank")
    put(jobs, "failed", "report", failReason="ValueError: TimeoutError")
    put(jobs, "cancelled", "mail")
    jobs.insert_one({"name": "mail", "status": "pending", "createdAt": DAY})


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (("cancel", "--name", "mail"), 2),
        (("cancel", "--name", "mail", "--name", "grüße"), 3),
        (("cancel", "--status", "pending"), 3),
        (("cancel", "--name", "mail", "--older-than", "2026-02-01"), 1),
        (("cancel", "--name", "mail", "--newer-than", "2026-02-01"), 1),
        (("retry", "--fail-reason", "TimeoutError"), 2),
        (("retry", "--fail-reason-prefix", "TimeoutError"), 1),
        (("retry", "--status", "cancelled", "--spread", "1m"), 1),
        (("retry", "--status", "cancelled", "--status", "failed"), 3),
        (("delete", "--name", "mail", "--status", "completed"), 1),
        (("delete", "--name", "mail"), 6),
        (("delete", "--status", "processing", "--older-than", "1s"), 1),
        (("delete", "--everything"), 8),
        (("cancel", "--name", "mail", "--unique-key-prefix", "user:"), 1),
        (("delete", "--name", "mail", "--unique-key", "user:1", "--older-than", "1s"), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_dry_run_counts_what_the_action_then_changes(
    command: Command, db: Database, jobs: Collection, arguments: tuple[str, ...], number: int
) -> None:
    plant(jobs)
    indexes.ensure(handle(db))
    before = [*jobs.find().sort("_id")]
    dry = command(*arguments, "--dry-run", "--json")
    assert dry.status == 0
    ids = [one["id"] for one in dry.json["examples"]]
    assert len(ids) == len(set(ids)) == min(number, acting_in_bulk.EXAMPLES)
    assert all("data" not in one for one in dry.json["examples"])
    assert [*jobs.find().sort("_id")] == before
    shown = command(*arguments, "--dry-run")
    assert shown.out.startswith(f"would {arguments[0]} ")
    assert ids[0] in shown.out
    done = command(*arguments, "--yes", "--json")
    assert done.json["count"] == number
    # The broken document counts too, and is refused.
    assert dry.json["count"] - number == done.json["refused"] == (done.status == 1)
    changed = {str(one["_id"]) for one in before if jobs.find_one({"_id": one["_id"]}) != one}
    assert len(changed) == number
    assert set(ids) <= changed


def test_broken_document_is_named_once_and_left_alone(
    command: Command, db: Database, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    plant(jobs)
    ended = command("cancel", "--name", "mail", "--yes")
    assert (ended.status, ended.out) == (1, f"cancelled 2 jobs of {db.name}.monque_jobs\n")
    (line,) = ended.err.splitlines()
    assert "is not a job: it has no nextRunAt" in line
    assert caplog.records == []  # A log without a handler would be printed beside it.
    assert jobs.count_documents({"name": "mail", "status": "pending"}) == 1


@pytest.mark.full
def test_number_is_asked_about_before_anything_changes(
    command: Command, db: Database, jobs: Collection, typed: Callable[[str], None]
) -> None:
    for _ in range(1204):
        put(jobs, "pending", "mail")
    question = f"cancel 1,204 jobs of {db.name}.monque_jobs? [y/N]: "
    for answer in ("n\n", "\n", ""):
        typed(answer)
        ended = command("cancel", "--name", "mail")
        assert (ended.status, ended.out) == (130, "")
        assert ended.err.startswith(question)
        assert ended.err.endswith("Aborted: nothing was changed.\n")
    assert statuses(jobs) == {"pending": 1204}
    typed("y\n")
    ended = command("cancel", "--name", "mail", "--json")
    assert (ended.status, ended.json["count"], ended.err) == (0, 1204, question)
    assert statuses(jobs) == {"cancelled": 1204}


def test_running_jobs_are_counted_before_they_are_deleted(
    command: Command, db: Database, jobs: Collection, typed: Callable[[str], None]
) -> None:
    plant(jobs)
    dry = command("delete", "--name", "mail", "--dry-run")
    assert dry.lines[0] == f"would delete 7 jobs of {db.name}.monque_jobs, 1 of them running, such as:"
    assert command("delete", "--name", "mail", "--dry-run", "--json").json["running"] == 1
    typed("n\n")
    asked = command("delete", "--everything").err
    assert asked.startswith(f"delete 9 jobs of {db.name}.monque_jobs, 1 of them running? [y/N]: ")
    assert jobs.count_documents({}) == 9


@pytest.mark.parametrize(
    ("spread", "seconds", "shown"),
    [((), 30, ", due within 30s"), (("--spread", "1h"), 3600, ", due within 1h"), (("--spread", "0"), 0, "")],
)
def test_retried_selection_falls_due_evenly(
    command: Command, db: Database, jobs: Collection, spread: tuple[str, ...], seconds: float, shown: str
) -> None:
    for _ in range(10):
        put(jobs, "failed")
    begin = now()
    ended = command("retry", "--status", "failed", "--yes", *spread)
    assert (ended.status, ended.out) == (0, f"requeued 10 jobs of {db.name}.monque_jobs{shown}\n")
    due = [(job["nextRunAt"] - begin) / timedelta(seconds=1) for job in jobs.find()]
    assert max(due) < seconds + 10
    assert max(due) - min(due) >= 0.8 * seconds
    assert command("retry", "--status", "failed", "--yes", "--json", *spread).json["spread"] == seconds
    assert "spread" not in command("cancel", "--status", "pending", "--yes", "--json").json


def test_nothing_selected_needs_no_answer(command: Command, db: Database, typed: Callable[[str], None]) -> None:
    typed("")
    for verb, done, kind in (
        ("cancel", "cancelled", "pending job"),
        ("retry", "requeued", "failed or cancelled job"),
        ("delete", "deleted", "job"),
    ):
        out = command(verb, "--name", "mail").out
        assert out == f"{done} 0 jobs of {db.name}.monque_jobs: no {kind} matches\n"
    out = command("retry", "--status", "failed", "--yes").out
    assert out == f"requeued 0 jobs of {db.name}.monque_jobs: no failed job matches\n"
    assert command("retry", "--status", "failed", "--dry-run").out == f"would retry 0 jobs of {db.name}.monque_jobs\n"
    assert command("delete", "--everything", "--yes").status == 0
    assert db.list_collection_names() == []


def test_one_job_is_asked_about_in_the_singular(
    command: Command, db: Database, jobs: Collection, typed: Callable[[str], None]
) -> None:
    put(jobs, "failed")
    typed("y\n")
    ended = command("retry", "--name", "greet")
    assert ended.err == f"retry 1 job of {db.name}.monque_jobs? [y/N]: "
    assert ended.out == f"requeued 1 job of {db.name}.monque_jobs, due within 30s\n"


@pytest.mark.usefixtures("not_a_terminal")
def test_without_a_terminal_nothing_is_changed(command: Command, jobs: Collection) -> None:
    put(jobs, "pending")
    for arguments in (["cancel", "--name", "greet"], ["delete", "--everything"], ["retry", "--name", "x"]):
        ended = command(*arguments)
        assert (ended.status, ended.out) == (2, "")
        assert "without a terminal, give --yes to confirm, or --dry-run" in ended.err
    assert statuses(jobs) == {"pending": 1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cancel",), "give the ids of jobs, or select some, for example with --name, or all with --status pending"),
        (("delete",), "or all with --everything"),
        (("cancel", UNKNOWN, "--name", "x"), "give the ids of jobs or a selection, not both"),
        (("delete", UNKNOWN, "--everything"), "--everything cannot be combined with ids"),
        (("delete", "--name", "x", "--everything"), "--everything cannot be combined with ids"),
        (("cancel", UNKNOWN, "--dry-run"), "--dry-run is for a selection"),
        (("retry", UNKNOWN, "--spread", "1m"), "--spread is for a selection"),
        (("cancel", "--status", "waiting"), "'waiting' is not one of 'pending'"),
        (("cancel", "--status", "completed", "--yes"), "--status completed: a selection can cancel pending jobs only"),
        (("retry", "--status", "pending", "--yes"), "a selection can retry failed or cancelled jobs only"),
        (("cancel", "--older-than", "tomorrow"), "'tomorrow' is neither a length of time before now"),
        (("cancel", "--older-than", "2h", "--newer-than", "1h", "--yes"), "--newer-than="),
        (("cancel", "--fail-reason", "a", "--fail-reason-prefix", "a", "--yes"), "--fail-reason-prefix='a'"),
        (("cancel", "--name", "", "--yes"), "--name='': is empty"),
        (("cancel", "--unique-key", "a", "--yes"), "--unique-key='a': needs a name"),
        (("retry", "--unique-key", "a"), "No such option"),
        (("retry", "--name", "x", "--spread", "soon"), "'soon' is not a length of time"),
        (("reschedule", UNKNOWN), "Missing argument 'WHEN'"),
        (("reschedule", UNKNOWN, "soon"), "'soon' is neither a length of time from now"),
        (("reschedule", UNKNOWN, "9999-12-31"), "--when="),
        (("resume",), "Missing argument 'NAME...'"),
        (("pause", "a name"), "must not contain whitespace"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_arguments_print_the_usage(
    command: Command, jobs: Collection, arguments: tuple[str, ...], said: str
) -> None:
    put(jobs, "pending")
    ended = command(*arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith(f"Usage: trio-monque {arguments[0]}")
    assert said in ended.err
    assert statuses(jobs) == {"pending": 1}


def test_job_that_changes_after_the_question_is_left_alone(
    command: Command, db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed, pending = put(jobs, "pending"), put(jobs, "pending")

    class Answering(Terminal):
        def readline(self, *args: Any) -> str:  # type: ignore[override]
            jobs.update_one({"_id": claimed}, {"$set": {"status": "processing"}})
            return "y\n"

    monkeypatch.setattr(sys, "stdin", Answering())
    ended = command("cancel", "--name", "greet")
    assert ended.err.startswith("cancel 2 jobs of")
    assert (ended.status, ended.out) == (0, f"cancelled 1 job of {db.name}.monque_jobs\n")
    assert [job["_id"] for job in jobs.find({"status": "cancelled"})] == [pending]
