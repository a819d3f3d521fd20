"""The samples that a scheduler and claims on a collection have alike."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from importlib import metadata

from ..claims.statistics import ClaimsStatistics
from ..host.engine_numbers import Batches
from ..host.health import Health
from ..scheduler.statistics import Statistics
from . import metric_names_and_buckets as of
from .exposition import Distribution, Sample


def info(instance_id: str, kind: str) -> Sample:
    """Return the sample that names an instance."""
    return Sample(of.INSTANCE, 1, (instance_id, socket.gethostname(), _version(), kind))


def instance_samples(numbers: Statistics | ClaimsStatistics, health: Health, claims_lost: int) -> Iterator[Sample]:
    """Return what both kinds of work have, from what they counted and from their health."""
    yield Sample(of.HEALTHY, health.healthy)
    yield Sample(of.DRAINING, health.draining)
    yield Sample(of.HELD, numbers.held)
    yield Sample(of.UNSETTLED, numbers.unsettled)
    yield Sample(of.FREE_SLOTS, numbers.free_slots)
    yield Sample(of.CLAIMED, numbers.claimed)
    yield Sample(of.LOST_TO_OTHERS, numbers.candidates_lost)
    for operation, batches in numbers.batches.items():
        yield Sample(of.BATCH_SIZE, _distribution(batches), (operation,))
    yield Sample(of.RESCUED, numbers.rescued)
    yield Sample(of.RENEWED, numbers.renewals)
    yield Sample(of.RENEWAL_FAILURES, numbers.renewal_failures)
    yield Sample(of.CLAIMS_LOST, claims_lost)
    for loop_of, lag in (("instance", health.event_loop_lag), ("application", health.application_loop_lag)):
        if lag is not None:
            yield Sample(of.LOOP_LAG, lag, (loop_of,))
    yield Sample(of.LOOP_BLOCKED, numbers.loop_blocked)
    for loop in health.loops:
        yield Sample(of.INTERNAL_LAG, loop.lag, (loop.name,))
    yield Sample(of.BROKEN, health.broken)


def _distribution(batches: Batches) -> Distribution:
    return Distribution(tuple(batches.by_size.items()), batches.items)


def _version() -> str:
    try:
        return metadata.version("trio-monque")
    except metadata.PackageNotFoundError:
        return "unknown"
