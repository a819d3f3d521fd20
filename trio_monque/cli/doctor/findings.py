"""What the doctor can find: each kind with its sentence and its advice, which stand nowhere else.

The page docs/how-to/troubleshoot.md has the same texts. `{fields}` are filled in by the functions that judge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from ...store.reads.diagnosis.caps import Count


class Severity(StrEnum):
    """How much a finding matters. All but notes make the exit status 1."""

    PROBLEM = "problem"
    """Jobs do not run, or may be lost, until it is repaired."""
    WARNING = "warning"
    """Jobs run, but late, at a higher price, or with less safety; or they soon will not."""
    NOTE = "note"
    """Good to know."""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One thing that the doctor can find.

    Attributes:
        name: Identifies it, also in JSON.
        severity: See Severity.
        sentence: What is wrong.
        advice: What to do.
    """

    name: str
    severity: Severity
    sentence: str
    advice: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A kind with the values of one case."""

    kind: FindingKind
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


_KINDS: Final[dict[str, FindingKind]] = {}


def _kind(name: str, severity: Severity, sentence: str, advice: str) -> FindingKind:
    assert name not in _KINDS, name
    _KINDS[name] = FindingKind(name, severity, sentence, advice)
    return _KINDS[name]


KINDS: Final[Mapping[str, FindingKind]] = _KINDS
"""All kinds, by name, in the order of the page."""

# --- The server ---

OLD_SERVER: Final = _kind(
    "old-server",
    Severity.PROBLEM,
    "The server runs MongoDB {version}, and this library is made for {oldest} or later.",
    "Upgrade the server.",
)
STANDALONE: Final = _kind(
    "standalone-server",
    Severity.WARNING,
    "The server is a standalone server: it has no change streams, no transactions and no failover.",
    "Start it with --replSet rs0 and run rs.initiate() once: one server can be a replica set. Until then, workers "
    "poll, and a job starts up to `poll_interval` late.",
)
NO_PRIMARY: Final = _kind(
    "no-primary",
    Severity.PROBLEM,
    "The replica set has no primary: nothing can be enqueued, claimed or settled. Its members: {members}.",
    "Start the members that are down, until a majority of them is up; then they elect a primary by themselves. "
    "Running jobs are cancelled before their leases end, and run again afterwards.",
)
NO_MAJORITY: Final = _kind(
    "no-majority",
    Severity.PROBLEM,
    "Only {up} members of the replica set hold data and are up, and a majority write needs {needed}: no claim and no "
    "end of a job is acknowledged. Its members: {members}.",
    "Start the members that are down. An arbiter holds no data, and acknowledges nothing.",
)
MEMBER_DOWN: Final = _kind(
    "member-down",
    Severity.WARNING,
    "Member {member} of the replica set is in state {state}.",
    "Start it, or look at its log: with fewer members, the next failure may stop all writes.",
)
MEMBERS_HIDDEN: Final = _kind(
    "members-hidden",
    Severity.NOTE,
    "This user may not ask for the state of the members, so the doctor did not look at them.",
    "Grant the role clusterMonitor to the user of the doctor, if you want to know.",
)
DIRECT_CONNECTION: Final = _kind(
    "direct-connection",
    Severity.WARNING,
    "The connection string names one member only (directConnection=true): after an election, no primary is found.",
    "Remove directConnection from it, and name the set: mongodb://host1,host2,host3/?replicaSet=NAME.",
)
CLOCK_OFF: Final = _kind(
    "clock-off",
    Severity.WARNING,
    "The clock of this machine is {seconds} s {direction} the server's.",
    "Set the clock, for example with NTP. The library itself goes by the server's clock; but a `run_at` that a "
    "program here computes is wrong by that much, and so are Monque for Node and programs with locks of their own.",
)
MEMBER_CLOCK_OFF: Final = _kind(
    "member-clock-off",
    Severity.WARNING,
    "The clock of member {member} is {seconds} s {direction} that of {other}.",
    "Set the clocks of the servers, for example with NTP: if that member becomes primary, jobs become due that much "
    "earlier or later.",
)
SMALL_POOL: Final = _kind(
    "small-pool",
    Severity.PROBLEM,
    "The pool of the client has {size} connections, and a scheduler needs {needed}.",
    "Set maxPoolSize={needed} or more in the connection string, or remove it: no scheduler starts with less.",
)
SERVER_FULL: Final = _kind(
    "server-full",
    Severity.PROBLEM,
    "The pool of connections of the server is nearly full: it has {used}, and accepts {available} more.",
    "Raise net.maxIncomingConnections of the server (or the limit of its plan), or let fewer programs connect: a "
    "scheduler needs up to {needed}.",
)
NO_CHANGE_STREAM: Final = _kind(
    "no-change-stream",
    Severity.WARNING,
    "The change stream cannot be opened, so workers poll: {problem}",
    "Give the user the right to read the whole database (role `read`), or pass `change_stream=False` and a "
    "`poll_interval` that suits you. On a standalone server, see standalone-server.",
)
MANY_STREAMS: Final = _kind(
    "many-streams",
    Severity.NOTE,
    "Schedulers follow {count} change streams, and the server writes {writes} documents a second. It reads each "
    "document for each stream, which takes about {percent} of a core.",
    "If jobs of other processes may start a little later, polls are cheaper: `--no-change-stream --poll-interval 1`. "
    "The processes of one `trio-monque run --processes N` share a stream.",
)

# --- Indexes ---

NO_COLLECTION: Final = _kind(
    "no-collection",
    Severity.PROBLEM,
    "The database {database} has no collection {collection}.",
    "Check --database and --collection. If they are right, no program has enqueued a job or run a worker yet.",
)
UNSAFE_COLLECTION: Final = _kind(
    "unsafe-collection",
    Severity.PROBLEM,
    "The collection {collection} cannot hold jobs: {problem}.",
    "Create a collection without these options under another name, copy the documents into it, and rename it; or give "
    "the jobs another collection (`--collection`, `collection_name=`).",
)
MISSING_INDEX: Final = _kind(
    "missing-index",
    Severity.PROBLEM,
    "The index {index} is missing.",
    "Run `trio-monque indexes --create`: on a large collection at a quiet time, with `--operation-timeout 1h`. A "
    "worker creates it at its start, too, unless `skip_index_creation` is set.",
)
OTHER_DEFINITION: Final = _kind(
    "other-index-definition",
    Severity.PROBLEM,
    "The index {index} has another definition than this version of the library makes.",
    "No worker starts with it. When no worker runs, drop it, in mongosh by db.{collection}.dropIndex('{index}'), and "
    "start a worker: it creates the right one.",
)
INDEX_UNDER_OTHER_NAME: Final = _kind(
    "index-under-other-name",
    Severity.PROBLEM,
    "The index {other} has the definition of {index}, so that one cannot be created.",
    "No worker starts with it. When no worker runs, drop it, in mongosh by db.{collection}.dropIndex('{other}'), and "
    "start a worker: it creates the same index under its own name.",
)
NODE_INDEXES: Final = _kind(
    "node-indexes",
    Severity.NOTE,
    "The collection has {count} indexes of Monque for Node: with all ten, a claim and its end cost the server more "
    "than twice as much.",
    "If no Node program uses this collection any more, run `trio-monque indexes --drop-node`. It drops {names}.",
)
SURPLUS_INDEX: Final = _kind(
    "surplus-index",
    Severity.NOTE,
    "The index {index} belongs to neither this library nor Monque for Node, and makes every claim and its end dearer.",
    "If no query of yours needs it, run `trio-monque indexes --drop-surplus`.",
)
UNIQUE_INDEX: Final = _kind(
    "unique-index",
    Severity.WARNING,
    "The unique index {index} belongs to neither this library nor Monque for Node: the server may refuse jobs.",
    "Drop it. To have one job for a key, use `unique_key`.",
)
EXPIRING_INDEX: Final = _kind(
    "expiring-index",
    Severity.WARNING,
    "The index {index} makes the server delete documents after {seconds} s, pending and running jobs too.",
    "Drop it, and use `retention` of a scheduler, which deletes ended jobs only.",
)
UNSERVED_QUERY: Final = _kind(
    "unserved-query",
    Severity.PROBLEM,
    "No index serves {query}: the server reads the whole collection, or sorts it.",
    "Create the missing index: see missing-index.",
)
COSTLY_QUERY: Final = _kind(
    "costly-query",
    Severity.WARNING,
    "The server reads {examined} documents to find {returned} in {query}.",
    "Look for documents that no worker can claim: `trio-monque doctor --all-documents` names them. Repair or delete "
    "them.",
)

# --- The fleet ---

NO_INSTANCE: Final = _kind(
    "no-instance",
    Severity.WARNING,
    "No instance is alive, so no job runs. Pending jobs: {pending}.",
    "Start a worker process: `trio-monque run MODULE:ATTRIBUTE`.",
)
DEAD_INSTANCE: Final = _kind(
    "dead-instance",
    Severity.WARNING,
    "Instance {instance} (process {pid} on {host}) sent its last heartbeat {ago} s ago: it died, is frozen, or does "
    "not reach the database.",
    "See what became of that process, and start another one if it is gone. Live instances rescue its jobs within a "
    "lease, and remove its entry after ten of its heartbeat intervals.",
)
OVERDUE_THREADS: Final = _kind(
    "overdue-threads",
    Severity.WARNING,
    "Plain handlers of the name {name!r} that go on although their runs were cancelled, for example beyond their time "
    "limit: {count}, most of them in {instance}. Each holds a slot of its name until it returns.",
    'The log of {instance} has their stacks: look for "goes on although its run was cancelled". Give the call that '
    "they wait for a timeout of its own, below the `timeout` of the worker. A restart of the process frees the slots.",
)
STUCK_JOBS: Final = _kind(
    "stuck-jobs",
    Severity.PROBLEM,
    "Jobs stuck in `processing`: {count}. Their holder {instance} has not renewed its claims for {silent} s, as "
    "{reason} (for example job {job}).",
    "A live instance makes them pending again when it has seen no renewal for {lease} s; if none is alive, start a "
    "worker. If the process still exists, look why it stands still: it may be stopped, suspended, or without a "
    "network.",
)
NO_HOLDER: Final = _kind(
    "no-holder",
    Severity.PROBLEM,
    "Jobs in `processing` without a holder: {count} (for example job {job}).",
    "Another program wrote them so. A live instance makes them pending again when they are older than its "
    "`lock_timeout`.",
)
STUCK_NODE_JOBS: Final = _kind(
    "stuck-node-jobs",
    Severity.WARNING,
    "Jobs in `processing` under {instance}: {count}. It is not an instance of this library, and has not renewed its "
    "claims for {silent} s (for example job {job}).",
    "If that process is gone, nothing needs to be done: a live instance takes its jobs when their claims are older "
    "than its `lock_timeout` (by default half an hour).",
)
NODE_PEER: Final = _kind(
    "node-peer",
    Severity.NOTE,
    "{instance} is not an instance of this library: Monque for Node works on this collection too. Jobs that it holds: "
    "{count}.",
    "Its `lockTimeout` must be at least the `lock_timeout` here, and it ignores pauses, time zones and the limits of "
    "single jobs. See the page on sharing a collection with Node.",
)

# --- Jobs ---

UNKNOWN_NAME: Final = _kind(
    "unknown-name",
    Severity.PROBLEM,
    "No live instance runs the name {name!r}{suggestion}. Pending jobs of it: {pending}.",
    "Start a worker for it: `trio-monque run MODULE:ATTRIBUTE`. If the name is misspelt, correct it where the jobs "
    "are enqueued, and drop these: `trio-monque cancel --name {quoted}`.",
)
NO_SUCH_NAME: Final = _kind(
    "no-such-name",
    Severity.WARNING,
    "No job has the name {name!r}, and no live instance runs it{suggestion}.",
    "Check NAME and --collection: `trio-monque stats` lists the names that have jobs.",
)
PAUSED_NAME: Final = _kind(
    "paused-name",
    Severity.WARNING,
    "The name {name!r} is paused. Due jobs of it: {due}.",
    "Resume it when its jobs may run: `trio-monque resume {quoted}`.",
)
BACKLOG: Final = _kind(
    "backlog",
    Severity.WARNING,
    "Due jobs of the name {name!r}: {due}, the oldest for {ago} s.",
    "The fleet does not keep up: start further worker processes, or raise `concurrency` of that worker. If its jobs "
    "do not start at all, look at the log of a worker.",
)
POISON_JOB: Final = _kind(
    "poison-job",
    Severity.PROBLEM,
    "Jobs of the name {name!r} ({status}) that may kill their process: {count}. Claims on one of them died {deaths} "
    "times in a row (for example job {job}).",
    "Look at one: `trio-monque show {job}`. Then look at what the job does to its process: memory, native code, a "
    "call that exits. When that is repaired, `trio-monque retry {job}` lets it run again; `trio-monque delete {job}` "
    "drops it. After `max_rescues` deaths it is `failed` by itself.",
)
FAILING_JOB: Final = _kind(
    "failing-job",
    Severity.WARNING,
    "Jobs of the name {name!r} that failed {failures} times in a row or more, and will be tried again: {count}, one "
    "of them (job {job}) with: {reason}",
    "Look at one: `trio-monque show {job}`. Repair what the error names, or drop the job: `trio-monque cancel {job}`.",
)
FAILED_JOBS: Final = _kind(
    "failed-jobs",
    Severity.WARNING,
    "Jobs of the name {name!r} that failed for good within the last day: {count}, one of them (job {job}) with: "
    "{reason}",
    "Look at one: `trio-monque show {job}`. Repair what the error names, and let them run again: `trio-monque retry "
    "--name {quoted} --status failed`.",
)
RESCUED_JOBS: Final = _kind(
    "rescued-jobs",
    Severity.NOTE,
    "Jobs taken from dead instances within the last day that have not completed since: {count}.",
    "One death after a restart is ordinary. If there are many, look why processes end: the log of the system, or "
    "limits of memory.",
)
OWED_FOLLOW_UPS: Final = _kind(
    "owed-follow-ups",
    Severity.WARNING,
    "Jobs of the name {name!r} that have ended and still owe a follow-up: {count}, the oldest for {ago} s.",
    'Start a worker whose `then` makes it. If one runs, its function raises: look in its log for "could not enqueue '
    'the follow-up". To drop these follow-ups, deploy `then=lambda job: None`. Until then retention spares the jobs.',
)
BAD_SCHEDULE: Final = _kind(
    "bad-schedule",
    Severity.PROBLEM,
    "Schedules of the name {name!r} ({status}) that cannot be understood: {count} (for example job {job}): {problem}",
    "Drop it: `trio-monque delete {job}`, and declare it again with a right line. Until then it fails when its next "
    "occurrence is to be computed.",
)
UNKNOWN_ZONE: Final = _kind(
    "unknown-time-zone",
    Severity.WARNING,
    "Schedules of the name {name!r} ({status}) whose time zone this machine does not know: {count} (for example job "
    "{job}): {problem}",
    "Schedulers on a machine that does not know the zone leave the job to others. Install the package tzdata on it "
    "('pip install tzdata'), or declare the schedule again with another zone.",
)
BROKEN_DOCUMENT: Final = _kind(
    "broken-document",
    Severity.PROBLEM,
    "Documents that cannot be run: {count}, for example {document}: {problem}.",
    "Repair each: `trio-monque repair ID --set FIELD=VALUE`, for example `--set nextRunAt=now`. `trio-monque show "
    "--raw ID` prints it, `trio-monque delete ID` drops it. Until then schedulers skip them; they look at them again "
    "every minute.",
)
OVERSIZED_DOCUMENT: Final = _kind(
    "oversized-document",
    Severity.PROBLEM,
    "Jobs of the name {name!r} without room for a claim, which never run: {count}. Job {job} has {size} bytes.",
    "Delete it: `trio-monque delete {job}`. Store its data elsewhere (a file, GridFS) and enqueue a reference to it.",
)
NEARLY_FULL_DOCUMENT: Final = _kind(
    "nearly-full-document",
    Severity.WARNING,
    "Jobs of the name {name!r} whose result or errors may not fit: {count}. Job {job} has {size} of 16,777,216 bytes.",
    "Store their data elsewhere (a file, GridFS) and enqueue a reference to it.",
)

# --- The doctor itself ---

UNANSWERED: Final = _kind(
    "unanswered",
    Severity.WARNING,
    "The database did not answer one question: {problem}",
    "Run the doctor again when the server is less busy, or with a user who has the right. What depends on this "
    "answer was not looked at.",
)
