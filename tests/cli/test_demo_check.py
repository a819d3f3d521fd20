"""The demo's check of itself must find what is wrong: that is all it is for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from trio_monque.cli import main
from trio_monque.cli.demo.check import find_problems
from trio_monque.cli.demo.files import Content, Records, RunRecord, measure
from trio_monque.embedded import EmbeddedServer
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.store.types import ObjectId

CREATED = datetime(2026, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "module.py"
    path.write_text("import this\n")
    return path


def settled(file: Path, *, fails_once: bool = False, delay: float = 0.0) -> tuple[Job, list[RunRecord]]:
    """A job that went as it should, and its records."""
    due = CREATED + timedelta(seconds=delay)
    job_id = ObjectId()
    job = Job(
        id=job_id,
        name="digest-file",
        data={"path": str(file), "fails_once": fails_once, "delay": delay},
        status=JobStatus.COMPLETED,
        next_run_at=due + SECOND if fails_once else due,
        fail_count=int(fails_once),
        created_at=CREATED,
        updated_at=due + 3 * SECOND,
        attempts=1 + fails_once,
        started_at=due + 2 * SECOND,
        finished_at=due + 3 * SECOND,
    )
    failed = RunRecord(
        job_id=job_id, attempt=1, instance="demo-1", due_at=due, claimed_at=due, path=str(file), failure="planned"
    )
    last = replace(
        failed,
        attempt=job.attempts,
        due_at=job.next_run_at,
        claimed_at=due + 2 * SECOND,
        content=measure(file),
        failure=None,
    )
    return job, [failed, last] if fails_once else [last]


@pytest.mark.parametrize("delay", [0.0, 2.5])
@pytest.mark.parametrize("fails_once", [False, True])
def test_what_went_well_has_no_problems(file: Path, fails_once: bool, delay: float) -> None:
    job, records = settled(file, fails_once=fails_once, delay=delay)
    assert find_problems([file], [job], records) == []


def wrong_digest(records: list[RunRecord]) -> None:
    records[-1] = replace(records[-1], content=Content("0" * 64, 1, 12))


def wrong_lines(records: list[RunRecord]) -> None:
    content = records[-1].content
    assert content is not None
    records[-1] = replace(records[-1], content=replace(content, lines=2))


def missing_digest(records: list[RunRecord]) -> None:
    del records[-1]


def missing_failure(records: list[RunRecord]) -> None:
    del records[0]


def second_digest_of_the_settled_attempt(records: list[RunRecord]) -> None:
    records.append(records[-1])


def digest_of_an_earlier_attempt(records: list[RunRecord]) -> None:
    records[0] = replace(records[-1], attempt=1)


def digest_of_a_later_attempt(records: list[RunRecord]) -> None:
    records.append(replace(records[-1], attempt=3))


def failure_of_a_later_attempt(records: list[RunRecord]) -> None:
    records[0] = replace(records[0], attempt=3)


def start_before_due(records: list[RunRecord]) -> None:
    records[0] = replace(records[0], claimed_at=records[0].due_at - SECOND)


def start_before_the_delay_was_over(records: list[RunRecord]) -> None:
    records[0] = replace(records[0], due_at=CREATED, claimed_at=CREATED)


def record_of_another_file(records: list[RunRecord]) -> None:
    records[-1] = replace(records[-1], path="/elsewhere.py")


def record_of_an_unknown_job(records: list[RunRecord]) -> None:
    records.append(replace(records[-1], job_id=ObjectId()))


@pytest.mark.parametrize(
    ("manipulate", "said"),
    [
        (wrong_digest, "has the digest 000000000000..."),
        (wrong_lines, "has the digest"),
        (missing_digest, "digests of the attempts: none; the one settled run was attempt 2"),
        (missing_failure, "records of 0 failures, and its job counts 1"),
        (second_digest_of_the_settled_attempt, "digests of the attempts: 2, 2"),
        (digest_of_an_earlier_attempt, "digests of the attempts: 1, 2"),
        (digest_of_a_later_attempt, "digests of the attempts: 2, 3"),
        (failure_of_a_later_attempt, "failures of other attempts"),
        (start_before_due, "(attempt 1) before it was due"),
        (start_before_the_delay_was_over, "(attempt 1) before it was due"),
        (record_of_another_file, "record of another file: /elsewhere.py"),
        (record_of_an_unknown_job, "which is not there"),
    ],
)
def test_a_manipulated_record_is_found(file: Path, manipulate: Callable[[list[RunRecord]], None], said: str) -> None:
    job, records = settled(file, fails_once=True, delay=2.5)
    manipulate(records)
    assert any(said in problem.what for problem in find_problems([file], [job], records))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"status": JobStatus.PENDING}, "is pending instead of completed"),
        ({"status": JobStatus.PROCESSING}, "is processing instead of completed"),
        ({"status": JobStatus.FAILED, "fail_reason": "no"}, "is failed instead of completed: no"),
        ({"attempts": 2}, "the one settled run was attempt 2"),
        ({"fail_count": 1}, "records of 0 failures, and its job counts 1"),
        ({"data": {"path": "", "fails_once": True, "delay": 0.0}}, "was to fail once and did not"),
        ({"started_at": CREATED - SECOND}, "started before it was due"),
    ],
)
def test_a_manipulated_job_is_found(file: Path, changes: dict[str, object], said: str) -> None:
    job, records = settled(file)
    job = replace(job, **changes)  # type: ignore[arg-type]
    job.data["path"] = str(file)
    assert any(said in problem.what for problem in find_problems([file], [job], records))


def test_a_file_without_a_job_and_one_with_two_are_found(file: Path) -> None:
    (first, records), (second, more) = settled(file), settled(file)
    assert [problem.what for problem in find_problems([file], [], [])] == ["has 0 jobs instead of one"]
    both = find_problems([file], [first, second], [*records, *more])
    assert [problem.what for problem in both] == ["has 2 jobs instead of one"]


def test_a_job_of_a_file_that_was_not_asked_for_is_found(file: Path) -> None:
    job, records = settled(file)
    assert [problem.what for problem in find_problems([], [job], records)] == ["has a job, but was not to have one"]


def nothing_stored(_: RunRecord) -> Sequence[RunRecord]:
    return ()


def falsified(record: RunRecord) -> Sequence[RunRecord]:
    content = record.content and replace(record.content, digest="0" * 64)
    return [replace(record, content=content)]


def doubled(record: RunRecord) -> Sequence[RunRecord]:
    return [record, replace(record, attempt=record.attempt + 10)]


@pytest.mark.full
@pytest.mark.parametrize("stored", [nothing_stored, falsified, doubled])
def test_the_demo_ends_with_one_and_a_table_of_what_is_wrong(
    stored: Callable[[RunRecord], Sequence[RunRecord]],
    mongod: EmbeddedServer,
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Records.store
    monkeypatch.setattr(Records, "store", lambda self, record: [store(self, one) for one in stored(record)])
    assert main(["demo", "--plain", "--uri", mongod.uri, str(file.parent)]) == 1
    out = capsys.readouterr().out
    assert "THINGS ARE WRONG" in out
    assert "  module.py  has " in out
