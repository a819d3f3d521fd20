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
from ..output import duration, moment, since_and_by


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


class LengthInWords(float):
    """A length of time in seconds: a number in JSON, and words in a sentence."""

    def __format__(self, _spec: str) -> str:
        return duration(float(self))


class NamesInBrackets(list[str]):
    """Names: a list in JSON, and words in brackets in a sentence."""

    def __format__(self, _spec: str) -> str:
        return f" ({', '.join(map(repr, self))})" if self else ""


class OtherIds(list[str]):
    """Ids: a list in JSON, and a sentence behind others."""

    def __format__(self, _spec: str) -> str:
        return f" Also: {', '.join(self)}." if self else ""


LENGTHS: Final = frozenset({"ago", "silent", "longest", "lease", "seconds"})

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
    for name in LENGTHS & given.keys():
        fields[name] = LengthInWords(given[name])
    if "name" in given:
        fields["quoted"] = quote(given["name"])
    if "similar" in given:
        fields["suggestion"] = f"; one runs {given['similar']!r}" if given["similar"] else ""
    if "is_alone" in given:
        fields["start"] = _START if given["is_alone"] else ""
    if "obstacle" in given:
        fields["obstacle"] = _OBSTACLES[given["obstacle"]]
    if "by" in given:
        fields["since_and_by"] = since_and_by(given["since"], given["by"])
    if (own := _OWN_TEXTS.get(finding.kind)) is not None:
        fields |= own(given)
    words = KINDS[finding.kind]
    named = {field for _, field, _, _ in Formatter().parse(words.sentence + words.advice)}
    return {name: value for name, value in fields.items() if name in named}


_OBSTACLES: Final = {
    "paused": " The name is paused now.",
    "unserved": " No live instance runs the name now.",
    None: "",
}
_START: Final = "No instance is alive: start a worker, `trio-monque run MODULE:ATTRIBUTE`. "


def _of_stuck_jobs(values: Mapping[str, Any]) -> dict[str, Any]:
    if values["state"] == "ended":
        return {"reason": "it has ended, as it has no entry in the fleet"}
    where = f"its process {values['pid']} on {values['host']}"
    if values["state"] == "alive":
        return {"reason": f"{where} is alive, but does not renew them"}
    return {"reason": f"{where} has sent no heartbeat for {duration(values['ago'])}: it died or is frozen"}


def _of_members(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"members": ", ".join(f"{one} ({state})" for one, state in values["members"].items()) or "unknown"}


def _of_clocks(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"seconds": f"{values['seconds']:.1f}", "direction": "ahead of" if values["is_ahead"] else "behind"}


def _of_block(values: Mapping[str, Any]) -> dict[str, Any]:
    handler = values["handler"]
    culprit = "Something outside of the handlers" if handler is None else f"A handler of {handler!r}"
    return {"culprit": culprit}


def _of_size(values: Mapping[str, Any]) -> dict[str, Any]:
    return {"size": f"{values['size']:,}"}


_OWN_TEXTS: Final[Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]]] = {
    "blocked-loop": _of_block,
    "stuck-jobs": _of_stuck_jobs,
    "long-runs": lambda one: {"since": moment(one["since"])},
    "slots-taken": lambda one: {"names": NamesInBrackets(one["names"])},
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
    "broken-document": lambda one: {"others": OtherIds(one["others"])},
    "node-indexes": lambda one: {"names": ", ".join(one["names"])},
}

# --- The server ---

