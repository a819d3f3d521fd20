"""What the routes of judgements do: how the jobs are, and what is wrong with them or with the database."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...diagnosis.findings import Finding
from ...diagnosis.overview import NameOverview
from ...store.jobs.job_json import iso
from ...store.reads.diagnosis.caps import Count
from ..words.concern_sentences import sentence_for
from ..words.finding_sentences import advice_about, sentence_about
from .job_shapes import plain_number
from .question_answers import camel_case, plain_value
from .route import Call

OF_ERRORS = "reason"
"""The value of a finding that is the error of a job."""


async def overview(call: Call) -> dict[str, Any]:
    """Return how the jobs of each name are, and what needs an operator. Durations are milliseconds."""
    found = await call.surface.monque.get_overview()
    return {
        "at": iso(found.at),
        "names": [_name_as_json(name, one) for name, one in found.names.items()],
        "isCapped": found.is_capped,
        "running": found.running,
        "slots": found.slots,
        "longestRun": _milliseconds(found.longest_run),
        "instances": {"alive": found.alive, "silent": len(found.instances) - found.alive},
        "upcoming": [
            {"id": str(one.id), "name": one.name, "uniqueKey": one.unique_key, "nextRunAt": iso(one.at)}
            for one in found.upcoming
        ],
        "concerns": [
            {"kind": camel_case(one.kind), "sentence": sentence_for(one), "values": values_as_json(one.values)}
            for one in found.concerns
        ],
        "moreConcerns": found.more_concerns,
    }


def _name_as_json(name: str, one: NameOverview) -> dict[str, Any]:
    return {
        "name": name,
        "due": one.due,
        "later": one.later,
        "running": one.running,
        "stuck": one.stuck,
        "failed": one.failed,
        "capped": sorted(one.capped),
        "oldestDueAge": _milliseconds(one.oldest_due_age),
        "longestRun": _milliseconds(one.longest_run),
        "isPaused": one.is_paused,
        "pausedSince": None if one.pause is None or one.pause.since is None else iso(one.pause.since),
        "pausedBy": None if one.pause is None else one.pause.by,
        "isServed": one.is_served,
        "isLate": one.is_late,
    }


def _milliseconds(seconds: float | None) -> Any:
    return None if seconds is None else plain_number(round(seconds * 1000))


async def findings(call: Call) -> dict[str, Any]:
    """Return what is wrong, the worst first."""
    diagnosis = await call.surface.monque.findings()
    # A hook changes the text of one job, and a finding has that of many.
    is_shown = call.surface.hooks.show_errors is True
    shown = (one if is_shown else without_errors(one) for one in diagnosis.findings)
    return {"at": iso(diagnosis.at), "findings": [_finding_as_json(one) for one in shown]}


def without_errors(finding: Finding) -> Finding:
    """Return a finding without the error of a job."""
    if OF_ERRORS not in finding.values:
        return finding
    return replace(finding, values={**finding.values, OF_ERRORS: None})


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    return {
        "kind": finding.kind,
        "severity": finding.severity.value,
        "sentence": sentence_about(finding),
        "advice": advice_about(finding),
        "values": values_as_json(finding.values),
    }


def values_as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a fact; a count is a number, and `isCapped` beside it has whether there may be more."""
    counts = [value for value in values.values() if isinstance(value, Count)]
    capped = {"isCapped": any(one.is_capped for one in counts)} if counts else {}
    plain = {
        camel_case(name): value.number if isinstance(value, Count) else plain_value(value)
        for name, value in values.items()
    }
    return {**plain, **capped}
