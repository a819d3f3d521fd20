"""How many jobs each name has in each status, for an overview of all names. Its cost has a bound.

There are two ways. A walk reads a key of `CLAIM` for each job, name by name, until it has read `MOST_KEYS`. Or the
server skips from name to name, and counts each status of each up to a cap: it reads less if few names have many jobs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pymongo import ASCENDING, IndexModel

from ...jobs.job import JobStatus
from ...jobs.views import QueueStats
from ..codec import LENIENT
from ..driver.bounded_counts import Stages, first_of, number_by
from ..driver.commands import command
from ..fields import FIELD
from ..job_collection import JobCollection
from ..jobs import indexes
from . import queries

MOST_KEYS: Final = 400_000
"""The number of keys up to which one overview counts: about half a second of the server."""

MOST_COUNTED: Final = 10_000
"""The number up to which the jobs of one name in one status are counted, if not all jobs are."""

MOST_LOOKED_UP: Final = 200
"""Up to this number of names, the jobs of each are looked up: a millisecond a name."""

ROWS_AT_ONCE: Final = 100_000
"""Rows in one batch of the answer: five for each name, of a hundred bytes each."""

Counts = dict[str, dict[JobStatus, int]]
Capped = Mapping[str, Sequence[JobStatus]]

_STATUS, _NAME = FIELD["status"], FIELD["name"]


@command("count jobs by name", writes=False, aggregates=True)
def counts_by_name(jobs: JobCollection, most_keys: int = MOST_KEYS) -> dict[str, QueueStats]:
    """Return the statistics of every name that has jobs, without lifetimes. Unknown statuses are not counted.

    Of a name that the walk has not reached, nothing is counted, and all its statuses at rest are capped.
    """
    names = sorted(queries.names_at_rest(jobs, indexes.AT_REST))
    are_few = jobs.collection.estimated_document_count() <= most_keys
    count = _walked if are_few or len(names) > MOST_LOOKED_UP else _looked_up
    counts, capped = count(jobs, names, most_keys)
    by_name = _rows(jobs, indexes.HELD, [_IS_RUNNING, number_by(f"${_NAME}")])
    running = {row["_id"]: row["number"] for row in by_name if type(row["_id"]) is str}
    return {
        name: QueueStats(
            **{status.value: number for status, number in counts.get(name, {}).items()},
            processing=running.get(name, 0),
            capped=frozenset(capped.get(name, ())),
        )
        for name in {*names, *running} - {""}
    }


def _walked(jobs: JobCollection, names: Sequence[str], most_keys: int) -> tuple[Counts, Capped]:
    order = {_NAME: ASCENDING, _STATUS: ASCENDING}
    by_both = number_by({"name": f"${_NAME}", "of": f"${_STATUS}"})
    rows = _rows(jobs, indexes.CLAIM, [*first_of(_AT_REST, most_keys, order), by_both])
    counts: Counts = defaultdict(dict)
    for row in rows:
        name, status = row["_id"]["name"], row["_id"]["of"]
        # To the server, a list of texts is as good as a text. Such documents are not jobs.
        if type(name) is str and type(status) is str:
            counts[name][JobStatus(status)] = row["number"]
    if sum(row["number"] for row in rows) < most_keys:
        return counts, {}
    if not counts:
        return counts, dict.fromkeys(names, indexes.AT_REST)
    # The walk ended within the last status of the last name that it met, by this order. There may be more of that one.
    last = max(counts)
    reached = max(counts[last])
    capped = {name: indexes.AT_REST for name in names if name > last}
    return counts, {**capped, last: [status for status in indexes.AT_REST if status >= reached]}


def _looked_up(jobs: JobCollection, names: Sequence[str], most_keys: int) -> tuple[Counts, Capped]:
    most = max(1, min(MOST_COUNTED, most_keys // (len(indexes.AT_REST) * max(1, len(names)))))
    lookups = [_lookup(jobs.collection.name, status, most) for status in indexes.AT_REST]
    counts: Counts = {}
    capped: dict[str, Sequence[JobStatus]] = {}
    rows = _rows(jobs, indexes.CLAIM, [*queries.stages_of_names(indexes.AT_REST), *lookups])
    for row in (one for one in rows if type(one["_id"]) is str):
        numbers = {status: row[status][0]["number"] for status in indexes.AT_REST if row[status]}
        counts[row["_id"]] = {status: min(number, most) for status, number in numbers.items()}
        capped[row["_id"]] = [status for status, number in numbers.items() if number > most]
    return counts, capped


_AT_REST: Final[dict[str, Any]] = {
    # With this bound on the name, the server reads the index in its order, and no document.
    _NAME: {"$gte": ""},
    _STATUS: {"$in": [status.value for status in indexes.AT_REST]},
}
_IS_RUNNING: Final = {"$match": {_STATUS: JobStatus.PROCESSING.value, _NAME: {"$type": "string"}}}


def _lookup(collection: str, status: JobStatus, most: int) -> dict[str, Any]:
    return {
        "$lookup": {
            "from": collection,
            "localField": "_id",
            "foreignField": _NAME,
            "as": status.value,
            "pipeline": [*first_of({_STATUS: status.value}, most + 1), number_by(None)],
        }
    }


def _rows(jobs: JobCollection, index: IndexModel, stages: Stages) -> list[dict[str, Any]]:
    # A name that is not text must not keep the others from being read.
    collection = jobs.collection.with_options(codec_options=LENIENT)
    return indexes.hinted(
        index, lambda hint: list(collection.aggregate(stages, batchSize=ROWS_AT_ONCE, **indexes.hinting(hint)))
    )