_say(
    "old-server",
    "The server runs MongoDB {version}; this library supports {oldest} or later.",
    "Upgrade the server.",
)
_say(
    "standalone-server",
    "The server is standalone: it has no change streams, transactions or failover.",
    "Start it with --replSet rs0 and run rs.initiate() once: a single server can be a replica set. Until then, "
    "workers poll, and a job starts up to `poll_interval` late.",
)
_say(
    "no-primary",
    "The replica set has no primary: nothing can be enqueued, claimed or settled. Its members: {members}.",
    "Start members that are down until a majority is up; they then elect a primary. Running jobs are cancelled before "
    "their leases expire, and run again afterwards.",
)
_say(
    "no-majority",
    "Data-bearing members of the replica set that are up: {up}. A majority write needs {needed}: no claim and no "
    "outcome of a job is acknowledged. Its members: {members}.",
    "Start the members that are down. An arbiter holds no data and acknowledges nothing.",
)
_say(
    "member-down",
    "Member {member} of the replica set is in state {state}.",
    "Start it, or check its log: with fewer members, the next failure may stop all writes.",
)
_say(
    "members-hidden",
    "This user may not read the state of the members, so the doctor did not check them.",
    "To check them, grant the role clusterMonitor to the user of the doctor.",
)
_say(
    "direct-connection",
    "The connection string names a single member (directConnection=true): after an election, the client cannot find "
    "the new primary.",
    "Remove directConnection and name the replica set: mongodb://host1,host2,host3/?replicaSet=NAME.",
)
_say(
    "clock-off",
    "The clock of this machine is {seconds} s {direction} the server's.",
    "Synchronize the clock, for example with NTP. The library uses the server's clock, but a `run_at` that a program "
    "here computes is off by that much, and so are Monque for Node and programs with their own locks.",
)
_say(
    "member-clock-off",
    "The clock of member {member} is {seconds} s {direction} that of {other}.",
    "Synchronize the clocks of the servers, for example with NTP: if that member becomes primary, jobs become due "
    "that much earlier or later.",
)
_say(
    "small-pool",
    "The client's connection pool has {size} connections, and a scheduler needs {needed}.",
    "Set maxPoolSize={needed} or more in the connection string, or remove it: a scheduler does not start with fewer.",
)
_say(
    "server-full",
    "The server is nearly out of connections: it has {used}, and accepts {available} more.",
    "Raise net.maxIncomingConnections of the server (or the limit of its plan), or connect fewer programs: a "
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
    "If jobs from other processes may start a little later, polling is cheaper: `--no-change-stream --poll-interval "
    "1`. The processes of one `trio-monque run --processes N` share a stream.",
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
    "The definition of the index {index} differs from the one that this version of the library creates.",
    "No worker starts while it exists. While no worker is running, drop it in mongosh with "
    "db.{collection}.dropIndex('{index}'), then start a worker: it creates the right one.",
)
_say(
    "index-under-other-name",
    "The index {other} has the definition of {index}, so {index} cannot be created.",
    "No worker starts while it exists. While no worker is running, drop it in mongosh with "
    "db.{collection}.dropIndex('{other}'), then start a worker: it creates the same index under its own name.",
)
_say(
    "node-indexes",
    "The collection has {count} indexes of Monque for Node: with all ten, claiming and settling a job costs the "
    "server more than twice as much.",
    "If no Node program uses this collection any more, run `trio-monque indexes --drop-node`. It drops {names}.",
)
_say(
    "surplus-index",
    "The index {index} belongs to neither this library nor Monque for Node, and makes every claim and settlement more "
    "expensive.",
    "If none of your queries needs it, run `trio-monque indexes --drop-surplus`.",
)
_say(
    "unique-index",
    "The unique index {index} belongs to neither this library nor Monque for Node: the server may refuse jobs.",
    "Drop it. To allow only one job per key, use `unique_key`.",
)
_say(
    "expiring-index",
    "The index {index} makes the server delete documents after {seconds}, including pending and running jobs.",
    "Drop it, and use the `retention` of a scheduler, which deletes only ended jobs.",
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
    "Instance {instance} (process {pid} on {host}) sent its last heartbeat {ago} ago: it died, is frozen, or cannot "
    "reach the database.",
    "Check that process, and start another one if it is gone. Live instances rescue its jobs within a lease. One of "
    "them removes its entry when it has seen no heartbeat for ten of its intervals, counted from its own start at the "
    "earliest; while no instance is alive, the entry stays.",
)
_say(
    "overdue-threads",
    "Plain handlers of {name!r} that are still running although their runs were cancelled, for example at their time "
    "limit: {count}, most of them in {instance}. Each occupies a slot until it returns.",
    'The log of {instance} has their stacks: look for "is still running although its run was cancelled". Set a '
    "timeout on the call that they wait for, shorter than the `timeout` of the worker. Restarting the process frees "
    "the slots: first cancel the jobs that still have such a run (`trio-monque jobs --name {quoted} --status "
    "processing`), or they run again.",
)
_say(
    "blocked-loop",
    "{culprit} blocked the event loop of {instance} for {seconds} or longer, seen last {ago} ago. Times that its "
    "loop was blocked for longer than a second since its start: {times}.",
    'Now: pause the name, and restart the process. The log of {instance} has the frames: look for "is blocked for". '
    "Make the handler a plain function, which runs in a thread, or make the blocking call in a thread. While a loop is "
    "blocked, no job starts on it; on trio, no claim is renewed either.",
)
_say(
    "stuck-jobs",
    "Jobs stuck in `processing`: {count}. Their holder {instance} has not renewed its claims for {silent}: {reason} "
    "(for example job {job}).",
    "{start}A live instance makes them pending again when it has seen no renewal for {lease}. If the process still "
    "exists, find out why it is stuck: it may be stopped, suspended, or cut off from the network.",
)
_say(
    "no-holder",
    "Jobs in `processing` without a holder: {count} (for example job {job}).",
    "{start}Another program left them in this state. A live instance makes them pending again when they are older "
    "than its `lock_timeout`.",
)
_say(
    "stuck-node-jobs",
    "Jobs in `processing` under {instance}: {count}. It is not an instance of this library, and has not renewed its "
    "claims for {silent} (for example job {job}).",
    "{start}If that process is gone, a live instance takes its jobs when their claims are older than its "
    "`lock_timeout` (by default half an hour).",
)
_say(
    "node-peer",
    "{instance} is not an instance of this library: Monque for Node works on this collection too. Jobs that it holds: "
    "{count}.",
    "Its `lockTimeout` must be at least the `lock_timeout` here, and it ignores pauses, time zones and the limits of "
    "individual jobs. See the page on sharing a collection with Node.",
)

