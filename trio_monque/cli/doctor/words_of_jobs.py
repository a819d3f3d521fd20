"""What the terminal prints for findings about the instances and the jobs, and about the doctor itself."""

from __future__ import annotations

from typing import Final

from .kind_words import KindWords

WORDS_OF_JOBS: Final = (
    # --- The fleet ---
    KindWords(
        "no-instance",
        "No instance is alive, so no job runs. Pending jobs: {pending}.",
        "Start a worker process: `trio-monque run MODULE:ATTRIBUTE`. If workers run, they use another database or "
        'collection: compare this one with the line "started on" in their log.',
    ),
    KindWords(
        "dead-instance",
        "Instance {instance} (process {pid} on {host}) sent its last heartbeat {ago} ago: it died, is frozen, or "
        "cannot reach the database.{others}",
        "Check that process, and start another one if it is gone (`--processes` does that by itself). Live instances "
        "rescue its jobs within a lease. A live instance removes the entry after it has seen no heartbeat for ten of "
        "the dead instance's intervals; it starts counting no earlier than its own start.",
    ),
    KindWords(
        "overdue-threads",
        "Plain handlers of {name!r} that are still running although their runs were cancelled (at their time limit, "
        "for example): {count}, some of them in {instance}. Each occupies a slot until it returns.",
        'The log of {instance} has their stacks: look for "is still running although its run was cancelled". Set a '
        "timeout on the call that they wait for, shorter than the `timeout` of the worker. Restarting the process "
        "frees the slots: first cancel the jobs that still have such a run (`trio-monque jobs --name {quoted} "
        "--status processing`), or they run again. These jobs stay `processing` until another instance has seen no "
        "heartbeat for the length of a lease, and are then cancelled. A second signal ends the process without "
        "waiting for other runs.",
    ),
    KindWords(
        "blocked-loop",
        "{culprit} blocked the event loop of {instance} for {seconds} or longer, last seen {ago} ago. Since its "
        "start, its loop has been blocked for longer than a second this many times: {times}.",
        "If other names are waiting for it, act now: give the name a worker process of its own (restart the others "
        "with `--except NAME`, and start one with `--only NAME`), or pause the name and restart the process. The log "
        'of {instance} has the frames: look for "is blocked for". Make the handler a plain function, which runs in a '
        "thread, or make the blocking call in a thread. While a loop is blocked, no job starts on it; on trio, no "
        "claim is renewed either.",
    ),
    KindWords(
        "stuck-jobs",
        "Jobs stuck in `processing`: {count} (for example job {job}). Their holder {instance} has not renewed its "
        "claims for {silent}: {reason}.",
        "{start}A live instance makes them pending again (or ends those that were cancelled) when it has seen no "
        "renewal for {lease}. If the process still exists, find out why it is stuck: it may be stopped, suspended, or "
        "cut off from the network.",
    ),
    KindWords(
        "no-holder",
        "Jobs in `processing` without a holder: {count} (for example job {job}).",
        "{start}Another program left them in this state. A live instance makes them pending again when they are older "
        "than its `lock_timeout`.",
    ),
    KindWords(
        "stuck-node-jobs",
        "Jobs in `processing` under {instance}: {count}. It is not an instance of this library, and has not renewed "
        "its claims for {silent} (for example job {job}).",
        "{start}If that process is gone, a live instance takes its jobs when their claims are older than its "
        "`lock_timeout` (by default half an hour).",
    ),
    KindWords(
        "node-peer",
        "{instance} is not an instance of this library: Monque for Node works on this collection too. Jobs that it "
        "holds: {count}.",
        "Its `lockTimeout` must be at least the `lock_timeout` here, and it ignores pauses, time zones and the limits "
        "of individual jobs. See the page on sharing a collection with Node.",
    ),
    # --- Jobs ---
    KindWords(
        "unknown-name",
        "No live instance runs jobs named {name!r}{suggestion}. Pending jobs: {pending}{waiting}.",
        "Start a worker for it: `trio-monque run MODULE:ATTRIBUTE`, or check whether a running one leaves the name "
        "out (`--only`, `--except`). Parents that have started these jobs as children wait, too. If the name is "
        "misspelt, correct it where the jobs are enqueued. To run these anyway, also register the old name until they "
        "are done; to drop them: `trio-monque cancel --name {quoted}`.",
    ),
    KindWords(
        "no-such-name",
        "No job has the name {name!r}, and no live instance runs it{suggestion}.",
        "Check NAME and --collection: `trio-monque stats` lists the names that have jobs.",
    ),
    KindWords(
        "paused-name",
        "The name {name!r} is paused{since_and_by}. Due jobs: {due}.",
        "Resume it when its jobs may run: `trio-monque resume {quoted}`.",
    ),
    KindWords(
        "slots-taken",
        "Due jobs named {name!r}: {due}; the oldest has waited {ago}. No job of this name is running: jobs of other "
        "names{names} hold all slots of the instances that run it.{also}",
        "Look at what they do: `trio-monque jobs --status processing`. Now: `trio-monque pause NAME` lets no more of "
        "them start. So that they cannot hold all slots, lower the `concurrency` of their workers (or "
        "`--concurrency-per-name`) below that of the scheduler, give this worker a higher `priority`, or start "
        "another worker process that leaves out the names that hold all the slots (`--except`).",
    ),
    KindWords(
        "long-runs",
        "Due jobs named {name!r}: {due}; the oldest has waited {ago}. All running jobs of this name ({running}) were "
        "claimed more than a minute ago; job {job} has run longest, for {longest}, since {since}.",
        "Inspect it: `trio-monque show {job}`. If it hangs, cancel it: `trio-monque cancel {job}`, and give its "
        "worker a `timeout`. If such jobs normally take this long, start more worker processes, or raise the "
        "`concurrency` of that worker. If overdue-threads names it too, only a restart frees the slots. If that "
        "worker has free slots, see not-starting.",
    ),
    KindWords(
        "backlog",
        "Due jobs named {name!r}: {due}; the oldest has waited {ago}.",
        "The fleet cannot keep up: start more worker processes, or raise the `concurrency` of that worker, unless "
        "slots-taken names it: then a higher concurrency keeps others waiting. If no job starts at all, check the log "
        "of a worker.",
    ),
    KindWords(
        "not-starting",
        "Due jobs named {name!r}: {due}; the oldest has waited {ago}. Slots are free in {instance}, but these jobs do "
        "not start.",
        'Look in the log of {instance} for "skipped job": the server may refuse claims on these jobs, for example '
        "because of a validator of the collection (see validator). If jobs of this name do start, and end at once, "
        "the fleet cannot keep up: start more worker processes.",
    ),
    KindWords(
        "poison-job",
        "Jobs named {name!r} ({status}) that may kill their process: {count} (for example job {job}). On one of them, "
        "{deaths} claims in a row died.",
        "{end}If more such jobs come, pause the name, or run it in a process of its own (`--only`): other jobs of a "
        "process that dies run again, too. Inspect it: `trio-monque show {job}`. Then check what it does to its "
        "process: memory, native code, a call that exits. Once it is fixed, `trio-monque retry {job}` runs it again; "
        "`trio-monque delete {job}` deletes it. A job whose claims died more than `max_rescues` times becomes "
        "`failed`.",
    ),
    KindWords(
        "failing-name",
        "Jobs named {name!r} are failing: {failed} of {attempts} attempts in the last {seconds}. Failed for good: "
        "{failed_for_good}.",
        "Inspect one: `trio-monque jobs --name {quoted} --status failed` lists those that failed for good, and "
        "`--status pending` those that will be retried. `trio-monque show ID` has the traceback.",
    ),
    KindWords(
        "failing-job",
        "Jobs named {name!r} that failed at least {failures} times in a row and will be retried: {count}, one of them "
        "(job {job}) with: {reason}",
        "Inspect one: `trio-monque show {job}`. Fix what the error names, or cancel the job: `trio-monque cancel "
        "{job}`.",
    ),
    KindWords(
        "failed-jobs",
        "Jobs named {name!r} that failed for good in the last day: {count}, one of them (job {job}) with: {reason}",
        "Inspect one: `trio-monque show {job}`. Fix what the error names, and retry them: `trio-monque retry --name "
        "{quoted} --status failed`. If `show` names a parent, retry that instead.",
    ),
    KindWords(
        "rescued-jobs",
        "Jobs rescued from dead instances in the last day that have not completed since: {count}.",
        "One death after a restart is normal. If there are many, find out why processes die: check the system log and "
        "memory limits.",
    ),
    KindWords(
        "not-started-in-time",
        "Jobs named {name!r} that were cancelled in the last day because no run began before their `start_by`: "
        "{count}, the last one {ago} ago (for example job {job}).{obstacle}",
        "Find out why they waited: no worker ran, none had a free slot, or its event loop was blocked "
        "(`blocked-loop`). `trio-monque retry {job}` runs one after all, without its limit; for all, `trio-monque "
        "retry --name {quoted} --status cancelled --fail-reason-prefix start_by`.",
    ),
    KindWords(
        "owed-follow-ups",
        "Ended jobs named {name!r} whose follow-up was not enqueued yet: {count}; the oldest has waited {ago}.",
        'Start a worker whose `then` creates it. If one is running, its function raises: look in its log for "could '
        'not enqueue the follow-up". To drop these follow-ups, deploy `then=lambda job: None`. Until then, retention '
        "keeps the jobs.",
    ),
    KindWords(
        "bad-schedule",
        "Schedules named {name!r} ({status}) that cannot be parsed: {count} (for example job {job}): {problem}",
        "Delete it: `trio-monque delete {job}`, and declare it again with a valid expression. Until then it fails "
        "when its next occurrence is computed.",
    ),
    KindWords(
        "unknown-time-zone",
        "Schedules named {name!r} ({status}) whose time zone this machine does not know: {count} (for example job "
        "{job}): {problem}",
        "Schedulers on a machine that does not know the zone leave the job to others. Install the package tzdata "
        "there ('pip install tzdata'), or declare the schedule again with another zone.",
    ),
    KindWords(
        "ended-schedule",
        "Cancelled schedules named {name!r}, which no longer recur: {count}; the last one ({schedule}) was cancelled "
        "at {at}.",
        "To run it now, and then on its schedule: `trio-monque retry {job}`. If nothing needs it any more: "
        "`trio-monque delete {job}`.",
    ),
    KindWords(
        "changed-schedule",
        "Schedules named {name!r} whose times a declaration has changed in the last day, without a new version: "
        "{count}; the last one ({schedule}) at {at}{declarer}, from {before} to {after}.",
        "If a new release did that, there is nothing to do. If an older release did, start its processes with the new "
        "release: the last one that starts decides. To make up for a missed run: `trio-monque reschedule {job} now`. "
        "For the future, give each declaration a version.",
    ),
    KindWords(
        "put-off-key",
        "Jobs named {name!r} with a unique key that have run, and are due again in more than a week: {count}, for "
        "example job {job} (key {held_key!r}), due at {at}. Until then, an enqueue with the key of one of them "
        "returns that job, and nothing new runs.",
        "If that is not meant (a `Snooze` whose length is wrong, for example), look at its data with `trio-monque "
        "show {job}`, then make it due, `trio-monque reschedule {job} now`, or cancel it.",
    ),
    KindWords(
        "broken-document",
        "Documents that cannot be run: {count}, for example {document}: {problem}.{others}",
        "{command}`trio-monque repair ID --set FIELD=VALUE` sets a field, and `--unset FIELD` removes one; it takes "
        "several ids. `trio-monque show --raw ID` prints a document, `trio-monque delete ID` deletes it. Until then, "
        "schedulers skip these documents and check them again every minute.",
    ),
    KindWords(
        "oversized-document",
        "Jobs named {name!r} without room for a claim, which never run: {count}. Job {job} has {size} bytes.",
        "Delete it: `trio-monque delete {job}`. Store its data elsewhere (a file, GridFS) and enqueue a reference to "
        "it.",
    ),
    KindWords(
        "nearly-full-document",
        "Jobs named {name!r} whose result or errors may not fit: {count}. Job {job} has {size} of 16,777,216 bytes.",
        "Store their data elsewhere (a file, GridFS) and enqueue a reference to it.",
    ),
    # --- The doctor itself ---
    KindWords(
        "unanswered",
        "The doctor could not check everything: {problem}",
        "Run the doctor again when the server is less busy, or as a user with the required rights. Checks that depend "
        "on this query were skipped.",
    ),
)
