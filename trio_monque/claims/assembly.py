"""Constructs the parts of claims on a collection and connects them. Nothing runs yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..bridge.handler_loop import HandlerLoop
from ..client.event_delivery import EventDelivery
from ..client.server_time import ServerTime
from ..engine.nursery import Engine
from ..error_types import MissingIndexError
from ..events import Event
from ..exponential_backoff import Backoff, asked_backoff
from ..host.host import Host, Life
from ..host.one_group import one_group_host
from ..jobs.error_history import ErrorText
from ..jobs.retries_and_next_occurrences import RetryPolicy
from ..safe_text import shown
from ..store import documents
from ..store.documents.locked_collection import LockedCollection
from ..store.driver.connection import check_collection, check_pool
from ..store.driver.database_threads import CONNECTIONS_NEEDED, DatabaseThreads
from .claim_options import ClaimConfig, check_filter, checked_sort
from .context import ClaimsContext
from .events_and_report import ClaimsReport, ClaimsReporter
from .finisher import Finisher
from .locked_document import HeldDocument
from .runs import Work
from .sources import DocumentSources, document_sources

Listeners = Mapping[type[Event], Any]


@dataclass(frozen=True)
class ClaimsParts:
    """The parts that the public classes use. These hold the other parts."""

    host: Host[HeldDocument, ClaimsReport]
    sources: DocumentSources
    locked: LockedCollection
    reporter: ClaimsReporter
    time: ServerTime
    event_delivery: EventDelivery

    @property
    def engine(self) -> Engine[HeldDocument, Any, Any, Any, Any]:
        return self.host.engine


def assembled(
    collection: object,
    wanted: object,
    config: ClaimConfig,
    listeners: Listeners | None,
    work: Work,
    loop: HandlerLoop,
) -> ClaimsParts:
    """Check the arguments and construct the parts, in the trio run in which they work.

    Args:
        collection: The collection.
        wanted: The filter.
        config: The options.
        listeners: Functions by event class.
        work: Awaited for each claim.
        loop: Where the program works on claims.

    Raises:
        InvalidDatabaseError, InvalidOptionError: The message names what is wrong.
    """
    handle = check_collection(collection)
    check_pool(handle.database, CONNECTIONS_NEEDED)
    locked = LockedCollection.of(
        handle,
        check_filter(wanted, config.lock_field),
        lock_field=config.lock_field,
        sort=checked_sort(config.sort),
        operation_timeout=config.operation_timeout,
    )
    db_threads, time = DatabaseThreads(), ServerTime(locked)
    event_delivery = EventDelivery(loop.call_listener)
    event_delivery.add_all({} if listeners is None else listeners)
    policy = _policy_of(config)
    reporter = ClaimsReporter(event_delivery, config.instance_id, policy.error_text)
    shared = ClaimsContext(locked, db_threads, time, config, policy, loop)
    life = Life(
        name="the claims instance",
        get_ready=lambda: db_threads.call(partial(_get_ready, locked, time, config), abandon_on_cancel=True),
        described=lambda: (
            locked.collection.full_name,
            f"documents that match {shown(locked.shown_filter)} ({config.concurrency} at a time)",
        ),
    )
    connect = partial(document_sources, shared, work)
    host = one_group_host(connect, reporter, config, life, concurrency=config.concurrency, handlers=loop)
    sources = host.engine.sources
    assert isinstance(sources, DocumentSources), "`document_sources` has made them"
    host.engine.add_chore(sources.reclaim_guard.run, sources.reclaim_guard.progress)
    if not config.wait:
        finisher = Finisher(host.engine, sources.claims)
        host.engine.add_chore(finisher.run, finisher.progress)
    return ClaimsParts(host, sources, locked, reporter, time, event_delivery)


def _get_ready(locked: LockedCollection, time: ServerTime, config: ClaimConfig) -> None:
    """In a thread: measure the server's time, which fails if the database cannot be used, and check for an index."""
    time.measure_clock_offset()
    # Also with allow_scan: if the filter is invalid, the server refuses this query, and the start fails. Otherwise the
    # first look would crash a loop of the engine.
    is_served = documents.indexes.is_served(locked, time.clock.now())
    if not (is_served or config.allow_scan) and documents.indexes.is_large(locked):
        raise MissingIndexError(
            f"no index of {locked.collection.full_name} serves the filter {shown(locked.shown_filter)}, and each "
            "query would read all of its documents: call create_claim_index(collection, filter) once, with the same "
            "lock_field and sort, or pass allow_scan=True"
        )


def _policy_of(config: ClaimConfig) -> RetryPolicy:
    exponential = Backoff(base=config.base_retry_interval, cap=config.max_backoff_delay, jitter=config.retry_jitter)
    own = config.backoff
    return RetryPolicy(
        max_attempts=config.max_attempts,
        backoff=exponential,
        own_backoff=partial(asked_backoff, own, exponential) if callable(own) else own,
        error_text=ErrorText(redact=config.redact_errors, full_tracebacks=config.full_tracebacks),
    )
