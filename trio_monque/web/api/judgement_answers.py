"""What the routes of judgements do: what is wrong with the database and its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...diagnosis.findings import Finding
from ...store.jobs.job_json import iso
from ...store.reads.diagnosis.caps import Count
from ..words.finding_sentences import advice_about, sentence_about
from .question_answers import camel_case, plain_value
from .route import Call

OF_ERRORS = "reason"
"""The value of a finding that is the error of a job."""


async def findings(call: Call) -> dict[str, Any]:
    """Return what is wrong, the worst first."""
    diagnosis = await call.surface.monque.findings()
    # A hook changes the text of one job, and a finding has that of many.
    is_shown = call.surface.hooks.show_errors is True
    shown = (one if is_shown else _without_errors(one) for one in diagnosis.findings)
    return {"at": iso(diagnosis.at), "findings": [_finding_as_json(one) for one in shown]}


def _without_errors(finding: Finding) -> Finding:
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
