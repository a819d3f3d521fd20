"""Other databases of the server with waiting jobs in a collection of the same name, and no instance: a wrong database.

A program whose connection string names another database enqueues there without an error, and no worker runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from pymongo import errors as driver

from ....error_types import MonqueConnectionError
from ....jobs.instance import LIVE_FOR_BEATS
from ....jobs.job import JobStatus
from ....options_and_defaults import LONGEST_BEAT
from ...driver.commands import command
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes, instances
from .caps import MOST_SECONDS, Count, briefly
from .server import ask, permitted

MOST_DATABASES: Final = 20
"""Databases that are looked into: those that come first in the alphabet."""

MOST_COUNTED: Final = 1_000

_OF_THE_SERVER: Final = frozenset({"admin", "config", "local"})


@dataclass(frozen=True, kw_only=True)
class WaitingElsewhere:
    """Another database whose jobs wait in vain.

    Attributes:
        database: Its name.
        pending: How many jobs are pending there.
    """

    database: str
    pending: Count


@command("look for jobs in other databases", writes=False)
def jobs_elsewhere(jobs: JobCollection, now: datetime) -> Sequence[WaitingElsewhere]:
    """Return these databases. One that the user may not read is left out."""
    listed = permitted(partial(ask, jobs, "listDatabases", nameOnly=True, authorizedDatabases=True))
    own = {jobs.collection.database.name, *_OF_THE_SERVER}
    names = sorted({str(one["name"]) for one in (listed or {}).get("databases", ())} - own)[:MOST_DATABASES]
    looks = ((name, _waiting_in_vain(_in_database(jobs, name), now)) for name in names)
    return [WaitingElsewhere(database=name, pending=pending) for name, pending in looks if pending]


def _in_database(jobs: JobCollection, name: str) -> JobCollection:
    client = jobs.collection.database.client
    collection = client[name].get_collection(jobs.collection.name, jobs.codec.reading)
    return replace(jobs, collection=collection, operation_timeout=MOST_SECONDS)


def _waiting_in_vain(jobs: JobCollection, now: datetime) -> Count:
    pending = {FIELD["status"]: JobStatus.PENDING.value}
    hint = indexes.name_of(indexes.UPDATED)
    alive_since = now - timedelta(seconds=LIVE_FOR_BEATS * LONGEST_BEAT)
    try:
        found = briefly(lambda: jobs.collection.find(pending, [FIELD["id"]], limit=MOST_COUNTED + 1, hint=hint))
        is_served = bool(found) and instances.has_heartbeat_since(jobs, alive_since)
    except (driver.OperationFailure, MonqueConnectionError):
        return Count()  # Without that index, it belongs to something else. Or the user may not read it.
    return Count() if is_served else Count.up_to(len(found), MOST_COUNTED)
