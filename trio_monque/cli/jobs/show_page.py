"""One job for people: what it is, its timeline, its failures, and why it does not run now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import click

from ...jobs.job import Job, JobStatus
from ...jobs.job_parts import NO_CLAIM, ChildOf
from ...safe_text import one_line
from ...store.jobs.job_json import value_as_json
from ..output import counted, duration, moment, print_columns, print_fields, since
from .family import JobFamily, lines_of_blocks, sentence_of_cancellation

LONGEST_SHOWN: Final = 10_000
"""Characters of one value. `--json` has all of it."""

MOST_LINES: Final = 40
"""Lines of one value: the timeline and the reasons come after the values, and must stay on the screen."""

_ENDED: Final = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)


def print_job(job: Job, now: datetime, why: Sequence[str], family: JobFamily) -> None:
    """Print the page."""
    print_fields({**_identity(job), "cancelled": sentence_of_cancellation(family)})
    for heading, value in (
        ("data", job.data),
        ("progress", job.progress),
        ("saved", job.saved),
        ("steps", None if job.nursery is None or not job.nursery.steps else job.nursery.steps),
        ("result", job.result),
        ("data of the next run", None if job.again is None else job.again.data),
    ):
        if value is not None or heading == "data":
            click.echo(f"\n{heading}")
            click.echo(_value(value))
    if family.parent is not None:
        click.echo("\njob nurseries")
        for line in lines_of_blocks(family, now):
            click.echo(f"  {one_line(line)}")
    click.echo("\ntimeline")
    print_columns([(f"  {moment(at)}", since(at, now), one_line(what)) for at, what in _timeline(job)])
    for one in job.errors:
        _print_error(one)
    click.echo("\nwhy it is not running" if job.status == "pending" else "\nstate")
    for sentence in why:
        click.echo(f"  {one_line(sentence)}")


def _identity(job: Job) -> dict[str, object]:
    child = job.child or ChildOf()
    return {
        "id": job.id,
        "name": job.name,
        "status": job.status,
        "unique key": job.unique_key,
        "schedule": None if job.schedule is None else job.schedule.in_words,
        "schedule before": _schedule_before(job),
        "schedule version": None if job.schedule is None else job.schedule.version,
        "when exhausted": None if job.schedule is None else job.schedule.on_exhausted,
        "attempts": job.attempts,
        "failures": job.fail_count or None,
        "deaths": job.rescues or None,
        "max attempts": job.limits.max_attempts,
        "max deaths": job.limits.max_rescues,
        "timeout": None if job.limits.timeout is None else duration(job.limits.timeout),
        "start by": None if job.limits.start_by is None else moment(job.limits.start_by),
        "claimed by": (job.claim or NO_CLAIM).by,
        "last failure": job.fail_reason,
        "parent": child.parent,
        "block": child.block,
        "child key": child.key,
        "meta": ", ".join(f"{key}={value}" for key, value in job.meta.items()),
    }


def _schedule_before(job: Job) -> str | None:
    if job.schedule is None or job.schedule.changed_from is None:
        return None
    at, by = job.schedule.changed_at, job.schedule.changed_by
    declaration = "a declaration" if by is None else f"a declaration of {by}"
    return job.schedule.changed_from + ("" if at is None else f", until {declaration} changed it at {moment(at)}")


def _timeline(job: Job) -> Iterator[tuple[datetime, str]]:
    claim = job.claim or NO_CLAIM
    has_ended = job.status in _ENDED
    # A job that has ended is due no more: its date counts only if it had come before the end.
    was_due = not has_ended or job.next_run_at <= job.updated_at
    found: list[tuple[datetime | None, str]] = [
        (job.created_at, "enqueued"),
        (job.internals.occurrence, "first due date of this occurrence"),
        (job.started_at, "last run began"),
        *((_moment_of(one), f"attempt {one.get('attempt', '?')} failed{_run_of(one)}") for one in job.errors),
        (claim.cancel_requested_at, "cancellation requested"),
        (claim.since, f"claimed by {claim.by}"),
        (claim.last_heartbeat, "last heartbeat of its holder"),
        (job.finished_at, "last run ended"),
        (job.debounced_since, "first of the calls that were debounced"),
        # Its document has no other moment of the cancellation.
        (job.updated_at, "cancelled" if job.status is JobStatus.CANCELLED else "last change"),
        (job.next_run_at if was_due else None, "due"),
        (None if job.again is None or has_ended else job.again.next_run_at, "due again after this run"),
    ]
    known = [(at, what) for at, what in found if at is not None]
    yield from sorted(known, key=lambda one: one[0])


def _moment_of(error: Mapping[str, Any]) -> datetime | None:
    at = error.get("at")
    return at if isinstance(at, datetime) else None


def _run_of(error: Mapping[str, Any]) -> str:
    """Where the run was that failed, and how long it took, as far as it is known."""
    by, ran = error.get("by"), error.get("ran")
    where = f" on {by}" if isinstance(by, str) else ""
    return where + (f", ran {duration(ran / 1000)}" if isinstance(ran, int) else "")


def _print_error(error: Mapping[str, Any]) -> None:
    at = _moment_of(error)
    click.echo(f"\nfailure of attempt {error.get('attempt', '?')}" + ("" if at is None else f" at {moment(at)}"))
    text = error.get("traceback") or error.get("error") or "(no text)"
    click.echo(_indented(str(text)))


def _value(value: object) -> str:
    lines = json.dumps(value_as_json(value), indent=2, ensure_ascii=False).splitlines()
    shown = _indented("\n".join(lines[:MOST_LINES]))
    more = len(lines) - MOST_LINES
    return f"{shown}\n  … {counted(more, 'more line')} (in full: --json)" if more > 0 else shown


def _indented(text: str) -> str:
    """Return the text with two spaces before each line, and without what would command the terminal."""
    is_cut = len(text) > LONGEST_SHOWN
    lines = text[:LONGEST_SHOWN].splitlines()
    shown = "\n".join(f"  {one_line(line, LONGEST_SHOWN)}" for line in lines)
    return f"{shown}\n  … (in full: --json)" if is_cut else shown
