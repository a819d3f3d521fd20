"""`trio-monque enqueue`, `schedule` and `preview`, as an operator types them."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.support.store import handle
from trio_monque import Monque
from trio_monque.cli.program import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job_parts import JobLimits, Schedule
from trio_monque.options_and_defaults import LARGEST_PAYLOAD
from trio_monque.store.driver.types import Collection, Database
from trio_monque.store.jobs import indexes

from .command_support import Command, command_of
from .doctor_support import enter, now


@pytest.fixture
def command(mongod: EmbeddedServer, db: Database, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_of(mongod, db, capsys)


@pytest.fixture
def fleet(db: Database) -> None:
    enter(db, "worker-1", "send", "report")


# --- enqueue ---


def test_job_is_stored_as_a_program_would_store_it(command: Command, db: Database, fleet: None) -> None:
    ended = command("enqueue", "send", '{"to": "ada@example.org", "at": {"$date": "2030-01-01T00:00:00Z"}}')
    (job,) = Monque(db).sync.get_jobs()
    assert (ended.status, ended.err) == (0, "")
    assert ended.out == f"enqueued send {job.id}, due now\n"
    assert job.data["to"] == "ada@example.org"
    assert job.data["at"].replace(tzinfo=UTC) == datetime(2030, 1, 1, tzinfo=UTC)
    assert {indexes.name_of(one) for one in indexes.ALL} <= db["monque_jobs"].index_information().keys()


def test_options_of_a_job_are_stored(command: Command, db: Database, fleet: None) -> None:
    ended = command(
        *("enqueue", "send", "--at", "2h30m", "--unique-key", "schlüssel", "--max-attempts", "3", "--max-rescues", "1"),
        *("--timeout", "5m", "--meta", "tenant=acme", "--meta", "note=a=b", "--json"),
    )
    (job,) = Monque(db).sync.get_jobs()
    assert timedelta(hours=2.4) < job.next_run_at - now() < timedelta(hours=2.6)
    assert (job.unique_key, job.limits) == ("schlüssel", JobLimits(max_attempts=3, max_rescues=1, timeout=300.0))
    assert job.meta == {"tenant": "acme", "note": "a=b"}
    assert job.data is None
    assert (ended.status, ended.json["id"], ended.json["is_new"]) == (0, str(job.id), True)
    assert "schlüssel" in ended.out


def test_moment_of_a_job_may_be_absolute_or_past(command: Command, fleet: None) -> None:
    assert ", due 2031-01-31 11:00:00Z (in " in command("enqueue", "send", "--at", "2031-01-31T12:00+01:00").out
    assert command("enqueue", "send", "--at", "2020-01-31").out.endswith(", due now\n")


def test_job_may_have_to_start_by_a_moment(command: Command, db: Database, fleet: None) -> None:
    added = command("enqueue", "send", "--start-by", "2h")
    (job,) = Monque(db).sync.get_jobs()
    assert job.limits.start_by is not None
    assert timedelta(hours=1.9) < job.limits.start_by - now() < timedelta(hours=2.1)
    shown = command("show", str(job.id))
    assert (added.status, shown.status) == (0, 0)
    assert "start by" in shown.out


def test_job_that_has_the_key_may_be_replaced_or_debounced(
    command: Command, db: Database, jobs: Collection, fleet: None
) -> None:
    debounce = ("enqueue", "send", "--unique-key", "k", "--on-conflict", "debounce")
    first = command(*debounce, "1", "--at", "1m", "--max-wait", "90s", "--json").json
    second = command(*debounce, "2", "--at", "2h", "--max-wait", "90s")
    assert second.out.startswith(f"replaced send {first['id']}, due ")
    (job,) = Monque(db).sync.get_jobs()
    assert job.debounced_since is not None
    assert (job.data, job.next_run_at) == (2, job.debounced_since + timedelta(seconds=90))
    jobs.update_one({}, {"$set": {"status": "processing"}})
    again = command("enqueue", "send", "3", "--unique-key", "k", "--on-conflict", "replace")
    assert again.out == f"send {first['id']} is running: it runs again afterwards, with this data\n"
    shown = command("show", first["id"])
    assert "data of the next run\n  3\n" in shown.out
    assert "due again after this run" in shown.out


def test_key_in_use_shows_the_job_that_has_it(command: Command, jobs: Collection, fleet: None) -> None:
    first = command("enqueue", "send", "1", "--unique-key", "k", "--json").json
    ended = command("enqueue", "send", "2", "--unique-key", "k")
    assert ended.status == 0
    assert ended.out == f"send {first['id']} has this key already (pending): nothing was enqueued\n"
    again = command("enqueue", "send", "2", "--unique-key", "k", "--json").json
    assert (again["id"], again["data"], again["is_new"]) == (first["id"], 1, False)
    assert jobs.count_documents({}) == 1


@pytest.mark.parametrize(
    ("given", "data"),
    [
        (("5",), 5),
        (("null",), None),
        (('"text"',), "text"),
        (('"Grüße, 世界 🎉"',), "Grüße, 世界 🎉"),
        (("--", "-5"), -5),
        (("[1, true, {}]",), [1, True, {}]),
        (('{"$oid": "65f1c0ffee0123456789abcd"}',), {"$oid": "65f1c0ffee0123456789abcd"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_data_are_json(command: Command, fleet: None, given: tuple[str, ...], data: object) -> None:
    assert command("enqueue", "--json", "send", *given).json["data"] == data


def test_data_come_from_a_file_or_from_standard_input(
    command: Command, fleet: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "data.json"
    file.write_text('{"name": "Zoë"}\n', encoding="utf-8")
    assert command("enqueue", "send", "--data-file", str(file), "--json").json["data"] == {"name": "Zoë"}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO('["Zoë"]'.encode())))
    assert command("enqueue", "send", "--data-file", "-", "--json").json["data"] == ["Zoë"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("send", "ada"), "a text needs its quotation marks: '\"text\"'"),
        (("send", '{"to": }'), "is not JSON (Expecting value: line 1 column 8"),
        (("send", '{"$date": "yesterday"}'), "is not extended JSON"),
        (("send", "--at", "tomorrow"), "'tomorrow' is neither a length of time from now"),
        (("send", "--at", "9999-12-31"), "--at="),
        (("send", "--at", "99999999999d"), "is too long"),
        (("send", "--at", "2h", "--start-by", "1h"), "--start-by="),
        (("send", "--unique-key", "k", "--on-conflict", "debounce"), "needs a delay"),
        (("send", "--unique-key", "k", "--max-wait", "1m"), "--max-wait=60.0: is for"),
        (("send", "--timeout", "0"), "--timeout=0.0: must be greater than 0"),
        (("send", "--timeout", "soon"), "'soon' is not a length of time"),
        (("send", "--max-attempts", "-1"), "--max-attempts=-1: must be at least 0"),
        (("send", "--meta", "tenant"), "'tenant' must be KEY=VALUE"),
        (("send", "--meta", "a=1", "--meta", "a=2"), "--meta was given twice for the key 'a'"),
        (("send", "--meta", "a.b=1"), "--meta="),
        (("send a mail",), "name='send a mail': must not contain whitespace"),
        (("send", "--unique-key", " "), "unique_key=' ': must have 1 to 1024 characters"),
        (("send", "1", "--data-file", "-"), "give DATA or --data-file, not both"),
        (("send", "--data-file", "no/such/file"), "no/such/file"),
        (("send", "--collection", "a$"), "--collection='a$'"),
        (("send", "-5"), "No such option '-5'"),
        (("send", "--database", "a b"), "--database='a b'"),
        (("send", "--database", "\udcff"), "--database='\\udcff'"),  # As Python reads an argument that is not UTF-8.
        (("\udcff",), "name='\\udcff'"),
        (("send", '"\udcff"'), "is not extended JSON"),
        (("send", "--meta", "a=\udcff"), "--meta="),
        ((), "Missing argument 'NAME'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_job_prints_the_usage_and_stores_nothing(
    command: Command, db: Database, arguments: tuple[str, ...], said: str
) -> None:
    ended = command("enqueue", *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("Usage: trio-monque enqueue")
    assert said in ended.err
    assert db.list_collection_names() == []


def test_invalid_file_is_named(command: Command, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    for content, said in ((b"\xff", "cannot read --data-file"), (b"{", "is not JSON"), (b"", "--data-file=")):
        file.write_bytes(content)
        ended = command("enqueue", "send", "--data-file", str(file))
        assert ended.status == 2
        assert said in ended.err


def test_data_that_are_too_large_end_in_one_line(command: Command, db: Database, tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    file.write_text(json.dumps("x" * LARGEST_PAYLOAD), encoding="utf-8")
    ended = command("enqueue", "send", "--data-file", str(file))
    assert ended.status == 2
    assert len(ended.err.splitlines()) == 1
    assert f"more than the {LARGEST_PAYLOAD} allowed" in ended.err
    assert "monque_jobs" not in db.list_collection_names()


def test_misspelt_and_paused_names_are_warned_about_after_the_job_is_stored(
    command: Command, db: Database, jobs: Collection, caplog: pytest.LogCaptureFixture
) -> None:
    assert "warning: No live instance has an entry" in command("enqueue", "send").err
    enter(db, "worker-1", "send", "report")
    enter(db, "worker-2", "sned", heartbeat_ago=3600)
    assert command("enqueue", "send").err == ""
    ended = command("enqueue", "sned")
    assert ended.status == 0
    assert ended.err == "warning: No live instance runs the name 'sned'. One runs 'send': is the name misspelt?\n"
    assert caplog.messages == []  # Python prints log records to the same terminal: each warning appears once.
    db["monque_jobs.instances"].insert_one({"_id": "pause:send", "by": "dana"})
    assert command("enqueue", "send").err == "warning: 'send' is paused by dana: `trio-monque resume send`\n"
    assert jobs.count_documents({}) == 4


def test_password_is_not_printed(mongod: EmbeddedServer, capsys: pytest.CaptureFixture[str]) -> None:
    uri = mongod.uri.replace("mongodb://", "mongodb://ada:hunter2@").replace("/?", "/shop?")
    for arguments in (["enqueue", "send"], ["cancel", "--name", "x", "--yes"], ["pause", "send"]):
        assert run_program([*arguments, "--uri", uri]) == 2
    printed = capsys.readouterr()
    assert "check the user, the password" in printed.err
    assert "hunter2" not in printed.err + printed.out


# --- schedule ---

BERLIN = ("--timezone", "Europe/Berlin", "--unique-key", "report")


def test_schedule_is_shown_in_words_and_with_its_next_runs(command: Command, db: Database, fleet: None) -> None:
    ended = command("schedule", "0 9 * * 1-5", "report", '{"to": "Zoë"}', *BERLIN, "--meta", "a=b")
    (job,) = Monque(db).sync.get_jobs()
    assert (ended.status, ended.err) == (0, "")
    assert ended.lines[:2] == [f"scheduled report {job.id}", "At 09:00 on Monday through Friday, Europe/Berlin time."]
    assert ended.lines[2].split() == ["UTC", "Europe/Berlin"]
    first, *_ = runs = ended.lines[3:]
    assert len(runs) == 3
    assert first.split()[:2] == f"{job.next_run_at:%Y-%m-%d %H:%M:%SZ}".split()
    assert all(run.split()[3].startswith("09:00:00+0") for run in runs)
    assert (job.schedule, job.unique_key) == (Schedule(cron="0 9 * * 1-5", timezone="Europe/Berlin"), "report")
    assert (job.data, job.meta) == ({"to": "Zoë"}, {"a": "b"})


def test_schedule_with_a_key_is_kept_or_updated(command: Command, db: Database, fleet: None) -> None:
    first = command("schedule", "@daily", "report", "--unique-key", "r", "--json")
    assert (first.json["is_new"], first.json["repeat_interval"]) == (True, "0 0 * * *")
    ended = command("schedule", "@hourly", "report", "--unique-key", "r")
    assert "has this key already (pending); it was kept; --on-conflict update changes it" in ended.lines[0]
    assert ended.lines[1] == "At 00:00 every day, UTC."
    ended = command("schedule", "@hourly", "report", "--unique-key", "r", "--on-conflict", "update", "--version", "2")
    assert "has this key already (pending); it is now:" in ended.lines[0]
    again = command("schedule", "@hourly", "report", "--unique-key", "r", "--on-exhausted", "fail", "--json").json
    assert (again["id"], again["repeat_interval"]) == (first.json["id"], "0 * * * *")
    assert (again["is_new"], again["schedule_version"], again["on_exhausted"]) == (False, 2, None)
    assert db["monque_jobs"].count_documents({}) == 1


def test_key_of_a_schedule_that_another_job_has_is_reported(command: Command, jobs: Collection, fleet: None) -> None:
    Monque(jobs.database).sync.enqueue("report", unique_key="r")
    assert command("schedule", "@daily", "report", "--unique-key", "r").lines[1] == "It does not recur."
    jobs.update_one({}, {"$set": {"repeatInterval": "hourly"}})
    ended = command("schedule", "@daily", "report", "--unique-key", "r")
    assert ended.status == 0
    assert ended.err.startswith("warning: cron expression 'hourly'")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("* * * *", "report"), "trio-monque: cron expression '* * * *': it has 4 fields"),
        (("@daily", "report", "--timezone", "Berlin"), "its time zone 'Berlin' is unknown"),
        (("report", "0 9 * * *"), "the expression is the first argument and the name the second"),
        (("@daily", "report", "--on-conflict", "update"), "--on-conflict update needs --unique-key"),
        (("@daily", "report", "--on-conflict", "replace"), "'replace' is not one of 'keep', 'update'"),
        (("@daily", "report", "--version", "0"), "--version=0: must be a whole number from 1"),
        (("@daily", "report", "{"), "is not JSON"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_invalid_schedule_stores_nothing(command: Command, db: Database, arguments: tuple[str, ...], said: str) -> None:
    ended = command("schedule", *arguments)
    assert (ended.status, ended.out) == (2, "")
    assert said in ended.err
    assert db.list_collection_names() == []


# --- preview ---


def test_preview_needs_no_database(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MONQUE_URI", raising=False)
    assert run_program(["preview", "0 9 * * *", "--timezone", "America/New_York", "--count", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "At 09:00 every day, America/New_York time."
    assert [line.split()[3][:8] for line in lines[2:]] == ["09:00:00", "09:00:00"]
    assert run_program(["preview", "@daily"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["At 00:00 every day, UTC.", "UTC"]
    assert len(lines) == 7
    assert run_program(["preview", "@daily", "--json", "--count", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["expression"], found["timezone"], len(found["runs"])) == ("0 0 * * *", "UTC", 1)
    assert datetime.fromisoformat(found["runs"][0]) > datetime.now(UTC)
    assert found["warnings"] == []


def test_preview_reads_a_moment_without_an_offset_in_utc_whatever_the_zone_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["preview", "30 0 * * *", "--timezone", "Europe/Berlin", "--count", "1", "--json", "--after"]
    assert run_program([*arguments, "2027-03-26"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == ["2027-03-26T23:30:00.000Z"]
    assert run_program([*arguments, "2027-03-26T00:00+01:00"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"] == ["2027-03-25T23:30:00.000Z"]


def test_preview_begins_where_it_is_asked_to(capsys: pytest.CaptureFixture[str]) -> None:
    """To see what a change to or from summer time does, months ahead."""
    arguments = ["preview", "30 2 * * *", "--timezone", "Europe/Berlin", "--count", "2"]
    assert run_program([*arguments, "--after", "2027-03-27T12:00"]) == 0
    runs = [line.split("  ")[1] for line in capsys.readouterr().out.splitlines()[2:]]
    assert runs == ["2027-03-28 03:00:00+0200", "2027-03-29 02:30:00+0200"]
    assert run_program(["preview", "@daily", "--json", "--count", "1", "--after", "30d"]) == 0
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert timedelta(days=29, hours=23) < datetime.fromisoformat(run) - datetime.now(UTC) <= timedelta(days=31)
    assert run_program([*arguments, "--after", "tomorrow"]) == 2
    assert "'tomorrow' is neither a length of time from now" in capsys.readouterr().err


def test_step_that_never_steps_is_warned_about(
    command: Command, fleet: None, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    warning = "the step of */90 in the minute field is larger than its range, so it matches only 0"
    assert run_program(["preview", "*/90 * * * *"]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("At the start of every hour, UTC.")
    assert f"warning: {warning}" in printed.err
    assert run_program(["preview", "*/90 * * * *", "--json"]) == 0
    [only] = json.loads(capsys.readouterr().out)["warnings"]
    assert only.startswith(warning)
    # A program that declares such a schedule logs it.
    command("schedule", "*/90 * * * *", "sync")
    assert any(f"schedule sync: {warning}" in record.getMessage() for record in caplog.records)


def test_invalid_expression_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (["61 * * * *"], "its minute '61' is not understood"),
        (["* * * * *", "--timezone", "Mars"], "its time zone 'Mars' is unknown"),
        (["* * * * *", "--count", "0"], "0 is not in the range"),
        (["0 0 30 2 *"], "cron expression '0 0 30 2 *'"),
    ):
        assert run_program(["preview", *arguments]) == 2
        printed = capsys.readouterr()
        assert said in printed.err
        assert printed.out == ""


def test_indexes_that_exist_otherwise_end_in_one_line(command: Command, db: Database, fleet: None) -> None:
    db["monque_jobs"].create_index([("name", 1)], name=indexes.name_of(indexes.CLAIM))
    ended = command("enqueue", "send")
    assert ended.status == 2
    assert len(ended.err.splitlines()) == 1
    assert "could not create the indexes" in ended.err
    assert handle(db).collection.count_documents({}) == 0
