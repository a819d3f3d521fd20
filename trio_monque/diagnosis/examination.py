"""Asks the database all questions of the doctor, one after the other, and keeps the answers as facts.

A question that the database does not answer is left out, and named. One that needs a missing index is not asked: it
would read the whole collection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic, sleep
from typing import Final, TypeVar

from ..error_types import MonqueConnectionError
from ..jobs.instance import Instance, is_alive
from ..jobs.minutes import Figures, LastHour, minute_of
from ..jobs.views import BrokenDocument
from ..store.broken import broken_documents
from ..store.driver.types import IndexModel
from ..store.fields import FIELD
from ..store.job_collection import JobCollection
from ..store.jobs import indexes
from ..store.jobs import instances as stored
from ..store.jobs.collection_options import look_at_options
from ..store.jobs.minutes_written import read_minutes
from ..store.reads.diagnosis import (
    backlog,
    cancelled_jobs,
    changed_schedules,
    documents,
    held_jobs,
    other_databases,
    owed_follow_ups,
    put_off_jobs,
    server,
    streams,
)
from ..store.reads.diagnosis import index_health as diagnosis
from ..store.reads.diagnosis import jobs as of_jobs
from ..store.reads.diagnosis.caps import MOST_SECONDS, taking_up_to
from .facts import Facts, IndexFacts, JobFacts, ServerFacts
from .failing_names import RECENT

T = TypeVar("T")

MOST_EXPLAINED: Final = 5
"""Names whose look for due jobs is explained: those with the most due jobs."""

MOST_SECONDS_TO_ANSWER: Final = 5.0
"""Seconds that a question may take, with the search for a server."""

MOST_SECONDS_A_BATCH: Final = 30.0
"""Seconds that the server may take to read a batch of all documents."""

OWED_FOR: Final = timedelta(minutes=2)
"""How long a job may owe its follow-up. Schedulers look for such jobs every half a minute."""

MOST_SECONDS_IN_ALL: Final = 30.0
"""Seconds after which no further question is asked: the server may be gone."""

FEWEST_STREAMS: Final = 10
"""Change streams from which on the doctor asks how much the server writes."""

SECONDS_OF_WRITES: Final = 1.0
"""Seconds in which the writes are counted at least."""

_TIME_IS_UP: Final = f"the remaining queries were skipped, because {MOST_SECONDS_IN_ALL:g} s had passed"
_DATA_BEARING: Final = ("PRIMARY", "SECONDARY")


class Examination:
    """One examination of a collection of jobs.

    Args:
        jobs: The jobs collection.
        now: Returns the server's time.
        name: Look at the jobs of this name only; None for all names.
        uri: The connection string, to reach single members; None to leave out what each of them is asked, and what
            other databases have.
        clock: Returns seconds, for the time that the examination may take.
        pause: Lets the server go on for some seconds.
    """

    def __init__(
        self,
        jobs: JobCollection,
        now: Callable[[], datetime],
        name: str | None = None,
        *,
        uri: str | None = None,
        clock: Callable[[], float] = monotonic,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        self._uri = uri
        self._jobs = replace(jobs, operation_timeout=MOST_SECONDS_TO_ANSWER)
        self._now = now
        self._present: frozenset[str] = frozenset()
        self._unanswered: list[str] = []
        self._name = name
        self._clock = clock
        self._pause = pause
        self._end = clock() + MOST_SECONDS_IN_ALL

    def facts(self, *, all_documents: bool = False) -> Facts:
        """Ask all questions.

        Args:
            all_documents: Read every document to find broken ones.

        Raises:
            MonqueConnectionError: The database cannot be reached.
        """
        found = Facts(server=ServerFacts(server=server.look_at_server(self._jobs)))
        if not found.server.server.has_primary:
            return found
        found = replace(found, server=self._server(found.server))
        written = self._written(found.server)
        there = self._ask(partial(diagnosis.look_at_indexes, self._jobs))
        if there is not None:
            self._present = there.present
            jobs = self._of_jobs(all_documents=all_documents) if there.has_collection else None
            plans = [] if jobs is None else self._plans(jobs)
            of_indexes = IndexFacts(
                database=self._jobs.collection.database.name,
                collection=self._jobs.collection.name,
                indexes=there,
                options=self._ask(partial(look_at_options, self._jobs)) or {},
                plans=plans,
            )
            found = replace(found, indexes=of_indexes, jobs=jobs)
        if written is not None:
            found = replace(found, server=replace(found.server, writes=self._writes_since(written)))
        if self._unanswered:
            # The primary may have been lost meanwhile. Then that explains the rest.
            found = replace(found, server=replace(found.server, server=server.look_at_server(self._jobs)))
        return replace(found, unanswered=tuple(self._unanswered))

    def _server(self, found: ServerFacts) -> ServerFacts:
        # Ask the primary first: the others are compared with it.
        members = sorted(found.server.members, key=lambda one: one.state)
        addresses = [_split(one.address) for one in members if one.is_up and one.state in _DATA_BEARING]
        is_replica_set = found.server.topology is server.Topology.REPLICA_SET
        ahead: Mapping[str, float] | None = None
        if self._uri is not None and len(addresses) > 1 and not found.server.is_direct:
            ahead = self._ask(partial(server.members_ahead, self._uri, addresses))
        return replace(
            found,
            ahead=self._ask(partial(server.seconds_ahead, self._jobs)),
            members_ahead=ahead or {},
            connections=self._ask(partial(server.look_at_connections, self._jobs)),
            stream_problem=self._ask(partial(server.problem_of_change_stream, self._jobs)),
            # On a sharded cluster, each shard would have its own part of a stream.
            streams=self._ask(partial(streams.open_streams, self._jobs)) if is_replica_set else None,
            jobs_elsewhere=self._elsewhere(),
        )

    def _elsewhere(self) -> Sequence[other_databases.WaitingElsewhere]:
        # The names of other databases are for those who have the connection string.
        if self._name or self._uri is None:
            return []
        # The server's time is asked for, too.
        return self._ask(lambda: other_databases.jobs_elsewhere(self._jobs, self._now())) or []

    def _written(self, found: ServerFacts) -> streams.WriteTotals | None:
        is_asked = found.streams is not None and found.streams >= FEWEST_STREAMS
        return self._ask(partial(streams.look_at_writes, self._jobs)) if is_asked else None

    def _writes_since(self, earlier: streams.WriteTotals) -> float | None:
        def ask() -> streams.WriteTotals | None:
            return self._ask(partial(streams.look_at_writes, self._jobs))

        now = ask()
        if now is not None and (missing := earlier.seconds + SECONDS_OF_WRITES - now.seconds) > 0:
            self._pause(missing)  # The other questions took less time.
            now = ask()
        return None if now is None else now.a_second_since(earlier)

    def _of_jobs(self, *, all_documents: bool) -> JobFacts:
        jobs, now = self._jobs, self._now()
        name = self._name
        names = [name] if name else self._list(partial(backlog.pending_names, jobs), indexes.CLAIM)
        latest = indexes.UPDATED if name is None else indexes.CLAIM
        broken = self._all_broken() if all_documents else self._broken(names)
        not_jobs = [one.document_id for one in broken]
        return JobFacts(
            now=now,
            name=name,
            instances=self._list(self._instances),
            paused={one.name: one for one in self._ask(partial(stored.pauses, jobs)) or ()},
            holders=self._list(partial(held_jobs.look_at_claims, jobs, now, name), indexes.HELD),
            backlogs=self._list(partial(backlog.backlogs, jobs, names, now, not_jobs), indexes.CLAIM),
            unused=name if name and self._ask(partial(of_jobs.has_jobs, jobs, name)) is False else None,
            troubled=self._one(partial(of_jobs.troubled_jobs, jobs, now, name), latest, indexes.HELD)
            or of_jobs.Troubled(),
            recent=self._recent(now),
            bad_schedules=self._list(partial(of_jobs.bad_schedules, jobs, name), latest, indexes.UNIQUE_KEY),
            schedules=self._one(partial(changed_schedules.look_at_schedules, jobs, now, name), indexes.SCHEDULES)
            or changed_schedules.Schedules(),
            put_off=self._list(partial(put_off_jobs.put_off_jobs, jobs, now, name), indexes.UNIQUE_KEY),
            unstarted=self._list(partial(cancelled_jobs.unstarted_jobs, jobs, now, name), latest, indexes.START_BY),
            owed=self._list(partial(owed_follow_ups.owed, jobs, now - OWED_FOR, name), indexes.FOLLOW_UPS),
            full=self._list(partial(documents.full_documents, jobs, names), indexes.CLAIM),
            broken=broken,
        )

    def _instances(self) -> Sequence[Instance]:
        now = self._now()
        return [
            replace(one, is_live=is_alive(one.last_heartbeat, one.heartbeat_interval, now))
            for one in stored.read_all(self._jobs)
        ]

    def _recent(self, now: datetime) -> Mapping[str, Figures]:
        minutes = self._ask(partial(read_minutes, self._jobs, minute_of(now - RECENT), now)) or ()
        recent = LastHour(minutes).since(now - RECENT)
        return {name: figures for name, figures in recent.items() if self._name in (None, name)}

    def _broken(self, names: Sequence[str]) -> Sequence[BrokenDocument]:
        found = [*self._list(partial(documents.broken_at_the_heads, self._jobs, names), indexes.CLAIM)]
        for index in () if self._name else (indexes.CLAIM, indexes.LISTING, indexes.CREATED):
            found += self._list(partial(documents.wrong_by_index, self._jobs, index), index)
        # One document may be wrong in several ways. The id of such a document may be unhashable.
        return list({repr(one.document_id): one for one in found}.values())

    def _all_broken(self) -> Sequence[BrokenDocument]:
        found = self._list(self._first_broken)
        field = FIELD["name"]
        return [one for one in found if self._name is None or one.document.get(field) == self._name]

    def _first_broken(self) -> Sequence[BrokenDocument]:
        jobs = replace(self._jobs, operation_timeout=MOST_SECONDS_A_BATCH)
        look = broken_documents.BrokenLook()
        found: list[BrokenDocument] = []
        while not look.is_over:
            found += broken_documents.sift(jobs, look, documents.MOST_FOUND - len(found))
        return found

    def _plans(self, jobs: JobFacts) -> Sequence[diagnosis.Plan]:
        most = sorted(jobs.backlogs, key=lambda one: -one.due.number)[:MOST_EXPLAINED]
        queries = diagnosis.explained_queries([one.name for one in most], jobs.now)
        plans = (
            self._ask(partial(diagnosis.explain, self._jobs, query, index, search))
            for query, (index, search) in queries.items()
        )
        return [plan for plan in plans if plan is not None]

    def _list(self, question: Callable[[], Sequence[T]], *needed: IndexModel) -> Sequence[T]:
        """Return the answer; nothing if the database did not give one, or if an index that it needs is missing."""
        return self._one(question, *needed) or []

    def _one(self, question: Callable[[], T], *needed: IndexModel) -> T | None:
        """Return the answer; None if the database did not give one, or if an index that it needs is missing."""
        return self._ask(question) if self._present.issuperset(map(indexes.name_of, needed)) else None

    def _ask(self, question: Callable[[], T]) -> T | None:
        """Return the answer, or None, and remember the error. A question that fails is asked again, with more time."""
        problem = ""
        for seconds in (MOST_SECONDS, MOST_SECONDS_TO_ANSWER):
            if self._clock() >= self._end:
                if _TIME_IS_UP not in self._unanswered:
                    self._unanswered.append(_TIME_IS_UP)
                return None
            try:
                with taking_up_to(seconds):
                    return question()
            except MonqueConnectionError as error:
                problem = str(error)
                if not error.transient:
                    break
        self._unanswered.append(problem)
        return None


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
