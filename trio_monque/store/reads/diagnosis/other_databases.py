"""Other databases of the server with waiting jobs in a collection of the same name, and no instance: a wrong database.

A program whose connection string names another database enqueues there without an error, and no worker runs it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from pymongo import errors as driver

from ....error_types import MonqueConnectionError
from ....jobs.instance import is_alive
from ....jobs.job import JobStatus
from ...driver.commands import command
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes, instances
from .caps import briefly
from .server import ask, permitted

MOST_DATABASES: Final = 20
"""Databases that are looked into: those that come first in the alphabet."""

_OF_THE_SERVER: Final = frozenset({"admin", "config", "local"})


@command("look for jobs in other databases", writes=False)
def databases_with_waiting_jobs(jobs: JobCollection, now: datetime) -> Sequence[str]:
    """Return the names of these databases. One that the user may not read is left out."""
    listed = permitted(partial(ask, jobs, "listDatabases", nameOnly=True, authorizedDatabases=True))
    own = {jobs.collection.database.name, *_OF_THE_SERVER}
    names = sorted({str(one["name"]) for one in (listed or {}).get("databases", ())} - own)
    return [name for name in names[:MOST_DATABASES] if _waits_in_vain(_in_database(jobs, name), now)]


def _in_database(jobs: JobCollection, name: str) -> JobCollection:
    client = jobs.collection.database.client
    return replace(jobs, collection=client[name].get_collection(jobs.collection.name, jobs.codec.reading))


def _waits_in_vain(jobs: JobCollection, now: datetime) -> bool:
    pending = {FIELD["status"]: JobStatus.PENDING.value}
    hint = indexes.name_of(indexes.UPDATED)
    try:
        if not briefly(lambda: jobs.collection.find(pending, [FIELD["id"]], limit=1, hint=hint)):
            return False
        entries = instances.read_all(jobs)
    except (driver.OperationFailure, MonqueConnectionError):
        return False  # Without that index, it belongs to something else. Or the user may not read it.
    return not any(is_alive(one.last_heartbeat, one.heartbeat_interval, now) for one in entries)