# --- Jobs ---

_say(
    "unknown-name",
    "No live instance runs jobs named {name!r}{suggestion}. Pending jobs: {pending}.",
    "Start a worker for it: `trio-monque run MODULE:ATTRIBUTE`. If the name is misspelt, correct it where the jobs "
    "are enqueued. To run these all the same, register the old name, too, until they are done; to drop them: "
    "`trio-monque cancel --name {quoted}`.",
)
_say(
    "no-such-name",
    "No job has the name {name!r}, and no live instance runs it{suggestion}.",
    "Check NAME and --collection: `trio-monque stats` lists the names that have jobs.",
)
_say(
    "paused-name",
    "The name {name!r} is paused{since_and_by}. Due jobs: {due}.",
    "Resume it when its jobs may run: `trio-monque resume {quoted}`.",
)
_say(
    "backlog",
    "Due jobs named {name!r}: {due}; the oldest has waited {ago}.",
    "The fleet cannot keep up: start more worker processes, or raise the `concurrency` of that worker. If no job "
    "starts at all, check the log of a worker.",
)
_say(
    "long-runs",
    "Due jobs named {name!r}: {due}; the oldest has waited {ago}. All running jobs of this name ({running}) were "
    "claimed more than a minute ago; job {job} has run longest, for {longest}, since {since}.",
    "Inspect it: `trio-monque show {job}`. If it hangs, cancel it: `trio-monque cancel {job}`, and give its worker a "
    "`timeout`. If such jobs normally take this long, start more worker processes, or raise the `concurrency` of that "
    "worker. If overdue-threads names it too, only a restart frees the slots. If that worker has free slots, see "
    "not-starting.",
)
_say(
    "slots-taken",
    "Due jobs named {name!r}: {due}; the oldest has waited {ago}. No job of this name is running: jobs of other "
    "names{names} hold all slots of the instances that run it.",
    "Look at what they do: `trio-monque jobs --status processing`. Now: `trio-monque pause NAME` lets no more of them "
    "start. So that they cannot hold all slots, lower the `concurrency` of their workers below that of the scheduler, "
    "give this worker a higher `priority`, or start more worker processes (`--only` runs one with this name alone).",
)
_say(
    "not-starting",
    "Due jobs named {name!r}: {due}; the oldest has waited {ago}. Slots are free in {instance}, but these jobs do "
    "not start.",
    'Look in the log of {instance} for "skipped job": the server may refuse claims on these jobs, for example '
    "because of a validator of the collection. If jobs of this name do start, and end at once, the fleet cannot keep "
    "up: start more worker processes.",
)
_say(
    "poison-job",
    "Jobs named {name!r} ({status}) that may kill their process: {count} (for example job {job}). On one of them, "
    "{deaths} claims in a row died.",
    "If it still runs, end it: `trio-monque cancel {job}`. If more of them come, pause the name. Inspect it: "
    "`trio-monque show {job}`. Then check what it does to its process: memory, native code, a call that exits. Once it "
    "is fixed, `trio-monque retry {job}` runs it again; `trio-monque delete {job}` deletes it. A job whose claims died "
    "more than `max_rescues` times becomes `failed`.",
)
_say(
    "failing-name",
    "Jobs named {name!r} are failing: {failed} of {attempts} attempts in the last {seconds}. Failed for good: "
    "{failed_for_good}.",
    "Inspect one: `trio-monque jobs --name {quoted} --status failed` lists those that failed for good, and "
    "`--status pending` those that will be retried. `trio-monque show ID` has the traceback.",
)
_say(
    "failing-job",
    "Jobs named {name!r} that failed at least {failures} times in a row and will be retried: {count}, one of them "
    "(job {job}) with: {reason}",
    "Inspect one: `trio-monque show {job}`. Fix what the error names, or cancel the job: `trio-monque cancel {job}`.",
)
_say(
    "failed-jobs",
    "Jobs named {name!r} that failed for good in the last day: {count}, one of them (job {job}) with: {reason}",
    "Inspect one: `trio-monque show {job}`. Fix what the error names, and retry them: `trio-monque retry "
    "--name {quoted} --status failed`. If `show` names a parent, retry that instead.",
)
_say(
    "rescued-jobs",
    "Jobs rescued from dead instances in the last day that have not completed since: {count}.",
    "One death after a restart is normal. If there are many, find out why processes die: check the system log and "
    "memory limits.",
)
_say(
    "not-started-in-time",
    "Jobs named {name!r} that were cancelled in the last day because no run began before their `start_by`: "
    "{count} (for example job {job}).{obstacle}",
    "Find out why they waited: no worker ran, none had a free slot, or its event loop was blocked (`blocked-loop`). "
    "`trio-monque retry {job}` runs one after all, without its limit; for all, `trio-monque retry "
    "--name {quoted} --status cancelled --fail-reason-prefix start_by`.",
)
_say(
    "owed-follow-ups",
    "Ended jobs named {name!r} whose follow-up was not enqueued yet: {count}; the oldest has waited {ago}.",
    'Start a worker whose `then` creates it. If one is running, its function raises: look in its log for "could not '
    'enqueue the follow-up". To drop these follow-ups, deploy `then=lambda job: None`. Until then, retention keeps '
    "the jobs.",
)
_say(
    "bad-schedule",
    "Schedules named {name!r} ({status}) that cannot be parsed: {count} (for example job {job}): {problem}",
    "Delete it: `trio-monque delete {job}`, and declare it again with a valid expression. Until then it fails when "
    "its next occurrence is computed.",
)
_say(
    "unknown-time-zone",
    "Schedules named {name!r} ({status}) whose time zone this machine does not know: {count} (for example job "
    "{job}): {problem}",
    "Schedulers on a machine that does not know the zone leave the job to others. Install the package tzdata there "
    "('pip install tzdata'), or declare the schedule again with another zone.",
)
_say(
    "ended-schedule",
    "Cancelled schedules named {name!r}, which no longer recur: {count}; the last one ({schedule}) was cancelled at "
    "{at}.",
    "To run it now, and then on its schedule: `trio-monque retry {job}`. If nothing needs it any more: `trio-monque "
    "delete {job}`.",
)
_say(
    "broken-document",
    "Documents that cannot be run: {count}, for example {document}: {problem}.{others}",
    "Repair each: `trio-monque repair ID --set FIELD=VALUE`, for example `--set nextRunAt=now`, or `--unset FIELD`, "
    "for example `--unset claimedBy` for a pending job that has an owner; one call takes several of them. "
    "`trio-monque show --raw ID` prints a document, `trio-monque delete ID` "
    "deletes it. Until then, schedulers skip these documents and check them again every minute.",
)
_say(
    "oversized-document",
    "Jobs named {name!r} without room for a claim, which never run: {count}. Job {job} has {size} bytes.",
    "Delete it: `trio-monque delete {job}`. Store its data elsewhere (a file, GridFS) and enqueue a reference to it.",
)
_say(
    "nearly-full-document",
    "Jobs named {name!r} whose result or errors may not fit: {count}. Job {job} has {size} of 16,777,216 bytes.",
    "Store their data elsewhere (a file, GridFS) and enqueue a reference to it.",
)

# --- The doctor itself ---

_say(
    "unanswered",
    "The doctor could not check everything: {problem}",
    "Run the doctor again when the server is less busy, or as a user with the required rights. Checks that depend on "
    "this query were skipped.",
)
