"""The words of HTTP for what needs an operator: a sentence for each concern. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ...diagnosis.concerns import Concern
from .lengths import counted, length, moment, since_and_by

Values = Mapping[str, Any]


def sentence_for(concern: Concern) -> str:
    """Return the sentence."""
    return _SENTENCES[concern.kind](concern.values)


def _due_jobs(values: Values) -> str:
    return f"{'more than ' if values['is_capped'] else ''}{counted(values['due'], 'due job')}"


def _failing(values: Values) -> str:
    of_all = f"{values['failed']:,} of {counted(values['attempts'], 'attempt')}"
    for_good = values["failed_for_good"]
    ended = f"; {counted(for_good, 'job')} failed for good" if for_good else ""
    return f"{values['name']} fails: {of_all} in the last {length(values['seconds'])}{ended}."


def _failed_jobs(values: Values) -> str:
    return f"{counted(values['failed'], 'job')} of {values['name']} failed for good in the last hour."


def _late(values: Values) -> str:
    usual = "" if values["usual"] is None else f", where {length(values['usual'])} is usual"
    return (
        f"{values['name']} is late: {_due_jobs(values)}. The oldest has waited for {length(values['seconds'])}{usual}."
    )


def _stuck(values: Values) -> str:
    are = "is" if values["count"] == 1 else "are"
    return f"{counted(values['count'], 'job')} of {values['name']} {are} stuck: the holder gives no sign of life."


def _silent(values: Values) -> str:
    return (
        f"Instance {values['instance']} (process {values['pid']} on {values['host']}) has been silent for "
        f"{length(values['seconds'])}. It held {counted(values['held'], 'job')}."
    )


def _silent_without_jobs(values: Values) -> str:
    number = values["instances"]
    return f"{counted(number, 'instance')} {'is' if number == 1 else 'are'} silent, and held no jobs."


def _schedule_failed(values: Values) -> str:
    key = "" if values["key"] is None else f" {values['key']}"
    return f"The schedule{key} of {values['name']} failed for good at the run of {moment(values['at'])}."


_SENTENCES: Final[Mapping[str, Callable[[Values], str]]] = {
    "not_served": lambda values: f"{values['name']} has {_due_jobs(values)}, and no instance runs this name.",
    "no_instance": lambda values: f"No instance is alive: {values['names']:,} names have {_due_jobs(values)}.",
    "failing": _failing,
    "stuck": _stuck,
    "silent_instance": _silent,
    "late": _late,
    "schedule_failed": _schedule_failed,
    "failed_jobs": _failed_jobs,
    "paused": lambda values: (
        f"{values['name']} is paused{since_and_by(values['since'], values['by'])}, with {_due_jobs(values)}."
    ),
    "silent_without_jobs": _silent_without_jobs,
}
