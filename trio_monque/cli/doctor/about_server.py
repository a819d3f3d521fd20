"""Judges the facts of the server and of the indexes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...store.driver.database_threads import CONNECTIONS_NEEDED
from ...store.jobs.collection_options import problem_of
from ...store.reads.diagnosis.index_health import Surplus
from ...store.reads.diagnosis.server import Server, ServerConnections, Topology
from . import findings as kinds
from .facts import IndexFacts, ServerFacts
from .findings import Finding, FindingKind

OLDEST_VERSION: Final = (6, 0)

MOST_SECONDS_OFF: Final = 1.0
"""Seconds by which clocks may differ: the same as the default of `clock_skew` for claims."""

SECONDS_A_WRITE: Final = 8e-6
"""Seconds of the server's processor that a change stream takes for each document written: `benchmarks/idle.py`."""

MOST_FOR_STREAMS: Final = 0.25
"""The share of a core up to which streams are worth it in any case."""

_HAS_DATA: Final = ("PRIMARY", "SECONDARY")
_IN_ORDER: Final = (*_HAS_DATA, "ARBITER")
_MANY_EXAMINED: Final = 1_000


def found(kind: FindingKind, **fields: Any) -> Finding:
    return Finding(kind, fields)


def judge_server(facts: ServerFacts) -> Iterator[Finding]:
    """Yield what is wrong with the server, or with the way to it."""
    server = facts.server
    version = tuple(int(part) for part in server.version.split(".")[:2] if part.isdecimal())
    if version < OLDEST_VERSION:
        yield found(kinds.OLD_SERVER, version=server.version, oldest=".".join(map(str, OLDEST_VERSION)))
    if server.topology is Topology.STANDALONE:
        yield found(kinds.STANDALONE)
    elif server.topology is Topology.REPLICA_SET:
        yield from _judge_members(server)
    if facts.ahead is not None and abs(facts.ahead) > MOST_SECONDS_OFF:
        yield found(kinds.CLOCK_OFF, **_off(facts.ahead))
    for address, ahead in facts.members_ahead.items():
        if abs(ahead) > MOST_SECONDS_OFF:
            other = next(iter(facts.members_ahead))
            yield found(kinds.MEMBER_CLOCK_OFF, member=address, other=other, **_off(ahead))
    if facts.connections is not None:
        yield from _judge_connections(facts.connections)
    yield from _judge_streams(facts)


def _judge_streams(facts: ServerFacts) -> Iterator[Finding]:
    if facts.stream_problem is not None:
        yield found(kinds.NO_CHANGE_STREAM, problem=facts.stream_problem)
    if facts.streams is not None and facts.writes is not None:
        share = facts.streams * facts.writes * SECONDS_A_WRITE
        if share >= MOST_FOR_STREAMS:
            yield found(kinds.MANY_STREAMS, count=facts.streams, writes=f"{facts.writes:,.0f}", percent=f"{share:.0%}")


def _judge_members(server: Server) -> Iterator[Finding]:
    members = ", ".join(f"{one.address} ({one.state})" for one in server.members) or "unknown"
    up = sum(one.is_up and one.state in _HAS_DATA for one in server.members)
    if not server.has_primary:
        yield found(kinds.NO_PRIMARY, members=members)
    elif server.majority is not None and up < server.majority:
        yield found(kinds.NO_MAJORITY, up=up, needed=server.majority, members=members)
    for one in server.members:
        if not one.is_up or one.state not in _IN_ORDER:
            yield found(kinds.MEMBER_DOWN, member=one.address, state=one.state)
    if not server.members:
        yield found(kinds.MEMBERS_HIDDEN)
    if server.is_direct:
        yield found(kinds.DIRECT_CONNECTION)


def _off(ahead: float) -> dict[str, str]:
    return {"seconds": f"{abs(ahead):.1f}", "direction": "ahead of" if ahead > 0 else "behind"}


def _judge_connections(connections: ServerConnections) -> Iterator[Finding]:
    size = connections.largest_pool
    if size and size < CONNECTIONS_NEEDED:
        yield found(kinds.SMALL_POOL, size=size, needed=CONNECTIONS_NEEDED)
    available = connections.available
    if available is not None and available < CONNECTIONS_NEEDED:
        yield found(kinds.SERVER_FULL, used=connections.used, available=available, needed=CONNECTIONS_NEEDED)


def judge_indexes(facts: IndexFacts) -> Iterator[Finding]:
    """Yield what is wrong with the indexes, and which queries suffer."""
    there, collection = facts.indexes, facts.collection
    if not there.has_collection:
        yield found(kinds.NO_COLLECTION, database=facts.database, collection=collection)
        return
    if (problem := problem_of(facts.options)) is not None:
        yield found(kinds.UNSAFE_COLLECTION, collection=collection, problem=problem)
    for name in there.missing:
        yield found(kinds.MISSING_INDEX, index=name)
    for name in there.altered:
        yield found(kinds.OTHER_DEFINITION, index=name, collection=collection)
    for name, other in there.renamed.items():
        yield found(kinds.INDEX_UNDER_OTHER_NAME, index=name, other=other, collection=collection)
    yield from map(_judge_surplus, there.surplus)
    for plan in facts.plans:
        if not plan.is_served:
            yield found(kinds.UNSERVED_QUERY, query=plan.query)
        elif plan.examined is not None and plan.examined - plan.returned > _MANY_EXAMINED:
            yield found(kinds.COSTLY_QUERY, query=plan.query, examined=plan.examined, returned=plan.returned)
    if there.of_node:
        yield found(kinds.NODE_INDEXES, count=len(there.of_node), names=", ".join(there.of_node))


def _judge_surplus(index: Surplus) -> Finding:
    if index.expires_after is not None:
        return found(kinds.EXPIRING_INDEX, index=index.name, seconds=f"{index.expires_after:g}")
    return found(kinds.UNIQUE_INDEX if index.is_unique else kinds.SURPLUS_INDEX, index=index.name)
