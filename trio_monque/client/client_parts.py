"""ClientParts: what a client is made of. Nothing runs yet, and nothing is sent."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Self

from ..store.driver.database_threads import DatabaseThreads
from .client_context import ClientContext
from .enqueue import insert_group
from .event_delivery import EventDelivery
from .group_enqueue import GroupEnqueue
from .job_wait_polling import EndWatcher
from .local_wakeups import Announcer
from .subscription import CallListener
from .sync_monque import SyncMonque


@dataclass(frozen=True)
class ClientParts:
    """The parts of one client.

    Attributes:
        context: What its operations share.
        event_delivery: Its listeners.
        end_watcher: Watches for the ends of the jobs that it waits for.
        sync: The same client for blocking calls.
        db_threads: Where the steps of its operations run.
        group: Sends the jobs of concurrent callers together.
        announcer: Wakes schedulers of the same trio run.
    """

    context: ClientContext
    event_delivery: EventDelivery
    end_watcher: EndWatcher
    sync: SyncMonque
    db_threads: DatabaseThreads
    group: GroupEnqueue
    announcer: Announcer

    @classmethod
    def of(cls, context: ClientContext, call_listener: CallListener | None = None) -> Self:
        """Make the parts; `call_listener` calls async listeners, if they are on another loop than the client."""
        event_delivery = EventDelivery(call_listener)
        end_watcher = EndWatcher(context.jobs)
        db_threads = DatabaseThreads()
        return cls(
            context,
            event_delivery,
            end_watcher,
            SyncMonque(context, event_delivery, end_watcher),
            db_threads,
            GroupEnqueue(db_threads, partial(insert_group, context)),
            Announcer(context.jobs.collection.full_name),
        )
