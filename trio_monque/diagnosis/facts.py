"""What the doctor knows of a database, without judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ..jobs.instance import Instance
from ..jobs.minutes import Figures
from ..jobs.name_pause import NamePause
from ..jobs.views import BrokenDocument
from ..store.reads.diagnosis.backlog import Backlog
from ..store.reads.diagnosis.cancelled_jobs import Unstarted
from ..store.reads.diagnosis.changed_schedules import Schedules
from ..store.reads.diagnosis.documents import FullDocument
from ..store.reads.diagnosis.held_jobs import Holder
from ..store.reads.diagnosis.index_health import Indexes, Plan
from ..store.reads.diagnosis.jobs import BadSchedule, Troubled
from ..store.reads.diagnosis.other_databases import WaitingElsewhere
from ..store.reads.diagnosis.owed_follow_ups import Owed
from ..store.reads.diagnosis.put_off_jobs import PutOffJob
from ..store.reads.diagnosis.server import Server, ServerConnections


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """Of the server.

    Attributes:
        server: What it reports about itself.
        ahead: Seconds by which this machine's clock is ahead of the primary's; None if unknown.
        members_ahead: Seconds by which the clock of each member is ahead of the first one's.
        connections: Of the client and of the server; None if unknown.
        stream_problem: Why the change stream cannot be opened; None if it can.
        streams: How many change streams of schedulers are open; None if unknown.
        writes: The documents that the server writes a second; None if unknown, or if that was not asked.
        jobs_elsewhere: Other databases with waiting jobs in a collection of the same name, and no instance.
    """

    server: Server
    ahead: float | None = None
    members_ahead: Mapping[str, float] = field(default_factory=dict)
    connections: ServerConnections | None = None
    stream_problem: str | None = None
    streams: int | None = None
    writes: float | None = None
    jobs_elsewhere: Sequence[WaitingElsewhere] = ()


@dataclass(frozen=True, kw_only=True)
class IndexFacts:
    """Of the indexes, and of the queries that they serve.

    Attributes:
        database, collection: Where they are.
        indexes: Which there are.
        options: Of the collection; empty if it has none, or if the user may not ask for them.
        plans: How the server answers this library's queries.
    """

    database: str
    collection: str
    indexes: Indexes
    options: Mapping[str, Any] = field(default_factory=dict)
    plans: Sequence[Plan] = ()


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """Of the jobs and of the instances that run them.

    Attributes:
        now: The server's time.
        name: The name that was asked for; None for all names.
        instances: All that have an entry, dead ones too.
        paused: The pauses, by name.
        holders: Who holds running jobs.
        backlogs: Pending jobs by name.
        unused: The name that was asked for, if no job has it.
        troubled: Jobs that died, or failed again and again.
        recent: What became of the runs of each name in the last ten minutes.
        bad_schedules: Those that cannot be understood.
        schedules: Those that were cancelled, or that a declaration has changed.
        put_off: Jobs that hold a unique key until they are due, in more than a week.
        unstarted: Jobs that were cancelled because no run of them began in time.
        owed: Jobs that ended a while ago and still owe a follow-up.
        full: Jobs that are nearly as large as MongoDB allows, or more.
        broken: Documents that are not jobs.
    """

    now: datetime
    name: str | None = None
    instances: Sequence[Instance] = ()
    paused: Mapping[str, NamePause] = field(default_factory=dict)
    holders: Sequence[Holder] = ()
    backlogs: Sequence[Backlog] = ()
    unused: str | None = None
    troubled: Troubled = field(default_factory=Troubled)
    recent: Mapping[str, Figures] = field(default_factory=dict)
    bad_schedules: Sequence[BadSchedule] = ()
    schedules: Schedules = field(default_factory=Schedules)
    put_off: Sequence[PutOffJob] = ()
    unstarted: Sequence[Unstarted] = ()
    owed: Sequence[Owed] = ()
    full: Sequence[FullDocument] = ()
    broken: Sequence[BrokenDocument] = ()

    def ago(self, moment: datetime) -> float:
        """Return how many seconds ago that moment was; 0 for one to come."""
        return max((self.now - moment) / timedelta(seconds=1), 0.0)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All of them. What was not looked at, because there is no primary or no collection, is None.

    Attributes:
        unanswered: Why questions were not answered.
    """

    server: ServerFacts
    indexes: IndexFacts | None = None
    jobs: JobFacts | None = None
    unanswered: Sequence[str] = ()
