"""The words of HTTP for what was found wrong: for each kind a sentence, and what to do. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ...diagnosis.findings import Finding
from .lengths import counted, length, moment, since_and_by

HIDDEN: Final = "(hidden)"


def sentence_about(finding: Finding) -> str:
    """Return what is wrong."""
    return _TEXTS[finding.kind][0].format_map(_texts_of(finding.values))


def advice_about(finding: Finding) -> str:
    """Return what to do."""
    return _TEXTS[finding.kind][1].format_map(_texts_of(finding.values))


def _texts_of(values: Mapping[str, Any]) -> Mapping[str, str]:
    texts = {name: _text(value) for name, value in values.items()}
    if "pid" in values:
        texts["pid"] = str(values["pid"])
    for name in ("ago", "silent", "lease", "seconds", "longest"):
        if name in values:
            texts[name] = length(values[name])
    texts |= _phrases_of(values)
    if (holder := _HOLDERS.get(texts.get("state", ""))) is not None:
        texts["holder"] = holder.format_map(texts)
    return texts


def _phrases_of(values: Mapping[str, Any]) -> Mapping[str, str]:
    phrases: dict[str, str] = {}
    if "is_ahead" in values:
        phrases["direction"] = "ahead of" if values["is_ahead"] else "behind"
    if "is_alone" in values:
        phrases["start"] = "No instance is alive: start a worker. " if values["is_alone"] else ""
    if "at" in values:
        phrases["at"] = moment(values["at"])
    if "key" in values:
        key = "" if values["key"] is None else f", with the key {values['key']}"
        phrases["schedule"] = f"{values['job']}{key}"
    if "by" in values:
        phrases["since_and_by"] = since_and_by(values["since"], values["by"])
    if "similar" in values:
        phrases["hint"] = f" One runs {values['similar']}: is the name misspelt?" if values["similar"] else ""
    if "handler" in values:
        handler = values["handler"]
        phrases["culprit"] = "Something" if handler is None else f"A handler of {handler}"
        phrases["times"] = counted(values["times"], "time")
    if "share" in values:
        phrases["share"] = f"{values['share']:.0%}"
    return phrases


def _text(value: Any) -> str:
    if value is None:
        return HIDDEN
    if isinstance(value, Mapping):
        return ", ".join(f"{one} ({state})" for one, state in value.items()) or "unknown"
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


_HOLDERS: Final = {
    "ended": "it has no entry among the instances, so it has ended",
    "alive": "its process {pid} on {host} is alive, and does not renew them",
    "silent": "its process {pid} on {host} has sent no heartbeat for {ago}",
}
_START: Final = "Start a worker for it. If the name is misspelt, correct it where jobs are enqueued, and cancel these."
_ELSEWHERE: Final = "Store the data elsewhere, such as in a file, and enqueue a reference to it."
_OWN_INDEX: Final = "No worker starts with it. Drop it when no worker runs: the next one creates the right index."

_TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "old-server": (
        "The server runs MongoDB {version}, and this library is made for {oldest} or later.",
        "Upgrade the server.",
    ),
    "standalone-server": (
        "The server is a standalone server: it has no change streams, no transactions and no failover.",
        "Make it a replica set of one member. Until then workers poll, and a job starts up to poll_interval late.",
    ),
    "no-primary": (
        "The replica set has no primary, so nothing can be enqueued, claimed or settled. Its members: {members}.",
        "Start the members that are down, until a majority of them is up.",
    ),
    "no-majority": (
        (
            "Only {up} members of the replica set hold data and are up, and a majority write needs {needed}. Its "
            "members: {members}."
        ),
        "Start the members that are down. An arbiter holds no data, and acknowledges nothing.",
    ),
    "member-down": (
        "Member {member} of the replica set is in state {state}.",
        "Start it, or look at its log: with fewer members, the next failure may stop all writes.",
    ),
    "members-hidden": (
        "This user may not ask for the state of the members, so it was not looked at.",
        "Grant the role clusterMonitor to the user, if you want to know.",
    ),
    "direct-connection": (
        "The connection string names one member only (directConnection=true): after an election, no primary is found.",
        "Remove directConnection from it, and name the set.",
    ),
    "clock-off": (
        "The clock of this machine is {seconds} {direction} the server's.",
        "Set the clock, for example with NTP: a run_at that a program here computes is wrong by that much.",
    ),
    "member-clock-off": (
        "The clock of member {member} is {seconds} {direction} that of {other}.",
        "Set the clocks of the servers, for example with NTP: after an election jobs become due that much off.",
    ),
    "small-pool": (
        "The pool of the client has {size} connections, and a scheduler needs {needed}.",
        "Set maxPoolSize={needed} or more in the connection string, or remove it.",
    ),
    "server-full": (
        "The server has {used} connections, and accepts {available} more.",
        "Raise its limit, or let fewer programs connect: a scheduler needs up to {needed}.",
    ),
    "no-change-stream": (
        "The change stream cannot be opened, so workers poll: {problem}",
        "Give the user the right to read the whole database (role read), or pass change_stream=False.",
    ),
    "many-streams": (
        (
            "Schedulers follow {count} change streams, and the server writes {writes} documents a second. Reading them "
            "for each stream takes about {share} of a core."
        ),
        "If jobs of other processes may start a little later, polls are cheaper: pass change_stream=False.",
    ),
    "no-collection": (
        "The database {database} has no collection {collection}.",
        "Check the names. If they are right, no program has enqueued a job or run a worker yet.",
    ),
    "unsafe-collection": (
        "The collection {collection} cannot hold jobs: {problem}.",
        "Copy the documents into a collection without these options, and rename it.",
    ),
    "missing-index": (
        "The index {index} is missing.",
        "A worker creates it at its start, unless skip_index_creation is set. Create it at a quiet time.",
    ),
    "other-index-definition": (
        "The index {index} has another definition than this version of the library makes.",
        _OWN_INDEX,
    ),
    "index-under-other-name": (
        "The index {other} has the definition of {index}, so that one cannot be created.",
        _OWN_INDEX,
    ),
    "node-indexes": (
        "The collection has {count} indexes of Monque for Node, which make claims dearer: {names}.",
        "Drop them if no Node program uses this collection any more.",
    ),
    "surplus-index": (
        "The index {index} belongs to neither this library nor Monque for Node, and makes every claim dearer.",
        "Drop it if no query of yours needs it.",
    ),
    "unique-index": (
        "The unique index {index} belongs to neither this library nor Monque for Node: the server may refuse jobs.",
        "Drop it. To have one job for a key, use unique_key.",
    ),
    "expiring-index": (
        "The index {index} makes the server delete documents after {seconds}, pending and running jobs too.",
        "Drop it, and use the retention of a scheduler, which deletes ended jobs only.",
    ),
    "unserved-query": (
        "No index serves {query}: the server reads the whole collection, or sorts it.",
        "Create the missing index.",
    ),
    "costly-query": (
        "The server reads {examined} documents to find {returned} in {query}.",
        "Look for documents that no worker can claim, and repair or delete them.",
    ),
    "no-instance": ("No instance is alive, so no job runs. Pending jobs: {pending}.", "Start a worker process."),
    "dead-instance": (
        (
            "Instance {instance} (process {pid} on {host}) sent its last heartbeat {ago} ago: it died, is frozen, or "
            "does not reach the database."
        ),
        "See what became of that process, and start another one if it is gone. Live instances rescue its jobs.",
    ),
    "overdue-threads": (
        "Plain handlers of {name} that go on although their runs were cancelled: {count}, most of them in {instance}.",
        "Each holds a slot until it returns. Give the call that they wait for a timeout; a restart frees the slots.",
    ),
    "blocked-loop": (
        "{culprit} blocked the event loop of {instance} for {seconds}, {ago} ago: {times} since its start.",
        "The log has the frames. Make the handler a plain function, or make the blocking call in a thread.",
    ),
    "stuck-jobs": (
        "Jobs stuck in processing: {count}. Their holder {instance} has not renewed its claims for {silent}: {holder}.",
        "{start}A live instance makes them pending again after {lease} without a renewal.",
    ),
    "no-holder": (
        "Jobs in processing without a holder: {count}, for example {job}.",
        "{start}Another program wrote them so. A live instance makes them pending again after its lock_timeout.",
    ),
    "stuck-node-jobs": (
        "Jobs in processing under {instance}, of another library, whose claims were not renewed for {silent}: {count}.",
        "{start}If that process is gone, a live instance takes them after its lock_timeout.",
    ),
    "node-peer": (
        "{instance} belongs to Monque for Node, which works on this collection too. Jobs that it holds: {count}.",
        "It ignores pauses, time zones and the limits of single jobs.",
    ),
    "unknown-name": ("No live instance runs the name {name}. Pending jobs of it: {pending}.{hint}", _START),
    "no-such-name": ("No job has the name {name}, and no live instance runs it.{hint}", "Check the name."),
    "paused-name": (
        "The name {name} is paused{since_and_by}. Due jobs of it: {due}.",
        "Resume it when its jobs may run.",
    ),
    "backlog": (
        "Due jobs of the name {name}: {due}, the oldest for {ago}.",
        "The instances do not keep up: start further ones, or raise the concurrency of that worker.",
    ),
    "long-runs": (
        (
            "Due jobs of the name {name}: {due}, the oldest for {ago}. The running jobs of it ({running}) were all "
            "claimed more than a minute ago: job {job} has run longest, for {longest}."
        ),
        (
            "Look at it. If it hangs, cancel it, and give its worker a timeout. If jobs of the name take so "
            "long, start further instances, or raise the concurrency of that worker."
        ),
    ),
    "not-starting": (
        (
            "Due jobs of the name {name}: {due}, the oldest for {ago}. Slots are free in {instance}, but these jobs do "
            "not start."
        ),
        (
            'Look in the log of {instance} for "passed over": the server may refuse to have these jobs claimed. If '
            "jobs of the name do start, and end at once, start further instances."
        ),
    ),
    "poison-job": (
        (
            "Jobs of the name {name} ({status}) that may kill their process: {count}. Claims on one of them died "
            "{deaths} times in a row."
        ),
        "Look at one, for example {job}: what does it do to its process? When that is repaired, retry it.",
    ),
    "failing-name": (
        "{name} fails: {failed} of {attempts} attempts in the last {seconds}. Failed for good: {failed_for_good}.",
        "Look at one of its failed jobs, or at one that will be tried again: its page has the traceback.",
    ),
    "failing-job": (
        "Jobs of the name {name} that failed {failures} times in a row or more: {count}, one of them with: {reason}",
        "Repair what the error names, or cancel the job {job}.",
    ),
    "failed-jobs": (
        "Jobs of the name {name} that failed for good within the last day: {count}, one of them with: {reason}",
        "Repair what the error names, and retry them.",
    ),
    "rescued-jobs": (
        "Jobs taken from dead instances within the last day that have not completed since: {count}.",
        "One death after a restart is ordinary. If there are many, find out why processes end.",
    ),
    "not-started-in-time": (
        (
            "Jobs of the name {name} that were cancelled within the last day, as no run began before their start_by: "
            "{count}, for example {job}."
        ),
        (
            "Find out why they waited: no worker ran, or none had a free slot. A retry lets a job run after all, "
            "without its limit."
        ),
    ),
    "owed-follow-ups": (
        "Jobs of the name {name} that have ended and still owe a follow-up: {count}, the oldest for {ago}.",
        "Start a worker whose `then` makes it. If one runs, its function raises: look at its log.",
    ),
    "bad-schedule": (
        "Schedules of the name {name} ({status}) that cannot be understood: {count}, for example {job}: {problem}",
        "Delete it, and declare it again with a right line.",
    ),
    "unknown-time-zone": (
        "Schedules of the name {name} ({status}) whose time zone this machine does not know: {count}: {problem}",
        "Install the package tzdata on machines that run it, or declare the schedule again with another zone.",
    ),
    "ended-schedule": (
        (
            "Schedules of the name {name} that were cancelled, so that they do not recur: {count}, the last one "
            "({schedule}) at {at}."
        ),
        "A retry lets it run now, and then by its schedule. Delete it if nothing needs it any more.",
    ),
    "broken-document": (
        "Documents that cannot be run: {count}, for example {document}: {problem}.",
        "Repair or delete each. Until then schedulers skip them, and look at them again every minute.",
    ),
    "oversized-document": (
        "Jobs of the name {name} without room for a claim, which never run: {count}. Job {job} has {size} bytes.",
        "Delete it. " + _ELSEWHERE,
    ),
    "nearly-full-document": (
        "Jobs of the name {name} whose result or errors may not fit: {count}. Job {job} has {size} bytes of 16 MiB.",
        _ELSEWHERE,
    ),
    "unanswered": (
        "The database did not answer one question: {problem}",
        "Look again when the server is less busy, or with a user who has the right.",
    ),
}
