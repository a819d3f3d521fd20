"""What needs an operator: each judgement at its edge, and which ones are shown if there are many."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from bson import ObjectId

from trio_monque.diagnosis import Concern
from trio_monque.diagnosis.concerns import FleetFacts, concerns_of
from trio_monque.diagnosis.overview import overview_of
from trio_monque.jobs import Figures, Instance, JobStatus, NamePause, QueueDepth, ScheduleBrief

NOW: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
ID: Final = ObjectId()


def instance(instance_id: str = "w1", *names: str, **fields: Any) -> Instance:
    return Instance(
        **{
            "id": instance_id,
            "incarnation": "1",
            "host": "web-1",
            "pid": 7,
            "names": names or ("mail",),
            "started_at": NOW,
            "last_heartbeat": NOW,
            "heartbeat_interval": 30.0,
            "slots": 24,
            **fields,
        }
    )


def facts(depth: QueueDepth | None = None, **fields: Any) -> FleetFacts:
    depths = {} if depth is None else {"mail": depth}
    return FleetFacts(**{"now": NOW, "instances": [instance()], "depths": depths, **fields})


def due(age: float = 5.0, number: int = 3, **fields: Any) -> QueueDepth:
    return QueueDepth(pending=number, due=number, oldest_due_age=age, **fields)


def kinds(found: FleetFacts) -> list[str]:
    return [one.kind for one in concerns_of(found)[0]]


def only(found: FleetFacts) -> Concern:
    ((concern,), more) = concerns_of(found)
    assert more == 0
    return concern


def test_all_is_well() -> None:
    assert concerns_of(facts(due(), usual_wait={"mail": 1.0})) == ([], 0)
    assert concerns_of(FleetFacts(now=NOW)) == ([], 0)


# --- Each judgement ---


@pytest.mark.parametrize(
    ("age", "usual", "is_late"),
    [(60.0, None, False), (60.1, None, True), (60.1, 6.0, True), (60.1, 6.1, False), (3.0, 0.1, False)],
)
def test_name_is_late_when_a_job_waits_over_a_minute_and_ten_times_as_long_as_usual(
    age: float, usual: float | None, is_late: bool
) -> None:
    found = facts(due(age), usual_wait={} if usual is None else {"mail": usual})
    assert kinds(found) == (["late"] if is_late else [])
    assert overview_of(found).names["mail"].is_late == is_late
    if is_late:
        values = {"name": "mail", "due": 3, "is_capped": False, "seconds": age, "usual": usual}
        assert only(found) == Concern("late", values)


@pytest.mark.parametrize(
    ("done", "failed", "is_failing"),
    [
        (20, 20, False),
        (20, 21, True),
        (189, 21, False),
        (188, 21, True),
        (9, 0, False),
        (0, 2, False),
        (0, 3, True),
        (2, 3, True),
        (3, 3, False),
    ],
)
def test_name_fails_when_many_attempts_and_a_tenth_of_all_failed_or_a_few_and_over_half(
    done: int, failed: int, is_failing: bool
) -> None:
    found = facts(recent={"mail": Figures(done=done, failed_attempts=failed, failed_for_good=4)})
    assert kinds(found) == (["failing"] if is_failing else [])
    if is_failing:
        assert only(found).values == {
            "name": "mail",
            "failed": failed,
            "attempts": done + failed,
            "failed_for_good": 4,
            "seconds": 600.0,
        }


def test_name_with_jobs_that_failed_for_good_in_the_last_hour_and_are_still_failed() -> None:
    found = facts(QueueDepth(failed=9), failed_for_good={"mail": 3})
    assert only(found) == Concern("failed_jobs", {"name": "mail", "failed": 3, "seconds": 3600.0})
    assert kinds(facts(QueueDepth(failed=9))) == []  # All of them failed earlier.
    assert kinds(facts(QueueDepth(), failed_for_good={"mail": 3})) == []  # All of them were retried or deleted.
    # They were not counted.
    assert kinds(facts(QueueDepth(capped=frozenset({JobStatus.FAILED})), failed_for_good={"mail": 3})) == [
        "failed_jobs"
    ]


def test_jobs_that_failed_for_good_are_not_a_second_line_of_one_cause() -> None:
    failing = Figures(failed_attempts=3, failed_for_good=1)
    assert kinds(facts(QueueDepth(failed=1), failed_for_good={"mail": 1}, recent={"mail": failing})) == ["failing"]
    well = Figures(done=3, failed_attempts=3, failed_for_good=1)
    assert kinds(facts(QueueDepth(failed=1), failed_for_good={"mail": 1}, recent={"mail": well})) == ["failed_jobs"]
    ended = [schedule(JobStatus.FAILED)]
    both = {"failed_for_good": {"mail": 1}, "schedules": ended}
    assert kinds(facts(QueueDepth(failed=1), **both)) == ["schedule_failed"]
    assert kinds(facts(QueueDepth(failed=2), **both)) == ["schedule_failed", "failed_jobs"]


@pytest.mark.parametrize(
    ("depth", "is_paused", "expected"),
    [
        (due(), True, ["paused"]),
        (due(age=3600.0), True, ["paused"]),  # Not late: it is not to run.
        (QueueDepth(pending=3), True, []),
        (None, True, []),
        (due(), False, []),
    ],
)
def test_paused_name_is_a_concern_while_due_jobs_wait(
    depth: QueueDepth | None, is_paused: bool, expected: list[str]
) -> None:
    assert kinds(facts(depth, paused={"mail": NamePause("mail")} if is_paused else {})) == expected


@pytest.mark.parametrize(
    ("depth", "instances", "expected"),
    [
        (due(), [], ["not_served"]),
        (due(age=3600.0), [], ["not_served"]),  # Not late, too: one cause is one line.
        (due(), [instance("w1", "letter")], ["not_served"]),
        (due(), [instance(draining=True)], ["not_served"]),
        (due(), [instance(is_live=False)], ["not_served", "silent_without_jobs"]),
        (due(), [instance(is_live=False, held=1)], ["not_served", "silent_instance"]),
        (due(), [instance("w1", *map(str, range(1000)))], []),  # An entry lists a thousand names.
        (due(processing=1), [], []),  # Another library runs it.
        (due(processing=1, stuck=1), [], ["not_served", "stuck"]),
        (QueueDepth(pending=3), [], []),
    ],
)
def test_due_jobs_of_a_name_that_no_instance_runs(
    depth: QueueDepth, instances: list[Instance], expected: list[str]
) -> None:
    found = facts(depth, instances=instances)
    assert kinds(found) == expected
    if depth.due:
        assert overview_of(found).names["mail"].is_served == ("not_served" not in expected)


def test_where_no_instance_is_alive_that_is_one_concern_for_all_names() -> None:
    depths = {"a": due(age=5.0), "b": due(age=60.0), "c": due(), "node": due(processing=1)}
    found = FleetFacts(now=NOW, depths=depths, paused={"c": NamePause("c")}, instances=[instance(is_live=False)])
    first = concerns_of(found)[0][0]
    of_both = {"names": 2, "due": depths["a"].due + depths["b"].due, "is_capped": False, "seconds": 60.0}
    assert first == Concern("no_instance", of_both)
    assert "not_served" not in kinds(found)
    alive = FleetFacts(now=NOW, depths=depths, instances=[instance("w1", "other")])
    assert kinds(alive).count("not_served") == 3


def test_jobs_whose_holders_are_silent_are_counted() -> None:
    assert only(facts(QueueDepth(processing=4, stuck=2))) == Concern("stuck", {"name": "mail", "count": 2})
    assert kinds(facts(QueueDepth(processing=4))) == []


def test_silent_instance_with_the_most_jobs_comes_first() -> None:
    silent = [
        instance(str(held), held=held, is_live=False, last_heartbeat=NOW - timedelta(seconds=61)) for held in (1, 3, 2)
    ]
    found, _ = concerns_of(facts(instances=[instance(), *silent]))
    assert [one.values["instance"] for one in found] == ["3", "2", "1"]
    assert found[0].values == {"instance": "3", "host": "web-1", "pid": 7, "seconds": 61.0, "held": 3}


def test_silent_instances_that_held_no_jobs_are_one_concern_and_the_last_one() -> None:
    empty = [instance(f"e{number}", is_live=False) for number in range(4)]
    assert only(facts(instances=[instance(), *empty])) == Concern("silent_without_jobs", {"instances": 4})
    found = facts(due(), instances=[*empty, instance("w1", held=2, is_live=False)], paused={"mail": NamePause("mail")})
    assert kinds(found) == ["silent_instance", "paused", "silent_without_jobs"]


def schedule(status: JobStatus, key: str | None = "k", ago: int = 1) -> ScheduleBrief:
    return ScheduleBrief(id=ID, name="mail", unique_key=key, status=status, at=NOW - timedelta(hours=ago))


@pytest.mark.parametrize(
    ("schedules", "number"),
    [
        ([schedule(JobStatus.FAILED)], 1),
        ([schedule(JobStatus.FAILED), schedule(JobStatus.PENDING)], 0),  # It was declared again.
        ([schedule(JobStatus.FAILED), schedule(JobStatus.PROCESSING)], 0),
        ([schedule(JobStatus.FAILED), schedule(JobStatus.COMPLETED)], 1),
        ([schedule(JobStatus.FAILED), schedule(JobStatus.PENDING, "other")], 1),
        ([schedule(JobStatus.FAILED, None), schedule(JobStatus.PENDING, None)], 1),
        ([schedule(JobStatus.CANCELLED)], 0),
    ],
)
def test_schedule_that_failed_for_good_and_was_not_declared_again(schedules: list[ScheduleBrief], number: int) -> None:
    assert kinds(facts(schedules=schedules)) == ["schedule_failed"] * number


# --- Which are shown ---


def test_worst_come_first_and_each_kind_has_its_worst_one_before_any_has_two() -> None:
    depths = {name: due(age) for name, age in (("a", 100.0), ("b", 300.0), ("c", 200.0))}
    unserved = {f"no {number}": due(number) for number in range(1, 5)}
    found = facts(
        depths={**depths, **unserved}, instances=[instance("w1", "a", "b", "c")], paused={"c": NamePause("c")}
    )
    concerns, more = concerns_of(found)
    assert [(one.kind, one.values["name"]) for one in concerns] == [
        ("not_served", "no 4"),
        ("not_served", "no 3"),
        ("late", "b"),
        ("late", "a"),
        ("paused", "c"),
    ]
    assert more == 2


# --- The overview ---


def test_overview_counts_due_and_later_jobs_apart() -> None:
    depth = QueueDepth(pending=9, due=4, processing=2, failed=7, oldest_due_age=1.5, longest_run=3.5)
    found = overview_of(facts(depth))
    mail = found.names["mail"]
    assert (mail.due, mail.later, mail.running, mail.failed, mail.capped) == (4, 5, 2, 7, frozenset())
    assert (found.running, found.longest_run, found.slots, found.alive) == (2, 3.5, 24, 1)


@pytest.mark.parametrize(
    ("due_ones", "capped"),
    [(10, {"due", "later", "failed"}), (4, {"later", "failed"})],
)
def test_due_jobs_are_counted_to_the_end_if_later_ones_were_counted(due_ones: int, capped: set[str]) -> None:
    depth = QueueDepth(
        pending=10, due=due_ones, failed=5, oldest_due_age=1.0, capped=frozenset({JobStatus.PENDING, JobStatus.FAILED})
    )
    assert overview_of(facts(depth)).names["mail"].capped == capped


def test_slots_of_silent_instances_and_of_older_releases_are_not_counted() -> None:
    found = overview_of(
        facts(instances=[instance("a"), instance("b", slots=None), instance("c", is_live=False, slots=8)])
    )
    assert (found.slots, found.alive, len(found.instances)) == (24, 2, 3)


def test_paused_name_without_jobs_is_shown_and_schedules_that_ended_are_not_upcoming() -> None:
    schedules = [schedule(JobStatus.FAILED), *(schedule(JobStatus.PENDING, str(number)) for number in range(12))]
    found = overview_of(facts(paused={"letter": NamePause("letter")}, schedules=schedules))
    assert found.names["letter"].is_paused
    assert [one.unique_key for one in found.upcoming] == [str(number) for number in range(10)]
