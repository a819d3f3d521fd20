"""What HTTP shows for each kind of finding: a sentence, and what to do. `{fields}` are the values of a case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_START_A_WORKER: Final = (
    "Start a worker process. If workers run, they use another database or collection: see their log lines."
)
_START: Final = "Start a worker for it. If the name is misspelt, correct it where jobs are enqueued, and cancel these."
_ELSEWHERE: Final = "Store the data elsewhere, such as in a file, and enqueue a reference to it."
_OWN_INDEX: Final = (
    "No worker starts while it exists. Drop it while no worker is running: the next one creates the right index."
)

TEXTS: Final[Mapping[str, tuple[str, str]]] = {
    "old-server": (
        "The server runs MongoDB {version}; this library supports {oldest} or later.",
        "Upgrade the server.",
    ),
    "standalone-server": (
        "The server is standalone: it has no change streams, transactions or failover.",
        "Make it a replica set of one member. Until then workers poll, and a job starts up to poll_interval late.",
    ),
    "no-primary": (
        "The replica set has no primary, so nothing can be enqueued, claimed or settled. Its members: {members}.",
        "Start members that are down until a majority is up.",
    ),
    "no-majority": (
        (
            "Data-bearing members of the replica set that are up: {up}. A majority write needs {needed}. Its members: "
            "{members}."
        ),
        "Start the members that are down. An arbiter holds no data and acknowledges nothing.",
    ),
    "member-down": (
        "Member {member} of the replica set is in state {state}.",
        "Start it, or check its log: with fewer members, the next failure may stop all writes.",
    ),
    "members-hidden": (
        "This user may not read the state of the members, so it was not checked.",
        "To check them, grant the role clusterMonitor to the user.",
    ),
    "direct-connection": (
        (
            "The connection string names a single member (directConnection=true): after an election, the client "
            "cannot find the new primary."
        ),
        "Remove directConnection and name the replica set.",
    ),
    "clock-off": (
        "The clock of this machine is {seconds} {direction} the server's.",
        "Synchronize the clock, for example with NTP: a run_at that a program here computes is off by that much.",
    ),
    "member-clock-off": (
        "The clock of member {member} is {seconds} {direction} that of {other}.",
        (
            "Synchronize the clocks of the servers, for example with NTP: after an election, jobs become due that "
            "much earlier or later."
        ),
    ),
    "small-pool": (
        "The client's connection pool has {size} connections, and a scheduler needs {needed}.",
        "Set maxPoolSize={needed} or more in the connection string, or remove it.",
    ),
    "server-full": (
        "The server has {used} connections, and accepts {available} more.",
        "Raise its limit, or connect fewer programs: a scheduler needs up to {needed}.",
    ),
    "no-change-stream": (
        "The change stream cannot be opened, so workers poll: {problem}",
        "Give the user the right to read the whole database (role read), or pass change_stream=False.",
    ),
    "many-streams": (
        (
            "Schedulers follow {count} change streams, and the server writes {writes} documents a second. Reading "
            "them for each stream takes about {share} of a core."
        ),
        "If jobs from other processes may start a little later, polling is cheaper: pass change_stream=False.",
    ),
    "jobs-elsewhere": (
        (
            "Other databases of this server have pending jobs in a collection of this name, and no live instance: "
            "{databases}."
        ),
        "If a program enqueues there by mistake, correct the database in its connection string.",
    ),
    "no-collection": (
        "The database {database} has no collection {collection}.",
        "Check the names. If they are right, no program has enqueued a job or run a worker yet.",
    ),
    "unsafe-collection": (
        "The collection {collection} cannot hold jobs: {problem}.",
        "Copy the documents into a collection without these options, and rename it.",
    ),
    "validator": (
        "The collection {collection} has a validator (level {level}): {rule}.",
        (
            "The server refuses new jobs that do not satisfy it and, at the level strict, also claims on jobs that "
            "are older than the rule."
        ),
    ),
    "missing-index": (
        "The index {index} is missing.",
        "A worker creates it at its start, unless skip_index_creation is set. Create it at a quiet time.",
    ),
    "other-index-definition": (
        "The definition of the index {index} differs from the one that this version of the library creates.",
        _OWN_INDEX,
    ),
    "index-under-other-name": (
        "The index {other} has the definition of {index}, so {index} cannot be created.",
        _OWN_INDEX,
    ),
    "node-indexes": (
        "The collection has {count} indexes of Monque for Node, which make claims more expensive: {names}.",
        "Drop them if no Node program uses this collection any more.",
    ),
    "surplus-index": (
        (
            "The index {index} belongs to neither this library nor Monque for Node, and makes every claim more "
            "expensive."
        ),
        "Drop it if none of your queries needs it.",
    ),
    "unique-index": (
        "The unique index {index} belongs to neither this library nor Monque for Node: the server may refuse jobs.",
        "Drop it. To allow only one job per key, use unique_key.",
    ),
    "expiring-index": (
        "The index {index} makes the server delete documents after {seconds}, including pending and running jobs.",
        "Drop it, and use the retention of a scheduler, which deletes only ended jobs.",
    ),
    "unserved-query": (
        "No index serves {query}: the server reads the whole collection, or sorts it.",
        "Create the missing index.",
    ),
    "costly-query": (
        "The server reads {examined} documents to find {returned} in {query}.",
        "Look for documents that no worker can claim, and repair or delete them.",
    ),
    "no-instance": ("No instance is alive, so no job runs. Pending jobs: {pending}.", _START_A_WORKER),
    "dead-instance": (
        (
            "Instance {instance} (process {pid} on {host}) sent its last heartbeat {ago} ago: it died, is frozen, or "
            "cannot reach the database.{others}"
        ),
        "Check that process, and start another one if it is gone. Live instances rescue its jobs.",
    ),
    "overdue-threads": (
        (
            "Plain handlers of {name} that are still running although their runs were cancelled: {count}, some of "
            "them in {instance}."
        ),
        (
            "Each occupies a slot until it returns. Set a timeout on the call that they wait for; a restart frees the "
            "slots."
        ),
    ),
    "blocked-loop": (
        (
            "{culprit} blocked the event loop of {instance} for {seconds} or longer, seen last {ago} ago: {times} "
            "since its start."
        ),
        "The log has the frames. Make the handler a plain function, or make the blocking call in a thread.",
    ),
    "stuck-jobs": (
        (
            "Jobs stuck in processing: {count}. Their holder {instance} has not renewed its claims for {silent}: "
            "{holder}."
        ),
        "{start}A live instance makes them pending again after {lease} without a renewal.",
    ),
    "no-holder": (
        "Jobs in processing without a holder: {count}, for example {job}.",
        (
            "{start}Another program left them in this state. A live instance makes them pending again after its "
            "lock_timeout."
        ),
    ),
    "stuck-node-jobs": (
        (
            "Jobs in processing under {instance}, of another library, whose claims were not renewed for {silent}: "
            "{count}."
        ),
        "{start}If that process is gone, a live instance takes them after its lock_timeout.",
    ),
    "node-peer": (
        "{instance} belongs to Monque for Node, which works on this collection too. Jobs that it holds: {count}.",
        "It ignores pauses, time zones and the limits of individual jobs.",
    ),
    "unknown-name": ("No live instance runs jobs named {name}. Pending jobs: {pending}{waiting}.{hint}", _START),
    "no-such-name": ("No job has the name {name}, and no live instance runs it.{hint}", "Check the name."),
    "paused-name": (
        "The name {name} is paused{since_and_by}. Due jobs: {due}.",
        "Resume it when its jobs may run.",
    ),
    "backlog": (
        "Due jobs named {name}: {due}; the oldest has waited {ago}.",
        (
            "The instances cannot keep up: start more of them, or raise the concurrency of that worker, unless other "
            "names wait for its slots."
        ),
    ),
    "long-runs": (
        (
            "Due jobs named {name}: {due}; the oldest has waited {ago}. All running jobs of this name ({running}) "
            "were claimed more than a minute ago; job {job} has run longest, for {longest}."
        ),
        (
            "Inspect it. If it hangs, cancel it, and give its worker a timeout. If such jobs normally take this long, "
            "start more instances, or raise the concurrency of that worker."
        ),
    ),
    "slots-taken": (
        (
            "Due jobs named {name}: {due}; the oldest has waited {ago}. No job of this name is running: jobs of other "
            "names{in_the_way} hold all slots of the instances that run it.{also}"
        ),
        (
            "Look at what they do. So that they cannot hold all slots, lower the concurrency of their workers, give "
            "this worker a higher priority, or start more instances."
        ),
    ),
    "not-starting": (
        (
            "Due jobs named {name}: {due}; the oldest has waited {ago}. Slots are free in {instance}, but these jobs "
            "do not start."
        ),
        (
            'Look in the log of {instance} for "skipped job": the server may refuse claims on these jobs. If '
            "jobs of this name do start, and end at once, start more instances."
        ),
    ),
    "poison-job": (
        (
            "Jobs named {name} ({status}) that may kill their process: {count}. On one of them, {deaths} claims in a "
            "row died."
        ),
        "Inspect one, for example {job}: what does it do to its process? Once that is fixed, retry it.",
    ),
    "failing-name": (
        (
            "{name} is failing: {failed} of {attempts} attempts in the last {seconds}. Failed for good: "
            "{failed_for_good}."
        ),
        "Inspect one of its failed jobs, or one that will be retried: its page has the traceback.",
    ),
    "failing-job": (
        "Jobs named {name} that failed at least {failures} times in a row: {count}, one of them with: {reason}",
        "Fix what the error names, or cancel job {job}.",
    ),
    "failed-jobs": (
        "Jobs named {name} that failed for good in the last day: {count}, one of them with: {reason}",
        "Fix what the error names, and retry them.",
    ),
    "rescued-jobs": (
        "Jobs rescued from dead instances in the last day that have not completed since: {count}.",
        "One death after a restart is normal. If there are many, find out why processes die.",
    ),
    "not-started-in-time": (
        (
            "Jobs named {name} that were cancelled in the last day because no run began before their start_by: "
            "{count}, the last one {ago} ago, for example {job}.{obstacle}"
        ),
        (
            "Find out why they waited: no worker ran, none had a free slot, or its event loop was blocked. A retry "
            "runs a job after all, without its limit."
        ),
    ),
    "owed-follow-ups": (
        "Ended jobs named {name} whose follow-up was not enqueued yet: {count}; the oldest has waited {ago}.",
        "Start a worker whose `then` creates it. If one is running, its function raises: look at its log.",
    ),
    "bad-schedule": (
        "Schedules named {name} ({status}) that cannot be parsed: {count}, for example {job}: {problem}",
        "Delete it, and declare it again with a valid expression.",
    ),
    "unknown-time-zone": (
        "Schedules named {name} ({status}) whose time zone this machine does not know: {count}: {problem}",
        "Install the package tzdata on the machines that run it, or declare the schedule again with another zone.",
    ),
    "ended-schedule": (
        (
            "Cancelled schedules named {name}, which no longer recur: {count}; the last one ({schedule}) was "
            "cancelled at {at}."
        ),
        "A retry runs it now, and then on its schedule. Delete it if nothing needs it any more.",
    ),
    "changed-schedule": (
        (
            "Schedules named {name} whose times a declaration has changed in the last day, without a new version: "
            "{count}; the last one ({schedule}) at {at}{declarer}, from {before} to {after}."
        ),
        "If an older release did that, start its processes with the new one. A version decides which one holds.",
    ),
    "put-off-key": (
        (
            "Jobs named {name} with a unique key that have run, and are due again in more than a week: {count}, for "
            "example {job} (key {held_key}), at {at}. Until then, an enqueue with the key of one of them returns that "
            "job."
        ),
        "If that is not meant, reschedule or cancel it.",
    ),
    "broken-document": (
        "Documents that cannot be run: {count}, for example {document}: {problem}.",
        "Repair or delete each. Until then, schedulers skip them, and check them again every minute.",
    ),
    "oversized-document": (
        "Jobs named {name} without room for a claim, which never run: {count}. Job {job} has {size} bytes.",
        "Delete it. " + _ELSEWHERE,
    ),
    "nearly-full-document": (
        "Jobs named {name} whose result or errors may not fit: {count}. Job {job} has {size} bytes of 16 MiB.",
        _ELSEWHERE,
    ),
    "unanswered": (
        "Not everything could be checked: {problem}",
        "Check again when the server is less busy, or as a user with the required rights.",
    ),
}
