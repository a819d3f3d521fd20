"""Options of a collection with which an acknowledged write would not mean what it says.

A capped collection drops its oldest documents to make room, jobs that wait among them. A clustered collection may
delete documents by their age. And where a collation takes two texts for one, two unique keys are one key, and a worker
claims the jobs of another name. The server accepts each write all the same, so only these options show it. A view and a
time-series collection need no check: the server refuses the indexes. A TTL index is a finding of the doctor, because it
may be meant for ended jobs.

The options are read once a client, with its indexes. A conversion of a live collection (`convertToCapped`) drops the
indexes, which the next look or write notices, so that the check is made again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pymongo import errors as driver

from ...error_types import MonqueConnectionError
from ..codec import OWN_OPTIONS
from ..driver.commands import command
from ..driver.driver_errors import UNAUTHORIZED
from ..job_collection import JobCollection


@command("read the options of the collection", writes=False)
def look_at_options(jobs: JobCollection) -> Mapping[str, Any]:
    """Return the options of the collection; nothing if it does not exist, or if the user may not list collections."""
    database = jobs.collection.database.with_options(codec_options=OWN_OPTIONS)
    try:
        found = list(database.list_collections(filter={"name": jobs.collection.name}))
    except driver.OperationFailure as error:
        if error.code != UNAUTHORIZED:
            raise
        return {}
    return dict(found[0].get("options", {})) if found else {}


def problem_of(options: Mapping[str, Any]) -> str | None:
    """Return why a collection with these options cannot hold jobs; None if it can. Pure."""
    if options.get("capped"):
        return "it is capped, so the server deletes its oldest documents to make room: waiting jobs would be lost"
    if options.get("expireAfterSeconds") is not None:
        return "the server deletes its documents by their age (expireAfterSeconds): waiting jobs would be lost"
    collation = options.get("collation")
    if collation is not None and collation.get("locale") != "simple":
        return (
            f"it has the collation {collation.get('locale')!r}, under which the server may treat two job names, or "
            "two unique keys, as equal"
        )
    return None


def refusing_rule(options: Mapping[str, Any]) -> str | None:
    """Return the validator of a collection with these options, as text; None if the server refuses nothing by one."""
    rule = options.get("validator")
    if not rule or options.get("validationLevel") == "off" or options.get("validationAction") == "warn":
        return None
    return json.dumps(rule, default=str, ensure_ascii=False)


ADVICE = (
    "Create a collection without these options under another name, copy the documents into it, and rename it; or give "
    "the jobs another collection with collection_name="
)


def check_options(jobs: JobCollection) -> None:
    """Check that the collection can hold jobs.

    Raises:
        MonqueConnectionError: It cannot; says why, and what to do.
    """
    problem = problem_of(look_at_options(jobs))
    if problem is not None:
        raise MonqueConnectionError(
            f"the collection {jobs.collection.full_name} cannot hold jobs: {problem}. {ADVICE}", permanent=True
        )
