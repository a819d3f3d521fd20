"""The small collection beside the jobs: an entry for each instance, a document for each paused name, and locks.

Blocking; one round trip for each function. The `_id` of an entry is the id of the instance: if two instances start with
the same id, the server inserts one entry. Every later write compares the incarnation, a random value of each start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from pymongo import errors as driver

from ...jobs.instance import Instance, LastBlock
from ...jobs.job import Job
from ...jobs.name_pause import LONGEST_BY, NamePause
from ...log import logger_of
from ...safe_text import plain
from ..codec import LENIENT
from ..driver.commands import command
from ..driver.types import Collection
from ..fields import FIELD
from ..job_collection import JobCollection
from .rescuing import CLAIM_VIEW, CLAIMED, IN_ORDER

logger = logger_of("store")

PAUSE: Final = "pause:"
IS_PAUSE: Final = {"$gte": PAUSE, "$lt": "pause;"}  # A semicolon is the character after the colon.
_IS_PAUSE: Final = {"_id": IS_PAUSE}
_IS_ENTRY: Final = {"incarnation": {"$exists": True}}

LEAVING: Final = "leaving"
"""The field of its entry that an instance writes when it leaves, so that its own change stream stops waiting."""

BEAT: Final = "heartbeatAt"
"""The field of an entry that every heartbeat writes. Change streams leave out writes with this field."""


def name_of_collection(collection_name: str) -> str:
    """Return the name of the collection beside the jobs."""
    return f"{collection_name}.instances"


def _beside(jobs: JobCollection) -> Collection:
    # The other settings are those of the jobs: the primary, and a majority.
    beside: Collection = jobs.collection.database.get_collection(
        name_of_collection(jobs.collection.name),
        codec_options=LENIENT,
        read_preference=jobs.collection.read_preference,
        read_concern=jobs.collection.read_concern,
        write_concern=jobs.collection.write_concern,
    )
    return beside


# --- Entries ---


@command("enter the fleet")
def insert(jobs: JobCollection, instance: Instance) -> bool:
    """Insert the entry; return False if another one has that id."""
    try:
        _beside(jobs).insert_one({"_id": instance.id, **_constant(instance), **_changing(instance)})
    except driver.DuplicateKeyError:
        return False
    return True


@command("take over the id of a dead instance")
def replace_if_unchanged(jobs: JobCollection, seen: Instance, instance: Instance) -> bool:
    """Replace the entry `seen` if its heartbeat has not changed since; return whether it was replaced."""
    document = {**_constant(instance), **_changing(instance)}
    return bool(_beside(jobs).replace_one(_unchanged(seen), document).matched_count)


@command("send the instance's heartbeat")
def beat(jobs: JobCollection, instance: Instance) -> bool:
    """Write the current state of the instance into its entry; return whether the entry was there."""
    return bool(_beside(jobs).update_one(_own(instance), {"$set": _changing(instance)}).matched_count)


@command("leave the fleet")
def remove(jobs: JobCollection, instance: Instance) -> bool:
    """Remove the entry of the instance; return whether it was there."""
    return bool(_beside(jobs).delete_one(_own(instance)).deleted_count)


@command("remove the entry of a dead instance")
def remove_if_unchanged(jobs: JobCollection, seen: Instance) -> bool:
    """Remove the entry `seen` if its heartbeat has not changed since; return whether it was removed."""
    return bool(_beside(jobs).delete_one(_unchanged(seen)).deleted_count)


@command("read the instance's entry", writes=False)
def read(jobs: JobCollection, instance_id: str) -> Instance | None:
    """Return the entry with that id; None if there is none, or if it is not an entry of an instance."""
    document = _beside(jobs).find_one({"_id": instance_id, **_IS_ENTRY})
    return None if document is None else _instance(document)


@command("read the entries of the instances", writes=False)
def read_all(jobs: JobCollection) -> Sequence[Instance]:
    """Return all entries, by id."""
    found = [_instance(document) for document in _beside(jobs).find(_IS_ENTRY, sort=[("_id", 1)])]
    return [instance for instance in found if instance is not None]


@command("look for a live instance", writes=False)
def has_heartbeat_since(jobs: JobCollection, moment: datetime) -> bool:
    """Return whether an instance has sent a heartbeat since then."""
    return _beside(jobs).find_one({BEAT: {"$gte": moment}}, ["_id"]) is not None


@command("read the entries and the pauses", writes=False)
def read_fleet(jobs: JobCollection) -> tuple[Sequence[Instance], Mapping[str, NamePause]]:
    """Return all entries, by id, and the pauses, by name: the whole collection but the locks."""
    documents = list(_beside(jobs).find({"$or": [_IS_ENTRY, _IS_PAUSE]}, sort=[("_id", 1)]))
    pauses = [_pause(one) for one in documents if str(one["_id"]).startswith(PAUSE)]
    entries = [_instance(one) for one in documents if not str(one["_id"]).startswith(PAUSE)]
    return [instance for instance in entries if instance is not None], {one.name: one for one in pauses}


@command("look for claims under the instance's id", writes=False)
def claims_of(jobs: JobCollection, instance_id: str) -> Sequence[Job]:
    """Return the jobs that are claimed under that id, without the fields that do not belong to a claim."""
    held = {**CLAIMED, FIELD["claim.by"]: instance_id}
    return jobs.decoded(lambda collection: collection.find(held, CLAIM_VIEW, sort=IN_ORDER))


def _own(instance: Instance) -> dict[str, Any]:
    return {"_id": instance.id, "incarnation": instance.incarnation}


def _unchanged(seen: Instance) -> dict[str, Any]:
    return {**_own(seen), BEAT: seen.last_heartbeat}


def _constant(instance: Instance) -> dict[str, Any]:
    return {
        "incarnation": instance.incarnation,
        "host": instance.host,
        "pid": instance.pid,
        "startedAt": instance.started_at,
        "heartbeatInterval": round(instance.heartbeat_interval * 1000),
        "version": instance.version,
    }


def _changing(instance: Instance) -> dict[str, Any]:
    return {
        BEAT: instance.last_heartbeat,
        "names": list(instance.names),
        "draining": instance.draining,
        "held": instance.held,
        "parked": instance.parked,
        "slots": instance.slots,
        "heldByName": _listed(instance.held_by_name),
        "overdueByName": _listed(instance.overdue_by_name),
        "fullNames": list(instance.full_names),
        "timeLimits": [{"name": name, "seconds": seconds} for name, seconds in instance.time_limits.items()],
        "loopBlocked": instance.loop_blocked,
        "lastBlock": None if instance.last_block is None else _as_document(instance.last_block),
    }


def _as_document(block: LastBlock) -> dict[str, Any]:
    return {"name": block.name, "at": block.at, "seconds": block.seconds}


def _listed(numbers: Mapping[str, int]) -> list[dict[str, Any]]:
    # A list, not a document by name: a job's name may contain dots and dollars.
    return [{"name": name, "count": count} for name, count in numbers.items()]


def _by_name(listed: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {str(one["name"]): int(one["count"]) for one in listed}


def _instance(document: Mapping[str, Any]) -> Instance | None:
    try:
        started_at, last_heartbeat = document["startedAt"], document[BEAT]
        if not (isinstance(started_at, datetime) and isinstance(last_heartbeat, datetime)):
            raise TypeError("startedAt or heartbeatAt is not a date")
        return Instance(
            id=str(document["_id"]),
            incarnation=str(document["incarnation"]),
            host=str(document["host"]),
            pid=int(document["pid"]),
            names=tuple(str(name) for name in document["names"]),
            started_at=started_at,
            last_heartbeat=last_heartbeat,
            heartbeat_interval=document["heartbeatInterval"] / 1000,
            draining=bool(document["draining"]),
            held=int(document["held"]),
            held_by_name=_by_name(document["heldByName"]),
            overdue_by_name=_by_name(document.get("overdueByName", ())),  # An older release does not write it.
            parked=int(document.get("parked", 0)),  # Likewise.
            slots=None if document.get("slots") is None else int(document["slots"]),  # Likewise.
            full_names=tuple(str(name) for name in document.get("fullNames", ())),
            time_limits={str(one["name"]): float(one["seconds"]) for one in document.get("timeLimits", ())},
            loop_blocked=int(document.get("loopBlocked", 0)),
            last_block=_last_block(document.get("lastBlock")),
            version=str(document["version"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        logger.warning(
            "document %r in the collection of instances is not the entry of an instance (%r): delete it",
            document.get("_id"),
            error,
        )
        return None


def _last_block(document: Mapping[str, Any] | None) -> LastBlock | None:
    if document is None:
        return None
    name, at = document["name"], document["at"]
    if not isinstance(at, datetime):
        raise TypeError("lastBlock.at is not a date")
    return LastBlock(None if name is None else str(name), at, float(document["seconds"]))


# --- Pauses ---


@command("pause the name")
def pause(jobs: JobCollection, name: str, now: datetime, by: str | None = None) -> bool:
    """Pause the name; return whether it was not paused before. A pause keeps the moment and who made it."""
    made = {"pausedAt": now, **({} if by is None else {"by": by})}
    try:
        written = _beside(jobs).update_one({"_id": PAUSE + name}, {"$setOnInsert": made}, upsert=True)
    except driver.DuplicateKeyError:
        return False  # Another client paused it at the same moment.
    return written.upserted_id is not None


@command("resume the name")
def resume(jobs: JobCollection, name: str) -> bool:
    """Resume the name; return whether it was paused before."""
    return bool(_beside(jobs).delete_one({"_id": PAUSE + name}).deleted_count)


@command("read which names are paused", writes=False)
def paused(jobs: JobCollection) -> frozenset[str]:
    """Return the names that are paused."""
    return frozenset(document["_id"].removeprefix(PAUSE) for document in _beside(jobs).find(_IS_PAUSE, {"_id": True}))


@command("read the pauses", writes=False)
def pauses(jobs: JobCollection) -> Sequence[NamePause]:
    """Return the pauses, by name."""
    return [_pause(document) for document in _beside(jobs).find(_IS_PAUSE, sort=[("_id", 1)])]


def _pause(document: Mapping[str, Any]) -> NamePause:
    # An older release does not write `by`, and a name is paused whatever else its document says.
    since, by = document.get("pausedAt"), document.get("by")
    return NamePause(
        document["_id"].removeprefix(PAUSE),
        since if isinstance(since, datetime) else None,
        plain(by, LONGEST_BY) if isinstance(by, str) and by else None,
    )


# --- Locks ---

LOCK: Final = "lock:"
LOCK_LEASE: Final = timedelta(seconds=60)
"""How long a lock lasts unless it is renewed. The lock of a dead holder then expires.

