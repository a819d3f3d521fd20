"""Why a job does not run now: each reason has its sentence."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest
from bson import ObjectId

from tests.support.jobs_in_memory import with_flat
from trio_monque.cli.jobs.why_not_now import sentences_of
from trio_monque.diagnosis.reasons import Circumstances, no_instance_runs, reasons_of
from trio_monque.jobs.claim_stamps_and_fences import ClaimStamp
from trio_monque.jobs.error_history import MOST_ERRORS
from trio_monque.jobs.instance import MOST_NAMES, Instance, LastBlock
from trio_monque.jobs.job import Job, JobStatus
from trio_monque.jobs.job_parts import NO_CLAIM, ChildOf, NurseryScope
from trio_monque.jobs.name_pause import NamePause

NOW: Final = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID: Final = ObjectId("65f1c0ffee0123456789abcd")
PARENT: Final = ObjectId("65f1c0ffee0123456789abce")


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def a_job(status: str = "pending", **fields: Any) -> Job:
    known = {"next_run_at": ago(90), "created_at": ago(3600), "updated_at": ago(90), "data": None, "fail_count": 0}
    job = Job(id=ID, name="mail", next_run_at=NOW, created_at=NOW, updated_at=NOW, status=JobStatus(status))
    return with_flat(job, **{**known, **fields})


def claimed(silent: float, *, is_ours: bool = True, **fields: Any) -> Job:
    mark = ClaimStamp.new("w1", ago(60), 10.0, "x")
    token = {"claim_token": mark.claim_token, "renewed_at": ago(silent)} if is_ours else {}
    life = {"last_heartbeat": ago(silent), "heartbeat_interval": 10.0}
    return a_job("processing", claimed_by="w1", locked_at=ago(60), **life, **token, **fields)


def an_instance(instance_id: str = "w1", *names: str, **fields: Any) -> Instance:
    known = {"incarnation": "1", "host": "web-1", "pid": 4711, "started_at": ago(600), "last_heartbeat": ago(1)}
    return Instance(**{"id": instance_id, "names": names or ("mail",), "heartbeat_interval": 10.0, **known, **fields})


met: Final = set[tuple[str, frozenset[str]]]()
"""The kinds of reasons that the tests have met, with the names of their values."""


def sentences(job: Job, *instances: Instance, **about: Any) -> str:
    reasons = reasons_of(job, Circumstances(now=NOW, instances=instances, most_ahead=100, **about))
    met.update((one.kind, frozenset(one.values)) for one in reasons)
    return " ".join(sentences_of(reasons, job))


def in_one_line(text: str) -> str:
    return " ".join(text.split())


RUNS: Final = an_instance(held_by_name={"mail": 3}, held=3)
FULL: Final = an_instance(held_by_name={"mail": 3}, held=3, slots=3)
OVERDUE: Final = an_instance(held_by_name={"mail": 1}, held=1, slots=3, overdue_by_name={"mail": 2})
DRAINS: Final = an_instance("w3", "mail", draining=True, slots=9)

PENDING: Final = {
    "delayed": (a_job(next_run_at=ago(-3900)), (RUNS,), {}, "It is due at 2026-01-01 13:05:00Z, in 1h 5m."),
    "failed before": (
        a_job(next_run_at=ago(-5), fail_count=2),
        (RUNS,),
        {},
        "2 failed attempts: the next one is due at 2026-01-01 12:00:05Z, in 5.0s.",
    ),
    "scheduled": (
        a_job(next_run_at=ago(-86_400), repeat_interval="0 12 * * *"),
        (RUNS,),
        {},
        "Its next occurrence is due at 2026-01-02 12:00:00Z, in 1d.",
    ),
    "snoozed": (
        a_job(next_run_at=ago(-5), resumes_at=ago(-5)),
        (RUNS,),
        {},
        "It ran before (it was snoozed, for example), and is due again at 2026-01-01 12:00:05Z, in 5.0s.",
    ),
    "snoozed, and not recurring": (
        a_job(next_run_at=ago(-5), attempts=1),
        (RUNS,),
        {},
        "It ran before (it was snoozed, for example), and is due again at 2026-01-01 12:00:05Z, in 5.0s.",
    ),
    "paused": (
        a_job(),
        (RUNS,),
        {"paused": {"mail": NamePause("mail", ago(60), "dana")}},
        "Its name is paused since 2026-01-01 11:59:00Z by dana: `trio-monque resume mail`.",
    ),
    "delayed and paused": (
        a_job(next_run_at=ago(-5)),
        (RUNS,),
        {"paused": {"mail": NamePause("mail")}},
        "It is due at 2026-01-01 12:00:05Z, in 5.0s. Its name is paused: `trio-monque resume mail`.",
    ),
    "no instance": (
        a_job(),
        (an_instance(is_live=False),),
        {},
        "No live instance has an entry in this database. Start a worker (`trio-monque run`).",
    ),
    "misspelt": (
        a_job(name="mial"),
        (RUNS,),
        {},
        "No live instance runs the name 'mial'. One runs 'mail': is the name misspelt?",
    ),
    "unknown": (
        a_job(name="report"),
        (an_instance("w1", "a", "b", "c", "d", "e", "f", "g"),),
        {},
        "No live instance runs the name 'report'. They run: a, b, c, d, e and 2 more.",
    ),
    "draining": (
        a_job(),
        (an_instance(draining=True),),
        {},
        "All instances that run its name are shutting down, and claim nothing more.",
    ),
    "behind others": (
        a_job(),
        (RUNS, an_instance("w2", "mail", held_by_name={"mail": 5})),
        {"ahead": 7},
        """
        It has been due for 1m 30s, and 7 jobs of its name are due before it.
        2 live instances run its name, and held 8
        jobs of it at the last heartbeat.
        """,
    ),
    "behind very many": (
        a_job(),
        (RUNS,),
        {"ahead": 101},
        """
        It has been due for 1m 30s, and more than 100 jobs of its name are due before it.
        1 live instance runs its name,
        and held 3 jobs of it at the last heartbeat.
        """,
    ),
    "all slots taken": (
        a_job(),
        (FULL, DRAINS),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        2 live instances run its name, and held 3 jobs of it at the last
        heartbeat: all slots were taken.
        """,
    ),
    "all slots taken by other names": (
        a_job(),
        (an_instance("w1", "mail", "report", held_by_name={"report": 3}, held=3, slots=3),),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        1 live instance runs its name, and held 0 jobs of it at the last
        heartbeat: all slots were taken.
        """,
    ),
    "what they hold waits for children": (
        a_job(),
        (an_instance("w1", "mail", "report", held_by_name={"report": 3}, held=3, parked=1, slots=3),),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        1 live instance runs its name, and held 0 jobs of it at the
        last heartbeat. Nothing seems to hold it up: look again in a minute, then ask `trio-monque doctor` (a validator
        of the collection may refuse claims, for example), then look in the log of the worker for its id.
        """,
    ),
    "behind others, and none of them starts": (
        a_job(next_run_at=ago(90)),
        (an_instance(slots=3),),
        {"ahead": 3},
        """
        It has been due for 1m 30s, and 3 jobs of its name are due before it. 1 live instance runs its name, and held 0
        jobs of it at the last heartbeat; if that stays so, ask `trio-monque doctor mail`.
        """,
    ),
    "behind others, and due a moment ago": (
        a_job(next_run_at=ago(30)),
        (an_instance(slots=3),),
        {"ahead": 3},
        """
        It has been due for 30s, and 3 jobs of its name are due before it. 1 live instance runs its name, and held 0
        jobs of it at the last heartbeat.
        """,
    ),
    "slots taken by threads of cancelled runs": (
        a_job(),
        (OVERDUE,),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        1 live instance runs its name, and held 1 job of it at the last heartbeat: all slots were taken; threads of
        cancelled runs hold 2 slots until they end.
        """,
    ),
    "all slots of its name taken": (
        a_job(),
        (an_instance(held_by_name={"mail": 5}, held=5, slots=10, full_names=("mail",)), DRAINS),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        2 live instances run its name, and held 5 jobs of it at the last
        heartbeat: all slots were taken.
        """,
    ),
    "beside a blocked event loop": (
        a_job(),
        (
            an_instance(last_block=LastBlock("rude", ago(30), 2.5)),
            an_instance("w2", last_block=LastBlock(None, ago(5), 1.5)),
            an_instance("w3", last_block=LastBlock(None, ago(91), 1.5)),  # Before it was due.
            an_instance("w4", "report", last_block=LastBlock("report", ago(5), 1.5)),
        ),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        3 live instances run its name, and held 0 jobs of it at the last
        heartbeat. While it was due, a handler of 'rude' blocked the event loop of w1 for 2.5s or longer, seen last 30s
        ago: an instance whose loop is blocked starts nothing. Its log has the frames. While it was due, something
        outside of the handlers blocked the event loop of w2 for 1.5s or longer, seen last 5.0s ago: an instance whose
        loop is blocked starts nothing. Its log has the frames.
        """,
    ),
    "beside an event loop that was blocked long ago": (
        a_job(next_run_at=ago(3600)),
        (an_instance(last_block=LastBlock("rude", ago(901), 2.5)),),
        {},
        """
        It has been due for 1h, and is the first of its name.
        1 live instance runs its name, and held 0 jobs of it at the
        last heartbeat. Nothing seems to hold it up: look again in a minute, then ask `trio-monque doctor` (a validator
        of the collection may refuse claims, for example), then look in the log of the worker for its id.
        """,
    ),
    "one with a free slot": (
        a_job(),
        (FULL, an_instance("w2", held_by_name={"mail": 3}, held=3, slots=4)),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        2 live instances run its name, and held 6 jobs of it at the last
        heartbeat.
        """,
    ),
    "suspect": (
        a_job(rescues=2),
        (RUNS,),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        1 live instance runs its name, and held 3 jobs of it at the
        last heartbeat. The last 2 claims on it died, so it may kill its process: an instance runs one such job at a
        time.
        """,
    ),
    "nothing known": (
        a_job(),
        (an_instance(),),
        {},
        """
        It has been due for 1m 30s, and is the first of its name.
        1 live instance runs its name, and held 0 jobs of it at the
        last heartbeat. Nothing seems to hold it up: look again in a minute, then ask `trio-monque doctor` (a validator
        of the collection may refuse claims, for example), then look in the log of the worker for its id.
        """,
    ),
    "owner": (
        a_job(claimed_by="w9"),
        (RUNS,),
        {},
        """
        It is pending and still has an owner (w9), so no scheduler claims it: another program left it in this state.
        Once no program works on it: `trio-monque repair 65f1c0ffee0123456789abcd --unset claimedBy`.
        """,
    ),
}


@pytest.mark.parametrize("case", PENDING.values(), ids=PENDING)
def test_pending_job(case: tuple[Job, tuple[Instance, ...], dict[str, Any], str]) -> None:
    job, instances, about, expected = case
    assert sentences(job, *instances, **about) == in_one_line(expected)


def test_name_beyond_those_that_an_entry_lists_may_be_run() -> None:
    full = an_instance("w1", *(f"name-{number}" for number in range(MOST_NAMES)))
    assert no_instance_runs("mail", [full]) is None
    assert no_instance_runs("name-7", [full]) is None


PROCESSING: Final = {
    "alive": (
        claimed(4),
        (RUNS,),
        """
        It has been running since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1); the last sign of life came 4.0s
        ago.
        """,
    ),
    "with the time limit of its worker": (
        claimed(4),
        (an_instance(time_limits={"mail": 90.0, "report": 7.0}),),
        """
        It has been running since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1), for 1m 30s at most; the last
        sign of life came 4.0s ago.
        """,
    ),
    "with a time limit of its own": (
        claimed(4, timeout=30.0),
        (an_instance(time_limits={"mail": 90.0}),),
        """
        It has been running since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1), for 30s at most; the last
        sign of life came 4.0s ago.
        """,
    ),
    "longer than its time limit, in a thread": (
        claimed(4, timeout=30.0),
        (an_instance(overdue_by_name={"mail": 1}),),
        """
        It was claimed at 2026-01-01 11:59:00Z by w1 (process 4711 on web-1), and its time limit of 30s is over: the
        run was cancelled, but its thread goes on, and holds a slot until it returns; the last sign of life came 4.0s
        ago.
        """,
    ),
    "within its time limit, beside one that is over": (
        claimed(4, timeout=90.0),
        (an_instance(overdue_by_name={"mail": 1}),),
        """
        It has been running since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1), for 1m 30s at most; the last
        sign of life came 4.0s ago.
        """,
    ),
    "a suspect that runs": (
        claimed(4, rescues=2),
        (RUNS,),
        """
        It has been running since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1); the last sign of life came 4.0s
        ago. The last 2 claims on it died, so it may kill its process: an instance runs one such job at a time.
        """,
    ),
    "of Node": (
        claimed(4, is_ours=False),
        (),
        """
        It has been running since 2026-01-01 11:59:00Z on w1, through another library; the last sign of life came 4.0s
        ago.
        """,
    ),
    "a parent": (
        replace(claimed(4), nursery=NurseryScope(id=ObjectId())),
        (RUNS,),
        """
        It has been running or waiting for children since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1); the last
        sign of life came 4.0s ago.
        """,
    ),
    "without a heartbeat, but within its lease": (
        claimed(21),
        (RUNS,),
        """
        It has been running since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1); the last sign of life came 21s
        ago: its process may have died.
        """,
    ),
    "of an instance that has ended": (
        claimed(4, cancel_requested_at=ago(20)),
        (an_instance("w2"),),
        """
        It was claimed at 2026-01-01 11:59:00Z by w1, which has ended since. If it did not complete the job, another
        instance rescues it 30s after the last sign of life, which came 4.0s ago. Its cancellation was requested 20s
        ago: it ends when it is rescued.
        """,
    ),
    "of an instance that has ended, and alone": (
        claimed(4),
        (),
        """
        It was claimed at 2026-01-01 11:59:00Z by w1, which has ended since. If it did not complete the job, another
        instance rescues it 30s after the last sign of life, which came 4.0s ago. No other live instance can do that:
        start a worker (`trio-monque run`).
        """,
    ),
    "of an unknown age": (
        replace(claimed(4), claim=replace(claimed(4).claim or NO_CLAIM, since=None)),
        (),
        "It is running on w1, through another library; the last sign of life came 4.0s ago.",
    ),
    "dead": (
        claimed(45),
        (an_instance(is_live=False), an_instance("w2")),
        """
        It was claimed at 2026-01-01 11:59:00Z by w1 (process 4711 on web-1), and the last sign of life came 45s
        ago: its process died, or is frozen or cut off. Other instances rescue it 30s after the last sign that they
        saw.
        """,
    ),
    "dead, and alone": (
        claimed(45),
        (),
        """
        It was claimed at 2026-01-01 11:59:00Z by w1, and the last sign of life came 45s ago: its process died, or
        is frozen or cut off. Other instances rescue it 30s after the last sign that they saw.
        No other live instance can do that: start a worker (`trio-monque run`).
        """,
    ),
    "asked to end": (
        claimed(4, cancel_requested_at=ago(20)),
        (RUNS,),
        """
        It has been running since 2026-01-01 11:59:00Z on w1 (process 4711 on web-1); the last sign of life came 4.0s
        ago. Its cancellation was requested 20s ago. It ends at the next `await` of its handler; a plain handler must
        call `job.check_cancelled()` to notice.
        """,
    ),
}


@pytest.mark.parametrize("case", PROCESSING.values(), ids=PROCESSING)
def test_processing_job(case: tuple[Job, tuple[Instance, ...], str]) -> None:
    job, instances, expected = case
    assert sentences(job, *instances) == in_one_line(expected)


LIMIT: Final = {"start_by": ago(30), "fail_reason": "start_by: not started by 2026-01-01T11:59:30.000+00:00"}
RETRY: Final = f"`trio-monque retry {ID}` runs it"
AGAIN: Final = f"{RETRY} again, with all its attempts"
ENDED: Final = {
    "completed": (a_job("completed", attempts=1), "It has completed."),
    "completed after failures": (a_job("completed", attempts=3, fail_count=2), "It has completed."),
    "completed after a death": (
        a_job("completed", attempts=3, fail_count=1),
        (
            "It has completed. 1 earlier attempt left no failure: the run was snoozed, released or cancelled, or its "
            "process died."
        ),
    ),
    "completed after more failures than are kept": (
        a_job("completed", attempts=9, errors=[{}] * MOST_ERRORS),
        "It has completed.",
    ),
    "failed": (a_job("failed"), f"It has failed: {AGAIN}."),
    "cancelled": (a_job("cancelled"), f"It was cancelled: {AGAIN}."),
    "failed, as no worker can read its data": (
        a_job("failed", fail_reason="UnreadablePayloadError: data.total: not an integer"),
        f"It has failed: {AGAIN}. Deploy a worker that can read its data first.",
    ),
    "failed child": (
        replace(a_job("failed"), child=ChildOf(parent=PARENT)),
        in_one_line(
            f"""
            It has failed, and is a child of job {PARENT}. Unless that has completed, retry that instead:
            `trio-monque retry {PARENT}`. If it has, it may have undone what this job is a part of: look at it before
            you retry this job.
            """
        ),
    ),
    "failed schedule": (
        a_job("failed", repeat_interval="0 6 * * *"),
        f"It has failed: {RETRY} now, and then on its schedule, with all its attempts.",
    ),
    "cancelled schedule": (
        a_job("cancelled", repeat_interval="0 6 * * *"),
        f"It was cancelled: {RETRY} now, and then on its schedule, with all its attempts.",
    ),
    "not started in time": (
        a_job("cancelled", **LIMIT),
        in_one_line(
            f"""
            No run began by 2026-01-01 11:59:30Z (start_by), so it was cancelled: {AGAIN}, without that limit.
            `trio-monque doctor mail` may show why it waited.
            """
        ),
    ),
    "not started in time, with a name that a shell would read": (
        replace(a_job("cancelled", **LIMIT), name="mail;$x"),
        in_one_line(
            f"""
            No run began by 2026-01-01 11:59:30Z (start_by), so it was cancelled: {AGAIN}, without that limit.
            `trio-monque doctor 'mail;$x'` may show why it waited.
            """
        ),
    ),
    "cancelled by a caller before its limit": (
        a_job("cancelled", start_by=ago(30)),
        f"It was cancelled: {AGAIN}.",
    ),
}


@pytest.mark.parametrize("case", ENDED.values(), ids=ENDED)
def test_ended_job(case: tuple[Job, str]) -> None:
    job, expected = case
    assert sentences(job) == expected


def test_each_kind_of_reason_is_met_here_and_documented_with_its_values() -> None:
    for pending in PENDING.values():
        test_pending_job(pending)
    for processing in PROCESSING.values():
        test_processing_job(processing)
    for ended in ENDED.values():
        test_ended_job(ended)
    rows = PAGE.read_text(encoding="utf-8").partition("| Kind | Meaning")[2].partition("\n\n")[0].splitlines()[2:]
    documented = {kind.strip("| `"): meaning for kind, _, meaning in (row.partition("` | ") for row in rows)}
    assert {kind for kind, _ in met} == set(documented)
    for kind, values in met:
        for name in values - COMMON:
            assert f"`{name}`" in documented[kind], kind


PAGE: Final = Path(__file__).parents[2] / "docs/how-to/browse-jobs.md"
COMMON: Final = frozenset({"by", "holder", "since", "is_ours", "silent"})
"""Documented once, under `runs`."""
