"""Compares the indexes of a collection with those of this library, and asks the server how it would answer queries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bson import json_util
from pymongo import ASCENDING, DESCENDING, IndexModel
from pymongo import errors as driver

from ....jobs.claimable import claimable
from ...codec import OWN_OPTIONS, filter_of
from ...driver.commands import command
from ...driver.extended_json import OPTIONS
from ...fields import FIELD
from ...job_collection import JobCollection
from ...jobs import indexes
from ...jobs.due import CLAIM_ORDER
from ...jobs.rescuing import CLAIMED, IN_ORDER
from .caps import briefly

OF_A_LOOK: Final = 100
"""The number of jobs that an explained query asks for."""

_ID_INDEX: Final = "_id_"

# What a description of an index has besides its definition.
_NO_DEFINITION: Final = {"v", "name", "ns", "background"}


def _name_of_nodes(*keys: tuple[str, int]) -> str:
    return "_".join(f"{FIELD[attribute]}_{direction}" for attribute, direction in keys)


OF_NODE: Final = frozenset(
    _name_of_nodes(*keys)
    for keys in (
        [("status", 1), ("next_run_at", 1)],
        [("name", 1), ("status", 1)],
        [("created_at", -1), ("id", -1)],
        [("updated_at", -1), ("id", -1)],
        [("next_run_at", -1), ("id", -1)],
        [("claim.by", 1), ("status", 1)],
        [("claim.last_heartbeat", 1), ("status", 1)],
        [("name", 1), ("status", 1), ("next_run_at", 1), ("claim.by", 1)],
        [("status", 1), ("claim.since", 1), ("claim.last_heartbeat", 1)],
        [("status", 1), ("updated_at", 1)],
    )
)
"""The names of the ten indexes that Monque for Node makes, besides the unique one that both libraries share."""


@dataclass(frozen=True, kw_only=True)
class Surplus:
    """An index that neither library makes.

    Attributes:
        name: Its name.
        is_unique: The server refuses jobs that have a value twice.
        expires_after: Seconds after which the server deletes documents because of it; None for never.
    """

    name: str
    is_unique: bool
    expires_after: float | None


@dataclass(frozen=True, kw_only=True)
class Indexes:
    """The indexes of the jobs collection.

    Attributes:
        has_collection: The collection exists.
        present: Those of this library that are there as it defines them.
        missing: Those that are not there.
        altered: Those whose name belongs to an index of another definition.
        renamed: Those that another index keeps from being created: its name, by the name of ours.
        of_node: Those of Monque for Node.
        surplus: Those of neither library.
    """

    has_collection: bool
    present: frozenset[str]
    missing: Sequence[str] = ()
    altered: Sequence[str] = ()
    renamed: Mapping[str, str]
    of_node: Sequence[str] = ()
    surplus: Sequence[Surplus] = ()


@command("read the list of indexes", writes=False)
def look_at_indexes(jobs: JobCollection, paths: Sequence[str] = ()) -> Indexes:
    """Return which indexes are there.

    Args:
        jobs: The jobs collection.
        paths: Fields of the meta or the data that need an index.
    """
    found = {str(one["name"]): one for one in jobs.collection.list_indexes()}
    definitions = {name: _definition(one) for name, one in found.items()}
    ours = {indexes.name_of(index): _definition(index.document) for index in indexes.ALL}
    ours |= {
        indexes.name_of(index): _definition(index.document)
        for index in map(indexes.of_field, dict.fromkeys([*paths, *filter(None, map(indexes.path_of, found))]))
    }
    if_there = (indexes.FOLLOW_UPS, indexes.START_BY, indexes.SCHEDULES)
    usable = {**ours, **{indexes.name_of(index): _definition(index.document) for index in if_there}}
    renamed = {
        name: other
        for name, wanted in ours.items()
        for other, definition in definitions.items()
        if name not in found and definition == wanted
    }
    known = {*ours, _ID_INDEX, *OF_NODE, *map(indexes.name_of, indexes.IF_NEEDED)}
    return Indexes(
        has_collection=bool(found),
        present=frozenset(name for name, wanted in usable.items() if definitions.get(name) == wanted),
        missing=[name for name in ours if name not in found and name not in renamed],
        altered=[name for name in ours if name in found and definitions[name] != ours[name]],
        renamed=renamed,
        of_node=sorted(found.keys() & OF_NODE),
        surplus=[
            Surplus(name=name, is_unique=bool(one.get("unique")), expires_after=one.get("expireAfterSeconds"))
            for name, one in found.items()
            if name not in known and name not in renamed.values()
        ],
    )


@command("read the list of indexes", writes=False)
def definitions(jobs: JobCollection, paths: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the definition of each index that is there, and of each of this library that is missing, as text.

    Those of fields are among them, if their paths are given.
    """
    described = {
        **{indexes.name_of(index): index.document for index in (*indexes.ALL, *map(indexes.of_field, paths))},
        **{str(one["name"]): one for one in jobs.collection.list_indexes()},
    }
    return {name: _as_text(_definition(one)) for name, one in described.items()}


