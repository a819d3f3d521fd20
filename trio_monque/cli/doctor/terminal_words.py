"""The words of the terminal for what the doctor can find: each kind has a sentence, and advice that names commands.

The page docs/how-to/troubleshoot.md has the same texts. `{fields}` are the values of a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from shlex import quote
from string import Formatter
from typing import Any, Final

from ...diagnosis.findings import SEVERITIES, Finding, Severity
from ...store.reads.diagnosis.caps import Count
from ..output import moment, since_and_by


@dataclass(frozen=True, slots=True)
class KindWords:
    """The words for one kind of finding.

    Attributes:
        name: Identifies it, also in JSON.
        sentence: What is wrong.
        advice: What to do.
    """

    name: str
    sentence: str
    advice: str

    @property
    def severity(self) -> Severity:
        """How much it matters. All but notes make the exit status 1."""
        return SEVERITIES[self.name]


@dataclass(frozen=True, slots=True)
class ShownFinding:
    """A kind with the values of one case, as the terminal has them."""

    kind: KindWords
    fields: Mapping[str, Any]

    @property
    def as_json(self) -> dict[str, Any]:
        """The values; a count is a number, and `is_capped` beside it has whether there may be more."""
        counts = {name: value for name, value in self.fields.items() if isinstance(value, Count)}
        numbers = {name: count.number for name, count in counts.items()}
        is_capped = {"is_capped": any(count.is_capped for count in counts.values())} if counts else {}
        return {**self.fields, **numbers, **is_capped}

    @property
    def sentence(self) -> str:
        return self.kind.sentence.format_map(self.fields)

    @property
    def advice(self) -> str:
        return self.kind.advice.format_map(self.fields)


def shown(finding: Finding) -> ShownFinding:
    """Return the finding with its words. Its values become texts where the words need them so."""
    return ShownFinding(KINDS[finding.kind], _fields_of(finding))


_KINDS: Final[dict[str, KindWords]] = {}
KINDS: Final[Mapping[str, KindWords]] = _KINDS
"""All kinds, by name, in the order of the page."""


def _say(name: str, sentence: str, advice: str) -> None:
    assert name not in _KINDS, name
    _KINDS[name] = KindWords(name, sentence, advice)


# --- Values as texts ---


def _fields_of(finding: Finding) -> dict[str, Any]:
    given = finding.values
    fields = dict(given)
    for name in ("ago", "silent"):
        if name in given:
            fields[name] = f"{given[name]:.0f}"
    if "name" in given:
        fields["quoted"] = quote(given["name"])
    if "similar" in given:
        fields["suggestion"] = f"; one runs {given['similar']!r}" if given["similar"] else ""
    if "is_alone" in given:
        fields["start"] = _START if given["is_alone"] else ""
    if "by" in given:
        fields["since_and_by"] = since_and_by(given["since"], given["by"])
    if (own := _OWN_TEXTS.get(finding.kind)) is not None:
        fields |= own(given)
    words = KINDS[finding.kind]
    named = {field for _, field, _, _ in Formatter().parse(words.sentence + words.advice)}
    return {name: value for name, value in fields.items() if name in named}


_START: Final = "No instance is alive: start a worker, `trio-monque run MODULE:ATTRIBUTE`. "


def _of_stuck_jobs(values: Mapping[str, Any]) -> dict[str, Any]:
    lease = {"lease": f"{values['lease']:g}"}
    if values["state"] == "ended":
        return {**lease, "reason": "it has no entry among the instances: it has ended"}
    where = f"its process {values['pid']} on {values['host']}"
    if values["state"] == "alive":
        return {**lease, "reason": f"{where} is alive, and does not renew them"}
    silent = f"has sent no heartbeat for {values['ago']:.0f} s: it died or is frozen"
    return {**lease, "reason": f"{where} {silent}"}


def _of_members(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"members": ", ".join(f"{one} ({state})" for one, state in values["members"].items()) or "unknown"}


def _of_clocks(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"seconds": f"{values['seconds']:.1f}", "direction": "ahead of" if values["is_ahead"] else "behind"}


def _of_block(values: Mapping[str, Any]) -> dict[str, Any]:
    handler = values["handler"]
    culprit = "Something outside of the handlers" if handler is None else f"A handler of the name {handler!r}"
    return {"culprit": culprit, "seconds": f"{values['seconds']:.1f}"}


def _of_size(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"size": f"{values['size']:,}"}


_OWN_TEXTS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "blocked-loop": _of_block,
    "stuck-jobs": _of_stuck_jobs,
    "long-runs": lambda one: {"since": moment(one["since"]), "longest": f"{one['longest']:.0f}"},
    "no-primary": _of_members,
    "no-majority": _of_members,
    "clock-off": _of_clocks,
    "member-clock-off": _of_clocks,
    "oversized-document": _of_size,
    "nearly-full-document": _of_size,
    "many-streams": lambda one: {"writes": f"{one['writes']:,.0f}", "percent": f"{one['share']:.0%}"},
    "ended-schedule": lambda one: {
        "at": moment(one["at"]),
        "schedule": f"job {one['job']}" if one["key"] is None else f"job {one['job']}, with the key {one['key']!r}",
    },
    "node-indexes": lambda one: {"names": ", ".join(one["names"])},
    "expiring-index": lambda one: {"seconds": f"{one['seconds']:g}"},
}

# --- The server ---

_say(
    "old-server",
    "The server runs MongoDB {version}, and this library is made for {oldest} or later.",
    "Upgrade the server.",
)
_say(
    "standalone-server",
    "The server is a standalone server: it has no change streams, no transactions and no failover.",
    "Start it with --replSet rs0 and run rs.initiate() once: one server can be a replica set. Until then, workers "
    "poll, and a job starts up to `poll_interval` late.",
)
_say(
    "no-primary",
    "The replica set has no primary: nothing can be enqueued, claimed or settled. Its members: {members}.",
    "Start the members that are down, until a majority of them is up; then they elect a primary by themselves. "
    "Running jobs are cancelled before their leases end, and run again afterwards.",
)
_say(
    "no-majority",
    "Only {up} members of the replica set hold data and are up, and a majority write needs {needed}: no claim and no "
    "end of a job is acknowledged. Its members: {members}.",
    "Start the members that are down. An arbiter holds no data, and acknowledges nothing.",
)
_say(
    "member-down",
    "Member {member} of the replica set is in state {state}.",
    "Start it, or look at its log: with fewer members, the next failure may stop all writes.",
)
_say(
    "members-hidden",
    "This user may not ask for the state of the members, so the doctor did not look at them.",
    "Grant the role clusterMonitor to the user of the doctor, if you want to know.",
)
_say(
    "direct-connection",
    "The connection string names one member only (directConnection=true): after an election, no primary is found.",
    "Remove directConnection from it, and name the set: mongodb://host1,host2,host3/?replicaSet=NAME.",
)
_say(
    "clock-off",
    "The clock of this machine is {seconds} s {direction} the server's.",
    "Set the clock, for example with NTP. The library itself goes by the server's clock; but a `run_at` that a "
    "program here computes is wrong by that much, and so are Monque for Node and programs with locks of their own.",
)
_say(
    "member-clock-off",
    "The clock of member {member} is {seconds} s {direction} that of {other}.",
    "Set the clocks of the servers, for example with NTP: if that member becomes primary, jobs become due that much "
    "earlier or later.",
)
_say(
    "small-pool",
    "The pool of the client has {size} connections, and a scheduler needs {needed}.",
    "Set maxPoolSize={needed} or more in the connection string, or remove it: no scheduler starts with less.",
)
_say(
    "server-full",
    "The pool of connections of the server is nearly full: it has {used}, and accepts {available} more.",
    "Raise net.maxIncomingConnections of the server (or the limit of its plan), or let fewer programs connect: a "
    "scheduler needs up to {needed}.",
)
_say(
    "no-change-stream",
    "The change stream cannot be opened, so workers poll: {problem}",
    "Give the user the right to read the whole database (role `read`), or pass `change_stream=False` and a "
    "`poll_interval` that suits you. On a standalone server, see standalone-server.",
)
_say(
    "many-streams",
    "Schedulers follow {count} change streams, and the server writes {writes} documents a second. It reads each "
    "document for each stream, which takes about {percent} of a core.",
    "If jobs of other processes may start a little later, polls are cheaper: `--no-change-stream --poll-interval 1`. "
    "The processes of one `trio-monque run --processes N` share a stream.",
)

# --- Indexes ---

_say(
    "no-collection",
    "The database {database} has no collection {collection}.",
    "Check --database and --collection. If they are right, no program has enqueued a job or run a worker yet.",
)
_say(
    "unsafe-collection",
    "The collection {collection} cannot hold jobs: {problem}.",
    "Create a collection without these options under another name, copy the documents into it, and rename it; or give "
    "the jobs another collection (`--collection`, `collection_name=`).",
)
_say(
    "missing-index",
    "The index {index} is missing.",
    "Run `trio-monque indexes --create`: on a large collection at a quiet time, with `--operation-timeout 1h`. A "
    "worker creates it at its start, too, unless `skip_index_creation` is set.",
)
_say(
    "other-index-definition",
    "The index {index} has another definition than this version of the library makes.",
    "No worker starts with it. When no worker runs, drop it, in mongosh by db.{collection}.dropIndex('{index}'), and "
    "start a worker: it creates the right one.",
)
_say(
    "index-under-other-name",
    "The index {other} has the definition of {index}, so that one cannot be created.",
    "No worker starts with it. When no worker runs, drop it, in mongosh by db.{collection}.dropIndex('{other}'), and "
    "start a worker: it creates the same index under its own name.",
)
_say(
    "node-indexes",
    "The collection has {count} indexes of Monque for Node: with all ten, a claim and its end cost the server more "
    "than twice as much.",
    "If no Node program uses this collection any more, run `trio-monque indexes --drop-node`. It drops {names}.",
)
_say(
    "surplus-index",
    "The index {index} belongs to neither this library nor Monque for Node, and makes every claim and its end dearer.",
    "If no query of yours needs it, run `trio-monque indexes --drop-surplus`.",
)
_say(
    "unique-index",
    "The unique index {index} belongs to neither this library nor Monque for Node: the server may refuse jobs.",
    "Drop it. To have one job for a key, use `unique_key`.",
)
_say(
    "expiring-index",
    "The index {index} makes the server delete documents after {seconds} s, pending and running jobs too.",
    "Drop it, and use `retention` of a scheduler, which deletes ended jobs only.",
)
_say(
    "unserved-query",
    "No index serves {query}: the server reads the whole collection, or sorts it.",
    "Create the missing index: see missing-index.",
)
_say(
    "costly-query",
    "The server reads {examined} documents to find {returned} in {query}.",
    "Look for documents that no worker can claim: `trio-monque doctor --all-documents` names them. Repair or delete "
    "them.",
)

# --- The fleet ---

_say(
    "no-instance",
    "No instance is alive, so no job runs. Pending jobs: {pending}.",
    "Start a worker process: `trio-monque run MODULE:ATTRIBUTE`.",
)
_say(
    "dead-instance",
    "Instance {instance} (process {pid} on {host}) sent its last heartbeat {ago} s ago: it died, is frozen, or does "
    "not reach the database.",
    "See what became of that process, and start another one if it is gone. Live instances rescue its jobs within a "
    "lease. One of them removes its entry when it has seen no heartbeat for ten of its intervals, counted from its own "
    "start at the earliest; while no instance is alive, the entry stays.",
)
_say(
    "overdue-threads",
    "Plain handlers of the name {name!r} that go on although their runs were cancelled, for example beyond their time "
    "limit: {count}, most of them in {instance}. Each holds a slot of its name until it returns.",
    'The log of {instance} has their stacks: look for "goes on although its run was cancelled". Give the call that '
    "they wait for a timeout of its own, below the `timeout` of the worker. A restart of the process frees the slots.",
)
_say(
    "blocked-loop",
    "{culprit} blocked the event loop of {instance} for {seconds} s, {ago} s ago. Times that its loop was blocked for "
    "longer than a second since its start: {times}.",
    'The log of {instance} has the frames: look for "is blocked for". Make the handler a plain function, which runs in '
    "a thread, or make the blocking call in a thread. On trio no claim is renewed meanwhile, and no job starts.",
)
_say(
    "stuck-jobs",
    "Jobs stuck in `processing`: {count}. Their holder {instance} has not renewed its claims for {silent} s, as "
    "{reason} (for example job {job}).",
    "{start}A live instance makes them pending again when it has seen no renewal for {lease} s. If the process still "
    "exists, find out why it stands still: it may be stopped, suspended, or without a network.",
)
_say(
    "no-holder",
    "Jobs in `processing` without a holder: {count} (for example job {job}).",
    "{start}Another program wrote them so. A live instance makes them pending again when they are older than its "
    "`lock_timeout`.",
)
_say(
    "stuck-node-jobs",
    "Jobs in `processing` under {instance}: {count}. It is not an instance of this library, and has not renewed its "
    "claims for {silent} s (for example job {job}).",
    "{start}If that process is gone, a live instance takes its jobs when their claims are older than its "
    "`lock_timeout` (by default half an hour).",
)
_say(
    "node-peer",
    "{instance} is not an instance of this library: Monque for Node works on this collection too. Jobs that it holds: "
    "{count}.",
    "Its `lockTimeout` must be at least the `lock_timeout` here, and it ignores pauses, time zones and the limits of "
    "single jobs. See the page on sharing a collection with Node.",
)

# --- Jobs ---

_say(
    "unknown-name",
    "No live instance runs the name {name!r}{suggestion}. Pending jobs of it: {pending}.",
    "Start a worker for it: `trio-monque run MODULE:ATTRIBUTE`. If the name is misspelt, correct it where the jobs "
    "are enqueued, and drop these: `trio-monque cancel --name {quoted}`.",
)
_say(
    "no-such-name",
    "No job has the name {name!r}, and no live instance runs it{suggestion}.",
    "Check NAME and --collection: `trio-monque stats` lists the names that have jobs.",
)
_say(
    "paused-name",
    "The name {name!r} is paused{since_and_by}. Due jobs of it: {due}.",
    "Resume it when its jobs may run: `trio-monque resume {quoted}`.",
)
_say(
    "backlog",
    "Due jobs of the name {name!r}: {due}, the oldest for {ago} s.",
    "The fleet does not keep up: start further worker processes, or raise `concurrency` of that worker. If its jobs "
    "do not start at all, look at the log of a worker.",
)
_say(
    "long-runs",
    "Due jobs of the name {name!r}: {due}, the oldest for {ago} s. The running jobs of it ({running}) were all claimed "
    "more than a minute ago: job {job} has run longest, for {longest} s, since {since}.",
    "Look at it: `trio-monque show {job}`. If it hangs, end it: `trio-monque cancel {job}`, and give its worker a "
    "`timeout`. If jobs of the name take so long, start further worker processes, or raise `concurrency` of that "
    "worker. If that worker has free slots, see not-starting.",
)
_say(
    "not-starting",
    "Due jobs of the name {name!r}: {due}, the oldest for {ago} s. Slots are free in {instance}, but these jobs do not "
    "start.",
    'Look in the log of {instance} for "passed over": the server may refuse to have these jobs claimed, for example by '
    "a validator of the collection. If jobs of the name do start, and end at once, the fleet does not keep up: start "
    "further worker processes.",
)
_say(
    "poison-job",
    "Jobs of the name {name!r} ({status}) that may kill their process: {count}. Claims on one of them died {deaths} "
    "times in a row (for example job {job}).",
    "Look at one: `trio-monque show {job}`. Then look at what the job does to its process: memory, native code, a "
    "call that exits. When that is repaired, `trio-monque retry {job}` lets it run again; `trio-monque delete {job}` "
    "drops it. After `max_rescues` deaths it is `failed` by itself.",
)
_say(
    "failing-name",
    "The name {name!r} fails: {failed} of {attempts} attempts in the last {seconds:.0f} s. Jobs of it that failed for "
    "good meanwhile: {failed_for_good}.",
    "Look at one of them: `trio-monque jobs --name {quoted} --status failed` lists those that failed for good, and "
    "`--status pending` those that will be tried again. `trio-monque show ID` has the traceback.",
)
_say(
    "failing-job",
    "Jobs of the name {name!r} that failed {failures} times in a row or more, and will be tried again: {count}, one "
    "of them (job {job}) with: {reason}",
    "Look at one: `trio-monque show {job}`. Repair what the error names, or drop the job: `trio-monque cancel {job}`.",
)
_say(
    "failed-jobs",
    "Jobs of the name {name!r} that failed for good within the last day: {count}, one of them (job {job}) with: "
    "{reason}",
    "Look at one: `trio-monque show {job}`. Repair what the error names, and let them run again: `trio-monque retry "
    "--name {quoted} --status failed`.",
)
_say(
    "rescued-jobs",
    "Jobs taken from dead instances within the last day that have not completed since: {count}.",
    "One death after a restart is ordinary. If there are many, find out why processes end: the log of the system, or "
    "limits of memory.",
)
_say(
    "not-started-in-time",
    "Jobs of the name {name!r} that were cancelled within the last day, as no run began before their `start_by`: "
    "{count} (for example job {job}).",
    "Find out why they waited: no worker ran, or none had a free slot. `trio-monque retry {job}` lets one run after "
    "all, without its limit.",
)
_say(
    "owed-follow-ups",
    "Jobs of the name {name!r} that have ended and still owe a follow-up: {count}, the oldest for {ago} s.",
    'Start a worker whose `then` makes it. If one runs, its function raises: look in its log for "could not enqueue '
    'the follow-up". To drop these follow-ups, deploy `then=lambda job: None`. Until then retention spares the jobs.',
)
_say(
    "bad-schedule",
    "Schedules of the name {name!r} ({status}) that cannot be understood: {count} (for example job {job}): {problem}",
    "Drop it: `trio-monque delete {job}`, and declare it again with a right line. Until then it fails when its next "
    "occurrence is to be computed.",
)
_say(
    "unknown-time-zone",
    "Schedules of the name {name!r} ({status}) whose time zone this machine does not know: {count} (for example job "
    "{job}): {problem}",
    "Schedulers on a machine that does not know the zone leave the job to others. Install the package tzdata on it "
    "('pip install tzdata'), or declare the schedule again with another zone.",
)
_say(
    "ended-schedule",
    "Schedules of the name {name!r} that were cancelled, so that they do not recur: {count}, the last one ({schedule}) "
    "at {at}.",
    "To let it run now, and then by its schedule: `trio-monque retry {job}`. If nothing needs it any more: "
    "`trio-monque delete {job}`.",
)
_say(
    "broken-document",
    "Documents that cannot be run: {count}, for example {document}: {problem}.",
    "Repair each: `trio-monque repair ID --set FIELD=VALUE`, for example `--set nextRunAt=now`; several missing "
    "fields need several `--set` in one call. `trio-monque show --raw ID` prints it, `trio-monque delete ID` drops it. "
    "Until then schedulers skip them; they look at them again every minute.",
)
_say(
    "oversized-document",
    "Jobs of the name {name!r} without room for a claim, which never run: {count}. Job {job} has {size} bytes.",
    "Delete it: `trio-monque delete {job}`. Store its data elsewhere (a file, GridFS) and enqueue a reference to it.",
)
_say(
    "nearly-full-document",
    "Jobs of the name {name!r} whose result or errors may not fit: {count}. Job {job} has {size} of 16,777,216 bytes.",
    "Store their data elsewhere (a file, GridFS) and enqueue a reference to it.",
)

# --- The doctor itself ---

_say(
    "unanswered",
    "The database did not answer one question: {problem}",
    "Run the doctor again when the server is less busy, or with a user who has the right. What depends on this "
    "answer was not looked at.",
)
