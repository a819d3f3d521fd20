"""What the terminal prints for findings about the server and the indexes."""

from __future__ import annotations

from typing import Final

from .kind_words import KindWords

WORDS_OF_SERVER: Final = (
    # --- The server ---
    KindWords(
        "old-server",
        "The server runs MongoDB {version}; this library supports {oldest} or later.",
        "Upgrade the server.",
    ),
    KindWords(
        "standalone-server",
        "The server is standalone: it has no change streams, transactions or failover.",
        "Start it with `--replSet rs0` and run rs.initiate() once: a single server can be a replica set. Until then, "
        "workers poll, and a job starts up to `poll_interval` late.",
    ),
    KindWords(
        "no-primary",
        "The replica set has no primary: nothing can be enqueued, claimed or settled. Its members: {members}.",
        "Start members that are down until a majority is up; they then elect a primary. Running jobs are cancelled "
        "before their leases expire, and run again afterwards.",
    ),
    KindWords(
        "no-majority",
        "Data-bearing members of the replica set that are up: {up}. A majority write needs {needed}: no claim and no "
        "outcome of a job is acknowledged. Its members: {members}.",
        "Start the members that are down. An arbiter holds no data and acknowledges nothing.",
    ),
    KindWords(
        "member-down",
        "Member {member} of the replica set is in state {state}.",
        "Start it, or check its log: with fewer members, the next failure may stop all writes.",
    ),
    KindWords(
        "members-hidden",
        "This user may not read the state of the members, so the doctor did not check them.",
        "To check them, grant the role clusterMonitor to the user of the doctor.",
    ),
    KindWords(
        "direct-connection",
        "The connection string names a single member (directConnection=true): after an election, the client cannot "
        "find the new primary.",
        "Remove directConnection and name the replica set: mongodb://host1,host2,host3/?replicaSet=NAME.",
    ),
    KindWords(
        "clock-off",
        "The clock of this machine is {seconds} s {direction} the server's.",
        "Synchronize the clock, for example with NTP. The library uses the server's clock, but a `run_at` that a "
        "program here computes is off by that much, and so are Monque for Node and programs with their own locks.",
    ),
    KindWords(
        "member-clock-off",
        "The clock of member {member} is {seconds} s {direction} that of {other}.",
        "Synchronize the clocks of the servers, for example with NTP: if that member becomes primary, jobs become due "
        "that much earlier or later.",
    ),
    KindWords(
        "small-pool",
        "The client's connection pool has {size} connections, and a scheduler needs {needed}.",
        "Set maxPoolSize={needed} or more in the connection string, or remove it: a scheduler does not start with "
        "fewer.",
    ),
    KindWords(
        "server-full",
        "The server is nearly out of connections: it has {used}, and accepts {available} more.",
        "Raise net.maxIncomingConnections of the server (or the limit of its plan), or connect fewer programs: a "
        "scheduler needs up to {needed}.",
    ),
    KindWords(
        "no-change-stream",
        "The change stream cannot be opened, so workers poll: {problem}",
        "Give the user the right to read the whole database (role `read`), or pass `change_stream=False` and a "
        "`poll_interval` that suits you. On a standalone server, see standalone-server.",
    ),
    KindWords(
        "many-streams",
        "Schedulers follow {count} change streams, and the server writes {writes} documents a second. It reads each "
        "document for each stream, which takes about {percent} of a core.",
        "If jobs from other processes may start a little later, polling is cheaper: `--no-change-stream "
        "--poll-interval 1`. The processes of one `trio-monque run --processes N` share a stream.",
    ),
    KindWords(
        "jobs-elsewhere",
        "Other databases of this server have pending jobs in a collection of this name, and no live instance: "
        "{databases}.",
        "If a program enqueues there by mistake, correct the database in its connection string. To run the jobs that "
        "are there already: `trio-monque run MODULE:ATTRIBUTE --database {example}`, and likewise for each database. "
        "If the database belongs to something else, there is nothing to do.",
    ),
    # --- Indexes ---
    KindWords(
        "no-collection",
        "The database {database} has no collection {collection}.",
        "Check --database and --collection. If they are right, no program has enqueued a job or run a worker yet.",
    ),
    KindWords(
        "unsafe-collection",
        "The collection {collection} cannot hold jobs: {problem}.",
        "Create a collection without these options under another name, copy the documents into it, and rename it; or "
        "give the jobs another collection (`--collection`, `collection_name=`).",
    ),
    KindWords(
        "validator",
        "The collection {collection} has a validator (level {level}): {rule}.",
        "The server refuses new jobs that do not satisfy it and, at the level strict, also claims on jobs that are "
        "older than the rule. If a log has 'Document failed validation': in Python, db.command('collMod', "
        "'{collection}', validationLevel='moderate') leaves alone existing jobs that do not satisfy it; an empty "
        "validator removes it. The page docs/how-to/troubleshoot.md has the commands for mongosh ('A validator').",
    ),
    KindWords(
        "missing-index",
        "The index {index} is missing.",
        "Run `trio-monque indexes --create`: on a large collection, do this at a quiet time, with "
        "`--operation-timeout 1h`. A worker also creates it when it starts, unless `skip_index_creation` is set.",
    ),
    KindWords(
        "other-index-definition",
        "The definition of the index {index} differs from the one that this version of the library creates.",
        "No worker starts while it exists. While no worker is running, drop it in mongosh with "
        "db.{collection}.dropIndex('{index}'), then start a worker: it creates the right one.",
    ),
    KindWords(
        "index-under-other-name",
        "The index {other} has the definition of {index}, so {index} cannot be created.",
        "No worker starts while it exists. While no worker is running, drop it in mongosh with "
        "db.{collection}.dropIndex('{other}'), then start a worker: it creates the same index under its own name.",
    ),
    KindWords(
        "node-indexes",
        "The collection has {count} indexes of Monque for Node: with all ten, claiming and settling a job costs the "
        "server more than twice as much.",
        "If no Node program uses this collection any more, run `trio-monque indexes --drop-node`. It drops {names}.",
    ),
    KindWords(
        "surplus-index",
        "The index {index} belongs to neither this library nor Monque for Node, and makes every claim and settlement "
        "more expensive.",
        "If none of your queries needs it, run `trio-monque indexes --drop-surplus`.",
    ),
    KindWords(
        "unique-index",
        "The unique index {index} belongs to neither this library nor Monque for Node: the server may refuse jobs.",
        "Drop it. To allow only one job per key, use `unique_key`.",
    ),
    KindWords(
        "expiring-index",
        "The index {index} makes the server delete documents after {seconds}, including pending and running jobs.",
        "Drop it, and use the `retention` of a scheduler, which deletes only ended jobs.",
    ),
    KindWords(
        "unserved-query",
        "No index serves {query}: the server reads the whole collection, or sorts it.",
        "Create the missing index: see missing-index.",
    ),
    KindWords(
        "costly-query",
        "The server reads {examined} documents to find {returned} in {query}.",
        "Look for documents that no worker can claim: `trio-monque doctor --all-documents` names them. Repair or "
        "delete them.",
    ),
)