def _as_text(definition: dict[str, Any]) -> str:
    keys = definition.pop("key")
    shown = json_util.dumps({"key": dict(keys), **definition}, json_options=OPTIONS)
    return shown.replace('"', "")


def _definition(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the index: keys in their order, and options that are not the default."""
    options = {name: value for name, value in described.items() if name not in _NO_DEFINITION and value is not False}
    return {**options, "key": [(name, direction) for name, direction in described["key"].items()]}


# --- Plans ---


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How the server answers a query of this library.

    Attributes:
        query: What it looks for, in words.
        is_served: By an index, in its order.
        examined: Documents that it read for at most OF_A_LOOK results; None if it was not asked to run the query.
        returned: Results.
    """

    query: str
    is_served: bool
    examined: int | None = None
    returned: int = 0


def explained_queries(names: Sequence[str], now: datetime) -> Mapping[str, tuple[IndexModel, Mapping[str, Any]]]:
    """Return the queries to explain: the look for due jobs of each name, and the lists. With the index of each."""
    of_date = ((indexes.LISTING, "next_run_at"), (indexes.CREATED, "created_at"))
    return {
        **{
            f"the query for due jobs of {name!r}": (
                indexes.CLAIM,
                {"filter": filter_of(claimable([name], now)), "sort": dict(CLAIM_ORDER)},
            )
            for name in names
        },
        "the query for running jobs": (indexes.HELD, {"filter": CLAIMED, "sort": dict(IN_ORDER)}),
        **{
            f"the list of jobs by {attribute}": (
                index,
                {"filter": {}, "sort": {FIELD[attribute]: ASCENDING, FIELD["id"]: ASCENDING}},
            )
            for index, attribute in of_date
        },
        "the list of failed jobs by updated_at": (
            indexes.UPDATED,
            {
                "filter": {FIELD["status"]: "failed"},
                "sort": {FIELD["updated_at"]: DESCENDING, FIELD["id"]: DESCENDING},
            },
        ),
    }


@command("read the plan of a query", writes=False)
def explain(jobs: JobCollection, query: str, index: IndexModel, search: Mapping[str, Any]) -> Plan:
    """Return the plan of a query as this library sends it: with its index as a hint, or without if that is missing.

    A query without its index is not run.
    """
    find = {"find": jobs.collection.name, **search, "limit": OF_A_LOOK}
    try:
        stats = _explain(jobs, {**find, "hint": indexes.name_of(index)}, "executionStats")["executionStats"]
    except driver.OperationFailure as error:
        if error.code not in indexes.NO_SUCH_INDEX:
            raise
        stages = set(_stages(_explain(jobs, find, "queryPlanner").get("queryPlanner")))
        return Plan(query=query, is_served=not stages & {"COLLSCAN", "SORT"})
    return Plan(
        query=query,
        is_served="SORT" not in set(_stages(stats)),
        examined=int(stats["totalDocsExamined"]),
        returned=int(stats["nReturned"]),
    )


def _explain(jobs: JobCollection, find: Mapping[str, Any], verbosity: str) -> Mapping[str, Any]:
    database = jobs.collection.database
    (answer,) = briefly(lambda: [database.command("explain", find, verbosity=verbosity, codec_options=OWN_OPTIONS)])
    return answer


def _stages(plan: Any) -> Iterator[str]:
    if isinstance(plan, Mapping):
        for key, value in plan.items():
            if key == "stage":
                yield str(value)
            elif key != "rejectedPlans":
                yield from _stages(value)
    elif isinstance(plan, list):
        for one in plan:
            yield from _stages(one)
