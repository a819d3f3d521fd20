"""The words of the terminal for why a job does not run now: each reason is a sentence with what to do. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Any, Final

from ...diagnosis.reasons import Reason
from ...jobs.job import Job
from ...safe_text import one_line
from ..output import counted, duration, moment, since_and_by

Values = Mapping[str, Any]


def sentences_of(reasons: Sequence[Reason], job: Job) -> Sequence[str]:
    """Return a sentence for each reason."""
    return [_SENTENCES[one.kind](one.values, job) for one in reasons]


def sentence_about_name(reason: Reason) -> str:
    """Return the sentence that says why no live instance runs a name."""
    return _ABOUT_NAME[reason.kind](reason.values)


def _has_owner(values: Values, job: Job) -> str:
    return (
        f"It is pending and still has an owner ({values['by']}), so no scheduler claims it: another program left it "
        f"in this state. Once no program works on it: `trio-monque repair {job.id} --unset claimedBy`."
    )


_BECAUSE: Final = {
    "again": "It ran before (it was snoozed, for example), and is due again at",
    "next": "Its next occurrence is due at",
    "first": "It is due at",
}


def _not_due(values: Values, job: Job) -> str:
    failures = f"{counted(values['failures'], 'failed attempt')}: the next one is due at"
    return f"{_BECAUSE.get(values['because'], failures)} {moment(values['at'])}, in {duration(values['seconds'])}."


def _no_instances(values: Values) -> str:
    return "No live instance has an entry in this database. Start a worker (`trio-monque run`)."


def _all_draining(values: Values) -> str:
    return "All instances that run its name are shutting down, and claim nothing more."


def _not_served(values: Values) -> str:
    near = values["similar"]
    hint = f"One runs {near!r}: is the name misspelt?" if near else f"They run: {_listed(values['served'])}."
    return f"No live instance runs the name {values['name']!r}. {hint}"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5]) or "nothing"
    return f"{shown} and {len(names) - 5} more" if len(names) > 5 else shown


def _is_due(values: Values, job: Job) -> str:
    late, ahead = duration(values["seconds"]), values["ahead"]
    if not ahead:
        return f"It has been due for {late}, and is the first of its name."
    more = "more than " if values["is_capped"] else ""
    others = f"{more}{counted(ahead, 'job')} of its name {'is' if ahead == 1 else 'are'}"
    return f"It has been due for {late}, and {others} due before it."


def _is_served(values: Values, job: Job) -> str:
    number = values["instances"]
    runs = "instance runs" if number == 1 else "instances run"
    full = ": all slots were taken" if values["is_full"] else ""
    held, overdue = counted(values["held"], "job"), values["overdue"]
    threads = f"; threads of cancelled runs hold {counted(overdue, 'slot')} until they end" if overdue else ""
    idle = f"; if that stays so, ask `trio-monque doctor {quote(one_line(job.name))}`" if values["is_idle"] else ""
    return f"{number} live {runs} its name, and held {held} of it at the last heartbeat{full}{threads}{idle}."


def _is_suspect(values: Values, job: Job) -> str:
    return (
        f"The last {values['deaths']} claims on it died, so it may kill its process: an instance runs one such job at "
        "a time."
    )


def _runs(values: Values, job: Job) -> str:
    limit = values["time_limit"]
    if values["is_over"]:
        return (
            f"It was claimed{_claimed(values, 'by')}, and its time limit of {duration(limit)} is over: the run was "
            "cancelled, but its thread goes on, and holds a slot until it returns; the last sign of life came "
            f"{duration(values['silent'])} ago."
        )
    within = "" if limit is None else f", for {duration(limit)} at most"
    is_running = "is running" if values["since"] is None else "has been running"
    or_waits = " or waiting for children" if values["is_parent"] else ""
    how = f"{is_running}{or_waits}{_claimed(values, 'on', 'since')}{within}"
    late = ": its process may have died" if values["is_late"] else ""
    return f"It {how}; the last sign of life came {duration(values['silent'])} ago{late}."


def _holder_gone(values: Values, job: Job) -> str:
    lease, silent = duration(values["lease"]), duration(values["silent"])
    return (
        f"It was claimed{_claimed(values, 'by')}, which has ended since. If it did not complete the job, another "
        f"instance rescues it {lease} after the last sign of life, which came {silent} ago."
    )


def _blocked_loop(values: Values, job: Job) -> str:
    handler = values["handler"]
    culprit = "something outside of the handlers" if handler is None else f"a handler of {handler!r}"
    return (
        f"While it was due, {culprit} blocked the event loop of {values['instance']} for "
        f"{duration(values['seconds'])} or longer, seen last {duration(values['ago'])} ago: an instance whose loop is "
        "blocked starts nothing. Its log has the frames."
    )


def _is_silent(values: Values, job: Job) -> str:
    silent = values["silent"]
    how_long = "never came" if silent is None else f"came {duration(silent)} ago"
    return (
        f"It was claimed{_claimed(values, 'by')}, and the last sign of life {how_long}: its process died, or is "
        f"frozen or cut off. Other instances rescue it {duration(values['lease'])} after the last sign that they saw."
    )


def _claimed(values: Values, preposition: str, word: str = "at") -> str:
    since = "" if values["since"] is None else f" {word} {moment(values['since'])}"
    library = "" if values["is_ours"] else ", through another library"
    return f"{since} {preposition} {values['holder'] or values['by']}{library}"


def _cancel_requested(values: Values, job: Job) -> str:
    ago = duration(values["seconds"])
    if not values["is_held"]:
        return f"Its cancellation was requested {ago} ago: it ends when it is rescued."
    return (
        f"Its cancellation was requested {ago} ago. It ends at the next `await` of its handler; a plain handler must "
        "call `job.check_cancelled()` to notice."
    )


def _failed(values: Values, job: Job) -> str:
    # A retry before that would fail again in the same way.
    first = " Deploy a worker that can read its data first." if values["is_unreadable"] else ""
    if (parent := values["parent"]) is not None:
        return (
            f"It has failed, and is a child of job {parent}. Unless that has completed, retry that instead: "
            f"`trio-monque retry {parent}`. If it has, it may have undone what this job is a part of: look at it "
            f"before you retry this job.{first}"
        )
    return f"It has failed: {_retry(values, job)}.{first}"


def _cancelled(values: Values, job: Job) -> str:
    start_by = values["start_by"]
    if start_by is None:
        return f"It was cancelled: {_retry(values, job)}."
    late = f"No run began by {moment(start_by)} (start_by), so it was cancelled"
    cause = f"`trio-monque doctor {quote(one_line(job.name))}` may show why it waited."
    return f"{late}: {_retry(values, job)}, without that limit. {cause}"


def _cut_short(number: int) -> str:
    if not number:
        return ""
    attempts = counted(number, "earlier attempt")
    return f" {attempts} left no failure: the run was snoozed, released or cancelled, or its process died."


def _retry(values: Values, job: Job) -> str:
    # A rescue or an operator may have ended it without a try.
    again = "now, and then on its schedule" if values["is_recurring"] else "again"
    return f"`trio-monque retry {job.id}` runs it {again}, with all its attempts"


_ABOUT_NAME: Final[Mapping[str, Callable[[Values], str]]] = {
    "no_instances": _no_instances,
    "all_draining": _all_draining,
    "not_served": _not_served,
}

_SENTENCES: Final[Mapping[str, Callable[[Values, Job], str]]] = {
    "has_owner": _has_owner,
    "not_due": _not_due,
    "paused": lambda values, _: (
        f"Its name is paused{since_and_by(values['since'], values['by'])}: `trio-monque resume {values['name']}`."
    ),
    **{kind: lambda values, _, say=say: say(values) for kind, say in _ABOUT_NAME.items()},  # type: ignore[misc]
    "is_due": _is_due,
    "is_served": _is_served,
    "blocked_loop": _blocked_loop,
    "is_suspect": _is_suspect,
    "nothing_known": lambda *_: (
        "Nothing seems to hold it up: look again in a minute, then ask `trio-monque doctor` (a validator of the "
        "collection may refuse claims, for example), then look in the log of the worker for its id."
    ),
    "runs": _runs,
    "holder_gone": _holder_gone,
    "is_silent": _is_silent,
    "no_rescuer": lambda *_: "No other live instance can do that: start a worker (`trio-monque run`).",
    "cancel_requested": _cancel_requested,
    "completed": lambda values, _: "It has completed." + _cut_short(values["cut_short"]),
    "failed": _failed,
    "cancelled": _cancelled,
}