Use such a lock only to save work, not for correctness: it compares dates of the server, whose clock may step.
"""


@command("take the lock")
def take_lock(jobs: JobCollection, name: str, token: str, by: str, now: datetime) -> bool:
    """Take the lock for a lease; return False if another holds it."""
    # If the date is beyond two leases, the clock has stepped back since, or no holder wrote it: the lock is free.
    held = {"until": {"$gt": now, "$lte": now + 2 * LOCK_LEASE}}
    taken = {"token": token, "by": by, "until": now + LOCK_LEASE}
    # If another holds the lock, the filter does not match. Then the upsert inserts, and fails by the `_id`.
    try:
        _beside(jobs).update_one({"_id": LOCK + name, "$nor": [held]}, {"$set": taken}, upsert=True)
    except driver.DuplicateKeyError:
        return False
    return True


@command("renew the lock")
def renew_lock(jobs: JobCollection, name: str, token: str, now: datetime) -> bool:
    """Renew the lock for another lease; return False if it is no longer held under that token."""
    renewed = {"$set": {"until": now + LOCK_LEASE}}
    return bool(_beside(jobs).update_one({"_id": LOCK + name, "token": token}, renewed).matched_count)


@command("release the lock")
def release_lock(jobs: JobCollection, name: str, token: str) -> None:
    """Free the lock if it is held under that token."""
    _beside(jobs).delete_one({"_id": LOCK + name, "token": token})


@command("read how long the lock is held", writes=False)
def locked_until(jobs: JobCollection, name: str) -> datetime | None:
    """Return when the lock expires unless it is renewed; None if it is free."""
    document = _beside(jobs).find_one({"_id": LOCK + name}, {"until": True})
    until = None if document is None else document.get("until")
    return until if isinstance(until, datetime) else None
