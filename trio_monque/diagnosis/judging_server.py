"""Judges the facts of the server and of the indexes. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ..safe_text import one_line
from ..store.driver.database_threads import CONNECTIONS_NEEDED
from ..store.jobs.collection_options import problem_of, refusing_rule
from ..store.reads.diagnosis.index_health import Surplus
from ..store.reads.diagnosis.server import Server, ServerConnections, Topology
from .facts import IndexFacts, ServerFacts
from .findings import Finding, found

OLDEST_VERSION: Final = (6, 0)

MOST_SECONDS_OFF: Final = 1.0
"""Seconds by which clocks may differ: the same as the default of `clock_skew` for claims."""

SECONDS_A_WRITE: Final = 8e-6
"""Seconds of the server's processor that a change stream takes for each document written: `benchmarks/idle.py`."""

MOST_FOR_STREAMS: Final = 0.25
"""The share of a core up to which streams are worth it in any case."""

_HAS_DATA: Final = ("PRIMARY", "SECONDARY")
_IN_ORDER: Final = (*_HAS_DATA, "ARBITER")
LONGEST_RULE: Final = 300
"""Characters of a validator that are shown."""

_MANY_EXAMINED: Final = 1_000


def judge_server(facts: ServerFacts) -> Iterator[Finding]:
    """Yield what is wrong with the server, or with the way to it."""
    server = facts.server
    version = tuple(int(part) for part in server.version.split(".")[:2] if part.isdecimal())
    if version < OLDEST_VERSION:
        yield found("old-server", version=server.version, oldest=".".join(map(str, OLDEST_VERSION)))
    if server.topology is Topology.STANDALONE:
        yield found("standalone-server")
    elif server.topology is Topology.REPLICA_SET:
        yield from _judge_members(server)
    if facts.ahead is not None and abs(facts.ahead) > MOST_SECONDS_OFF:
        yield found("clock-off", **_off(facts.ahead))
    for address, ahead in facts.members_ahead.items():
        if abs(ahead) > MOST_SECONDS_OFF:
            other = next(iter(facts.members_ahead))
            yield found("member-clock-off", member=address, other=other, **_off(ahead))
    if facts.connections is not None:
        yield from _judge_connections(facts.connections)
    yield from _judge_streams(facts)
    if facts.jobs_elsewhere:
        waiting = {one.database: str(one.pending) for one in facts.jobs_elsewhere}
        yield found("jobs-elsewhere", databases=waiting, example=facts.jobs_elsewhere[0].database)


def _judge_streams(facts: ServerFacts) -> Iterator[Finding]:
    if facts.stream_problem is not None:
        yield found("no-change-stream", problem=facts.stream_problem)
    if facts.streams is not None and facts.writes is not None:
        share = facts.streams * facts.writes * SECONDS_A_WRITE
        if share >= MOST_FOR_STREAMS:
            yield found("many-streams", count=facts.streams, writes=facts.writes, share=share)


def _judge_members(server: Server) -> Iterator[Finding]:
    members = {one.address: one.state for one in server.members}
    up = sum(one.is_up and one.state in _HAS_DATA for one in server.members)
    if not server.has_primary:
        yield found("no-primary", members=members)
    elif server.majority is not None and up < server.majority:
        yield found("no-majority", up=up, needed=server.majority, members=members)
    for one in server.members:
        if not one.is_up or one.state not in _IN_ORDER:
            yield found("member-down", member=one.address, state=one.state)
    if not server.members:
        yield found("members-hidden")
    if server.is_direct:
        yield found("direct-connection")


def _off(ahead: float) -> dict[str, Any]:
    return {"seconds": abs(ahead), "is_ahead": ahead > 0}


def _judge_connections(connections: ServerConnections) -> Iterator[Finding]:
    size = connections.largest_pool
    if size and size < CONNECTIONS_NEEDED:
        yield found("small-pool", size=size, needed=CONNECTIONS_NEEDED)
    available = connections.available
    if available is not None and available < CONNECTIONS_NEEDED:
        yield found("server-full", used=connections.used, available=available, needed=CONNECTIONS_NEEDED)


def judge_indexes(facts: IndexFacts) -> Iterator[Finding]:
    """Yield what is wrong with the indexes, and which queries suffer."""
    there, collection = facts.indexes, facts.collection
    if not there.has_collection:
        yield found("no-collection", database=facts.database, collection=collection)
        return
    yield from _judge_options(facts)
    for name in there.missing:
        yield found("missing-index", index=name)
    for name in there.altered:
        yield found("other-index-definition", index=name, collection=collection)
    for name, other in there.renamed.items():
        yield found("index-under-other-name", index=name, other=other, collection=collection)
    yield from map(_judge_surplus, there.surplus)
    for plan in facts.plans:
        if not plan.is_served:
            yield found("unserved-query", query=plan.query)
        elif plan.examined is not None and plan.examined - plan.returned > _MANY_EXAMINED:
            yield found("costly-query", query=plan.query, examined=plan.examined, returned=plan.returned)
    if there.of_node:
        yield found("node-indexes", count=len(there.of_node), names=list(there.of_node))


def _judge_options(facts: IndexFacts) -> Iterator[Finding]:
    if (problem := problem_of(facts.options)) is not None:
        yield found("unsafe-collection", collection=facts.collection, problem=problem)
    if (rule := refusing_rule(facts.options)) is not None:
        level = str(facts.options.get("validationLevel") or "strict")
        yield found("validator", collection=facts.collection, level=level, rule=one_line(rule, LONGEST_RULE))


def _judge_surplus(index: Surplus) -> Finding:
    if index.expires_after is not None:
        return found("expiring-index", index=index.name, seconds=index.expires_after)
    return found("unique-index" if index.is_unique else "surplus-index", index=index.name)
