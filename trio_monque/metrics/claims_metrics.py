"""ClaimsMetrics: the numbers of claims on a collection."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry

from ..claims.claims import RunningClaims
from .exposition import DEFAULT_REGISTRY, Metrics, Sample
from .metric_names_and_buckets import DEAD_LETTERS, DOCUMENTS, WAITING, WORKING
from .samples_of_schedulers_and_claims import info, instance_samples


class ClaimsMetrics(Metrics):
    """The numbers of claims on a registry of prometheus_client, while a `with` or `async with` block runs.

        async with open_claims(db.orders, {"status": "new"}) as claims:
            with ClaimsMetrics(claims):
                ...

    A scrape reads memory only: it sends nothing to the database, and does not wait.

    Args:
        claims: The running claims: the object of `open_claims`, or that of `nursery.start(run_claims, ...)`.
        registry: On which the metrics appear; by default the one that prometheus_client serves.

    Raises:
        InvalidOptionError: From `with`: the registry has metrics of this collection already.
    """

    def __init__(self, claims: RunningClaims, *, registry: CollectorRegistry = DEFAULT_REGISTRY) -> None:
        super().__init__(claims.namespace, registry)
        self._claims = claims
        self._info = info(claims.id, "claims")

    def samples(self) -> Iterator[Sample]:
        numbers = self._claims.statistics()
        yield self._info
        yield from instance_samples(numbers, self._claims.health(), numbers.lost)
        yield Sample(WAITING, numbers.waiting)
        yield Sample(WORKING, numbers.running)
        for verdict in ("finished", "failed", "released"):
            yield Sample(DOCUMENTS, getattr(numbers, verdict), (verdict,))
        yield Sample(DEAD_LETTERS, numbers.dead_lettered)
