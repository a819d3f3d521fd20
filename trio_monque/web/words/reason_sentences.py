"""The words of HTTP for why a job does not run now: a sentence for each reason. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ...diagnosis.reasons import Reason
from .lengths import counted, length, moment, since_and_by

Values = Mapping[str, Any]


def sentence_of(reason: Reason) -> str:
    """Return the sentence."""
    return _SENTENCES[reason.kind](reason.values)


_BECAUSE: Final = {
    "again": "It ran before (it was snoozed, for example), and is due again",
    "next": "Its next occurrence is due",
    "first": "It is due",
}


def _not_due(values: Values) -> str:
    retry = f"{counted(values['failures'], 'attempt')} failed: the next one is due"
    return f"{_BECAUSE.get(values['because'], retry)} in {length(values['seconds'])}, at {moment(values['at'])}."


def _not_served(values: Values) -> str:
    similar = values["similar"]
    hint = f" One runs {similar}: is the name misspelt?" if similar else ""
    return f"No live instance runs the name {values['name']}.{hint}"


def _is_due(values: Values) -> str:
    since, ahead = length(values["seconds"]), values["ahead"]
    if not ahead:
        return f"It has been due for {since}, and is the first of its name."
    more = "more than " if values["is_capped"] else ""
    are = "is" if ahead == 1 else "are"
    return f"It has been due for {since}, and {more}{counted(ahead, 'job')} of its name {are} due before it."


def _is_served(values: Values) -> str:
    number = values["instances"]
    run = "runs" if number == 1 else "run"
    full = ": all slots are taken" if values["is_full"] else ""
    held, overdue = counted(values["held"], "job"), values["overdue"]
    threads = f"; threads of cancelled runs hold {counted(overdue, 'slot')}" if overdue else ""
    idle = "; if that stays so, look at the findings" if values["is_idle"] else ""
    return f"{counted(number, 'live instance')} {run} its name, with {held} of it running{full}{threads}{idle}."


def _runs(values: Values) -> str:
    if values["is_over"]:
        return (
            f"It was claimed by {_holder(values)}, and its time limit is over: the run was cancelled, but its thread "
            f"goes on, and holds a slot until it returns; the last sign of life came {length(values['silent'])} ago."
        )
    is_running = "is running" if values["since"] is None else "has been running"
    or_waits = " or waiting for children" if values["is_parent"] else ""
    how = f"{is_running}{or_waits} on {_holder(values, 'since')}"
    late = ": its process may have died" if values["is_late"] else ""
    return f"It {how}; the last sign of life came {length(values['silent'])} ago{late}."


def _holder_gone(values: Values) -> str:
    lease, silent = length(values["lease"]), length(values["silent"])
    return (
        f"It was claimed by {_holder(values)}, which has ended since. If it did not complete the job, another "
        f"instance rescues it {lease} after the last sign of life, which came {silent} ago."
    )


def _blocked_loop(values: Values) -> str:
    culprit = "something outside of the handlers" if values["handler"] is None else f"a handler of {values['handler']}"
    return (
        f"While it was due, {culprit} blocked the event loop of {values['instance']} for {length(values['seconds'])} "
        f"or longer, seen last {length(values['ago'])} ago: an instance whose loop is blocked starts nothing."
    )


def _is_silent(values: Values) -> str:
    silent = values["silent"]
    ago = "has never come" if silent is None else f"came {length(silent)} ago"
    return (
        f"It was claimed by {_holder(values)}, and the last sign of life {ago}: that process died, is frozen or is cut "
        f"off. Other instances rescue the job {length(values['lease'])} after the last sign that they saw."
    )


def _holder(values: Values, word: str = "at") -> str:
    library = "" if values["is_ours"] else ", through another library"
    since = "" if values["since"] is None else f" {word} {moment(values['since'])}"
    return f"{values['holder'] or values['by']}{since}{library}"


def _cancelled(values: Values) -> str:
    start_by = values["start_by"]
    if start_by is None:
        return f"It was cancelled. {_retry(values)}."
    return f"No run began by {moment(start_by)} (start_by), so it was cancelled. {_retry(values)}, without that limit."


def _cut_short(number: int) -> str:
    if not number:
        return ""
    attempts = counted(number, "earlier attempt")
    return f" {attempts} left no failure: the run was snoozed, released or cancelled, or its process died."


def _retry(values: Values) -> str:
    again = "now, and then on its schedule" if values["is_recurring"] else "again"
    return f"A retry runs it {again}, with all its attempts"


def _failed(values: Values) -> str:
    if (parent := values["parent"]) is None:
        return f"It has failed for good. {_retry(values)}.{_first(values)}"
    return (
        f"It has failed for good, and is a child of job {parent}. Unless that has completed, retry that instead. "
        f"If it has, it may have undone what this job is a part of: look at it first.{_first(values)}"
    )


def _first(values: Values) -> str:
    return " Deploy a worker that can read its data first." if values["is_unreadable"] else ""


_SENTENCES: Final[Mapping[str, Callable[[Values], str]]] = {
    "has_owner": lambda values: (
        f"It is pending and still has an owner, {values['by']}, so no scheduler claims it: another program left it in "
        "this state. Cancel it and retry it."
    ),
    "not_due": _not_due,
    "paused": lambda values: f"The name {values['name']} is paused{since_and_by(values['since'], values['by'])}.",
    "no_instances": lambda _: "No live instance has an entry in the database.",
    "all_draining": lambda _: "All instances that run its name are shutting down, and claim nothing more.",
    "not_served": _not_served,
    "is_due": _is_due,
    "is_served": _is_served,
    "blocked_loop": _blocked_loop,
    "is_suspect": lambda values: (
        f"The last {counted(values['deaths'], 'claim')} on it died, so it may kill its process: an instance runs one "
        "such job at a time."
    ),
    "nothing_known": lambda _: (
        "Nothing seems to hold it up: look again in a minute, then look in the log of the worker for its id."
    ),
    "runs": _runs,
    "holder_gone": _holder_gone,
    "is_silent": _is_silent,
    "no_rescuer": lambda _: "No other live instance can rescue it.",
    "cancel_requested": lambda values: (
        f"Its cancellation was requested {length(values['seconds'])} ago"
        f"{'.' if values['is_held'] else ': it ends when it is rescued.'}"
    ),
    "completed": lambda values: "It has completed." + _cut_short(values["cut_short"]),
    "failed": _failed,
    "cancelled": _cancelled,
}
