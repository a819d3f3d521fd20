"""`trio-monque cancel`, `retry`, `delete`, `reschedule`, `pause` and `resume`, as an operator types them."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from tests.support.bulk_calls import DAY, put, statuses
from tests.support.programs import uri_of_database
from tests.support.store import claim, handle
from trio_monque import Monque, SyncMonque
from trio_monque.cli.jobs import acting_in_bulk
from trio_monque.client import bulk
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import JobStatus
from trio_monque.jobs.job_selector import JobSelector
from trio_monque.store import bulk_changes, indexes, selection_counts
from trio_monque.store.types import Collection, Database
from trio_monque.testing import fail_next

from .command_support import Command, command_of
from .demo_process import environment
from .doctor_support import enter, now


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


# --- By ids ---


def test_each_id_is_tried_and_errors_are_one_line_each(command: Command, db: Database, jobs: Collection) -> None:
    pending, completed, cancelled = (put(jobs, one) for one in ("pending", "completed", "cancelled"))
    broken = jobs.insert_one({"name": "greet", "status": "pending"}).inserted_id
    ended = command("cancel", str(completed), UNKNOWN, "greet", str(broken), str(pending), str(pending), str(cancelled))
    assert ended.status == 1
    assert ended.lines == [f"cancelled greet {pending}", f"cancelled greet {cancelled}"]
    first, second, third, fourth = ended.err.splitlines()
    assert first == f"trio-monque: cannot cancel job {completed}: its status is 'completed'"
    assert second == f"trio-monque: cannot cancel job {UNKNOWN}: {db.name}.monque_jobs has no job with this id"
    assert third.endswith(
        "cannot cancel job greet: an id has 24 hexadecimal digits; by a name they are selected with --name greet"
    )
    assert fourth.startswith(f"trio-monque: document {broken} is not a job")
    assert statuses(jobs) == {"completed": 1, "cancelled": 2, "pending": 1}


def test_run_is_asked_to_end(command: Command, db: Database, jobs: Collection) -> None:
    (job,) = claim(handle(db), 1)
    ended = command("cancel", str(job.id))
    assert (ended.status, ended.out) == (0, f"asked the run of greet {job.id} to end\n")
    found = Monque(db).sync.get_job(job.id)
    assert found is not None
    assert found.cancel_requested_at is not None


def test_retry_and_delete_and_reschedule_by_id(command: Command, db: Database, jobs: Collection) -> None:
    job_id = put(jobs, "failed", failCount=10)
    assert command("retry", str(job_id)).lines == [f"requeued greet {job_id}"]
    ended = command("reschedule", str(job_id), "2031-01-31T12:00+01:00")
    assert ended.status == 0
    assert ended.out.startswith(f"greet {job_id} is due 2031-01-31 11:00:00Z (in ")
    assert command("reschedule", str(job_id), "2h").out.endswith("(in 2h)\n")
    found = Monque(db).sync.get_job(job_id)
    assert found is not None
    assert (found.status, found.fail_count) == ("pending", 0)
    assert timedelta(hours=1.9) < found.next_run_at - now() < timedelta(hours=2.1)
    assert command("delete", str(job_id)).lines == [f"deleted {job_id}"]
    assert jobs.count_documents({}) == 0
    for again in (("delete", str(job_id)), ("reschedule", str(job_id), "2h")):
        ended = command(*again)
        assert (ended.status, ended.out) == (1, "")
        assert "has no job with this id" in ended.err


def test_json_has_the_jobs_and_the_errors(command: Command, jobs: Collection) -> None:
    job_id = put(jobs, "failed", name="grüße")
    found = command("retry", "--json", str(job_id), UNKNOWN).json
    assert (found["action"], found["count"]) == ("retry", 1)
    assert [(one["id"], one["name"], one["status"]) for one in found["jobs"]] == [(str(job_id), "grüße", "pending")]
    assert [one["id"] for one in found["errors"]] == [UNKNOWN]
    assert command("delete", "--json", str(job_id)).json["jobs"] == [{"id": str(job_id)}]


def test_key_in_use_refuses_one_and_not_the_others(command: Command, db: Database, jobs: Collection) -> None:
    indexes.ensure(handle(db))
    Monque(db).sync.enqueue("greet", unique_key="k")
    refused, other = put(jobs, "failed", uniqueKey="k"), put(jobs, "failed")
    ended = command("retry", str(refused), str(other))
    assert (ended.status, ended.lines) == (1, [f"requeued greet {other}"])
    assert "has its unique key" in ended.err
    ended = command("retry", "--status", "failed", "--yes")
    assert (ended.status, ended.lines) == (1, [f"requeued 0 jobs of {db.name}.monque_jobs"])
    assert f"cannot retry {refused}: another pending or processing job has its unique key" in ended.err


def test_lost_connection_ends_the_ids_after_what_is_done_was_printed(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [str(put(jobs, "pending")) for _ in range(3)]
    cancel = SyncMonque.cancel_job

    def losing(self: SyncMonque, job_id: Any) -> Any:
        if job_id == ids[1]:
            with fail_next(self, AutoReconnect("gone"), times=None):
                return cancel(self, job_id)
        return cancel(self, job_id)

    monkeypatch.setattr(SyncMonque, "cancel_job", losing)
    ended = command("cancel", *ids)
    assert (ended.status, ended.lines) == (2, [f"cancelled greet {ids[0]}"])
    assert "gone" in ended.err
    assert statuses(jobs) == {"cancelled": 1, "pending": 2}

    def interrupted(self: SyncMonque, job_id: Any) -> Any:
        if job_id == ids[2]:
            raise KeyboardInterrupt
        return cancel(self, job_id)

    monkeypatch.setattr(SyncMonque, "cancel_job", interrupted)
    ended = command("cancel", *ids)
    assert (ended.status, ended.lines) == (130, [f"cancelled greet {one}" for one in ids[:2]])
    assert ended.err == f"interrupted at {ids[2]}, which may be done too\n"


# --- A selection ---


def plant(jobs: Collection) -> None:
    put(jobs, "pending", "mail")
    put(jobs, "pending", "mail", createdAt=DAY + timedelta(days=100))
    put(jobs, "pending", "grüße")
    put(jobs, "processing", "mail")
    put(jobs, "completed", "mail")
    put(jobs, "failed", "mail", failReason="TimeoutError: bank")
    put(jobs, "failed", "report", failReason="ValueError: TimeoutError")
    put(jobs, "cancelled", "mail")
    jobs.insert_one({"name": "mail", "status": "pending", "createdAt": DAY})


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


def test_broken_document_is_named_once_and_left_alone(command: Command, db: Database, jobs: Collection) -> None:
    plant(jobs)
    ended = command("cancel", "--name", "mail", "--yes")
    assert (ended.status, ended.out) == (1, f"cancelled 2 jobs of {db.name}.monque_jobs\n")
    (line,) = ended.err.splitlines()
    assert "is not a job: it has no nextRunAt" in line
    assert jobs.count_documents({"name": "mail", "status": "pending"}) == 1


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


def test_nothing_selected_needs_no_answer(command: Command, db: Database, typed: Callable[[str], None]) -> None:
    typed("")
    assert command("cancel", "--name", "mail").out == f"cancelled 0 jobs of {db.name}.monque_jobs\n"
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
    assert ended.out == f"requeued 1 job of {db.name}.monque_jobs\n"


@pytest.mark.usefixtures("not_a_terminal")
def test_without_a_terminal_nothing_is_changed(command: Command, jobs: Collection) -> None:
    put(jobs, "pending")
    for arguments in (["cancel", "--name", "greet"], ["delete", "--everything"], ["retry", "--name", "x"]):
        ended = command(*arguments)
        assert (ended.status, ended.out) == (2, "")
        assert "without a terminal, give --yes to do it, or --dry-run" in ended.err
    assert statuses(jobs) == {"pending": 1}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("cancel",), "give the ids of jobs, or select some, for example with --name, or all with --status pending"),
        (("delete",), "or all with --everything"),
        (("cancel", UNKNOWN, "--name", "x"), "give the ids of jobs or a selection, not both"),
        (("delete", UNKNOWN, "--everything"), "--everything contradicts the ids"),
        (("delete", "--name", "x", "--everything"), "--everything contradicts the ids"),
        (("cancel", UNKNOWN, "--dry-run"), "--dry-run is for a selection"),
        (("retry", UNKNOWN, "--spread", "1m"), "--spread is for a selection"),
        (("cancel", "--status", "waiting"), "'waiting' is not one of 'pending'"),
        (("cancel", "--status", "completed", "--yes"), "--status completed: a selection can cancel pending jobs only"),
        (("retry", "--status", "pending", "--yes"), "a selection can retry failed or cancelled jobs only"),
        (("cancel", "--older-than", "tomorrow"), "'tomorrow' is neither a length of time before now"),
        (("cancel", "--older-than", "2h", "--newer-than", "1h", "--yes"), "--newer-than="),
        (("cancel", "--fail-reason", "a", "--fail-reason-prefix", "a", "--yes"), "--fail-reason-prefix='a'"),
        (("cancel", "--name", "", "--yes"), "--name='': is empty"),
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


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "MOST_IN_A_BATCH", 10)


Choose = Callable[..., bulk_changes.Chosen]


def in_third_batch(monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> None:
    """Call `then` in the middle of the third batch of the next bulk action."""
    choose: Choose = bulk_changes.choose
    calls = []

    def counted(*args: Any, **kwargs: Any) -> bulk_changes.Chosen:
        calls.append(args)
        if len(calls) == 3:
            then()
        return choose(*args, **kwargs)

    monkeypatch.setattr(bulk_changes, "choose", counted)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_selection_after_its_batch_and_its_number_is_printed(
    command: Command, db: Database, jobs: Collection, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    for _ in range(50):
        put(jobs, "pending")
    before = signal.getsignal(number)
    in_third_batch(monkeypatch, lambda: os.kill(os.getpid(), number))
    ended = command("cancel", "--name", "greet", "--yes")
    assert (ended.status, ended.out) == (130, f"cancelled 30 jobs of {db.name}.monque_jobs\n")
    assert ended.err == "interrupted: the rest of the selection is unchanged\n"
    assert statuses(jobs) == {"cancelled": 30, "pending": 20}
    assert signal.getsignal(number) == before


@pytest.mark.usefixtures("small_batches")
def test_second_ctrl_c_ends_a_selection_within_its_batch(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        put(jobs, "pending")

    def twice() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    in_third_batch(monkeypatch, twice)
    ended = command("cancel", "--name", "greet", "--yes", "--json")
    assert (ended.status, ended.json["count"], ended.json["interrupted"]) == (130, 20, True)
    assert "more may be cancelled; the rest of the selection is unchanged" in ended.err
    assert statuses(jobs) == {"cancelled": 20, "pending": 30}


@pytest.mark.usefixtures("small_batches")
def test_lost_connection_in_a_selection_says_how_many_are_done(
    command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(50):
        put(jobs, "pending")
    call = SyncMonque.cancel_jobs

    def losing(self: SyncMonque, **options: Any) -> Any:
        on_progress = options["on_progress"]

        def losing_then(result: Any) -> None:
            on_progress(result)
            if result.count == 20:
                fail_next(self, AutoReconnect("gone"), times=None)

        return call(self, **{**options, "on_progress": losing_then})

    monkeypatch.setattr(SyncMonque, "cancel_jobs", losing)
    ended = command("cancel", "--name", "greet", "--yes")
    assert (ended.status, ended.out) == (2, "")
    assert len(ended.err.splitlines()) == 1
    assert "could not cancel all of the jobs: 20 are done, and 0 may be" in ended.err


@pytest.mark.usefixtures("small_batches")
def test_progress_is_shown_in_a_terminal(command: Command, jobs: Collection, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(20):
        put(jobs, "pending")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    ended = command("cancel", "--name", "greet", "--yes")
    assert ended.err.startswith("\r10 cancelled ...\r20 cancelled ...")
    assert ended.err.endswith("\r\033[K")


# --- pause and resume ---


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


# --- The count ---


def test_count_beyond_a_bound_is_a_lower_bound(db: Database, jobs: Collection) -> None:
    for number in range(10):
        put(jobs, "failed", "odd" if number % 2 else "even", createdAt=DAY + timedelta(days=number))
    indexes.ensure(handle(db))

    def count(most_counted: int = 100, most_read: int = 100, **selection: Any) -> str:
        selector = JobSelector(**selection)
        chosen = selector.among(tuple(JobStatus))
        found = selection_counts.count_selected(handle(db), selector, chosen, most_counted, most_read)
        return f"{found.number}{'+' if found.is_capped else ''}"

    late = datetime(2026, 1, 8, tzinfo=UTC)
    assert count() == count(status="failed") == "10"
    assert count(most_counted=9) == count(status="failed", most_counted=9) == "9+"
    assert count(most_counted=10) == "10"
    assert count(name="odd", most_counted=4) == "4+"
    assert count(older_than=late) == "7"
    assert count(older_than=late, most_read=1) == "7"  # The ages alone need no documents.
    assert count(older_than=late, most_counted=6) == "6+"
    assert count(status="failed", older_than=late, most_read=7) == "7"  # Along the ages.
    assert count(status="failed", older_than=late, most_read=6) == "6+"
    assert count(name="odd", older_than=late, most_read=5) == "3"  # Along the names.
    assert count(name="odd", older_than=late, most_read=4) in ("2+", "3+")
    assert count(status="failed", fail_reason="x", most_read=9) == "0+"
    assert count(status="failed", fail_reason="x", most_read=10) == "0"


def test_count_is_shown_as_what_it_is() -> None:
    most = selection_counts.MOST_COUNTED
    shown = [
        str(selection_counts.SelectionCount(number, is_capped))
        for number, is_capped in ((1204, False), (most, False), (most, True), (1204, True), (0, True))
    ]
    assert shown == ["1,204", "100,000", "more than 100,000", "at least 1,204", "an unknown number of"]


# --- As processes ---


def run(mongod: EmbeddedServer, db: Database, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trio_monque", *arguments],
        env=environment(MONQUE_URI=uri_of_database(mongod.uri, db.name)),
        text=True,
        check=False,
        timeout=50,
        **{"capture_output": True, **options},
    )


@pytest.mark.full
def test_commands_work_as_processes_without_a_terminal(mongod: EmbeddedServer, db: Database, jobs: Collection) -> None:
    ran = run(mongod, db, "enqueue", "send", "--data-file", "-", input='"Zoë"')
    assert (ran.returncode, ran.stdout.startswith("enqueued send ")) == (0, True)
    ran = run(mongod, db, "cancel", "--name", "send", stdin=subprocess.DEVNULL)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert statuses(jobs) == {"pending": 1}
    ran = run(mongod, db, "cancel", "--name", "send", "--yes")
    assert (ran.returncode, ran.stdout) == (0, f"cancelled 1 job of {db.name}.monque_jobs\n")


@pytest.mark.full
def test_reader_of_the_output_may_leave_and_the_jobs_are_changed_all_the_same(
    mongod: EmbeddedServer, db: Database, jobs: Collection
) -> None:
    ids = [str(put(jobs, "pending")) for _ in range(3)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as output:
        ran = run(mongod, db, "cancel", *ids, capture_output=False, stdout=output, stderr=subprocess.PIPE)
    assert (ran.returncode, ran.stderr) == (141, "")
    assert statuses(jobs) == {"cancelled": 3}
