"""Every metric that is exposed: name, type, labels and meaning. docs/how-to/monitor-with-prometheus.md lists them.

Each metric has the label `collection` first: the database and the collection, as in "shop.monque_jobs".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric

PREFIX: Final = "trio_monque_"
BY_NAME: Final = ("name",)

BUCKETS: Final = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
"""Upper bounds of every histogram in seconds: jobs take from milliseconds to hours."""


@dataclass(frozen=True)
class Family:
    """A metric, and what it counts.

    Attributes:
        kind: Its type in Prometheus.
        stem: Its name without the prefix, and without the ending that its type adds.
        meaning: The help text.
        labels: Its labels beside `collection`.
    """

    kind: Literal["gauge", "counter", "histogram", "info"]
    stem: str
    meaning: str
    labels: Sequence[str] = ()

    @property
    def name(self) -> str:
        """The name as queries spell it. The series of a histogram add `_bucket`, `_sum` and `_count`."""
        return f"{PREFIX}{self.stem}{ {'counter': '_total', 'info': '_info'}.get(self.kind, '') }"

    @property
    def unit(self) -> str:
        """The unit of its values: "seconds", or "1" for a number of what the name says."""
        return "seconds" if self.stem.endswith("_seconds") else "1"

    def empty(self) -> Metric:
        """Return the metric without samples."""
        name, labels = f"{PREFIX}{self.stem}", ("collection", *self.labels)
        unit = "seconds" if self.unit == "seconds" else ""
        match self.kind:
            case "gauge":
                return GaugeMetricFamily(name, self.meaning, labels=labels, unit=unit)
            case "counter":
                return CounterMetricFamily(name, self.meaning, labels=labels)
            case "histogram":
                return HistogramMetricFamily(name, self.meaning, labels=labels, unit=unit)
            case "info":
                return InfoMetricFamily(name, self.meaning, labels=labels)


# --- Of the collection: the same in every process ---

JOBS: Final = Family(
    "gauge",
    "jobs",
    "Jobs in the collection. Of each name, it counts up to 100,000 pending, 10,000 failed, 1,000 other ended ones.",
    ("name", "status"),
)
OLDEST_DUE: Final = Family(
    "gauge",
    "oldest_due_age_seconds",
    "How long the oldest due job has waited for its start; 0 if none is due.",
    BY_NAME,
)
STUCK: Final = Family(
    "gauge",
    "stuck_jobs",
    "Processing jobs without a heartbeat for three of their intervals: their holders are dead, frozen or cut off.",
    BY_NAME,
)
SNAPSHOT_AGE: Final = Family(
    "gauge",
    "collection_age_seconds",
    "How old the numbers of the collection are: they stay the same while the database does not answer. +Inf before the "
    "first answer.",
)
SNAPSHOT_FAILURES: Final = Family(
    "counter", "collection_failures", "Attempts to read the numbers of the collection that have failed."
)

# --- Of one scheduler, or of claims on a collection ---

INSTANCE: Final = Family(
    "info",
    "instance",
    "1 for each instance in this process: its id, its host, the version of trio_monque, and its kind (scheduler or "
    "claims).",
    ("id", "host", "version", "kind"),
)
HEALTHY: Final = Family("gauge", "healthy", "1 while the instance works, 0 while it does not: see its health().")
DRAINING: Final = Family("gauge", "draining", "1 while the instance shuts down and claims nothing more.")
HELD: Final = Family("gauge", "held_claims", "Claims that this instance holds and renews.")
UNSETTLED: Final = Family("gauge", "unsettled_runs", "Runs that have ended and whose ends are not written yet.")
FREE_SLOTS: Final = Family("gauge", "free_slots", "How many more runs could start now.")
CLAIMED: Final = Family("counter", "claims", "Claimed jobs or documents.")
LOST_TO_OTHERS: Final = Family(
    "counter",
    "claim_candidates_lost",
    "Due jobs or documents that this instance had found and did not get: mostly others claimed them first.",
)
BATCH_SIZE: Final = Family(
    "histogram",
    "batch_size",
    "Jobs or documents in one command. The operation is claim, settlement, renewal or rescue.",
    ("operation",),
)
RESCUED: Final = Family("counter", "rescues", "Claims of dead instances that this instance took away.")
RENEWED: Final = Family("counter", "renewals", "Renewed claims; each one counts at every heartbeat.")
RENEWAL_FAILURES: Final = Family(
    "counter", "renewal_failures", "Attempts to renew claims that the database did not answer or refused."
)
CLAIMS_LOST: Final = Family(
    "counter", "claims_lost", "Claims that were not renewed in time, or that others took. Their runs were cancelled."
)
LOOP_LAG: Final = Family(
    "gauge",
    "event_loop_lag_seconds",
    "How long an event loop took to answer: that of the instance, or in a program on asyncio that of the application.",
    ("of",),
)
LOOP_BLOCKED: Final = Family(
    "counter", "event_loop_blocked", "How many times something blocked an event loop for longer than a second."
)
INTERNAL_LAG: Final = Family(
    "gauge", "loop_lag_seconds", "How late a loop of the instance is, such as the claimer or the heartbeat.", ("loop",)
)
BROKEN: Final = Family("gauge", "broken_documents", "Documents that this instance has met and cannot run.")

# --- Of one scheduler ---

RUNNING: Final = Family("gauge", "running_jobs", "Runs whose handlers have not ended, and that have a slot.", BY_NAME)
PARKED: Final = Family(
    "gauge", "parked_runs", "Runs that wait for the children of their job nurseries, and have no slot."
)
OVERDUE_THREADS: Final = Family(
    "gauge", "overdue_threads", "Plain handlers that go on after their run was cancelled, and hold their slots."
)
RUNS: Final = Family(
    "counter",
    "runs",
    "Ended runs. The verdict is completed, retried (failed, and pending again), failed (no attempts are left), "
    "discarded, snoozed, released or cancelled.",
    ("name", "verdict"),
)
START_LAG: Final = Family(
    "histogram", "job_start_lag_seconds", "From the moment at which a job was due to its claim for a run.", BY_NAME
)
WAIT: Final = Family(
    "histogram",
    "job_wait_seconds",
    "From the enqueuing of a one-off job to its first claim, with the delay that its caller asked for.",
    BY_NAME,
)
RUN_TIME: Final = Family("histogram", "job_run_seconds", "How long runs took that have completed or failed.", BY_NAME)

# --- Of claims on a collection ---

WAITING: Final = Family("gauge", "waiting_claims", "Claimed documents that no task works on yet.")
WORKING: Final = Family("gauge", "running_claims", "Claimed documents that a task works on.")
DOCUMENTS: Final = Family(
    "counter", "documents", "Ended claims on documents. The verdict is finished, failed or released.", ("verdict",)
)
DEAD_LETTERS: Final = Family("counter", "dead_letters", "Documents that became dead letters: no attempts are left.")

OF_COLLECTION: Final = (JOBS, OLDEST_DUE, STUCK, SNAPSHOT_AGE, SNAPSHOT_FAILURES)
OF_INSTANCE: Final = (
    *(INSTANCE, HEALTHY, DRAINING, HELD, UNSETTLED, FREE_SLOTS, CLAIMED, LOST_TO_OTHERS, BATCH_SIZE),
    *(RESCUED, RENEWED, RENEWAL_FAILURES, CLAIMS_LOST, LOOP_LAG, LOOP_BLOCKED, INTERNAL_LAG, BROKEN),
)
OF_SCHEDULER: Final = (RUNNING, PARKED, OVERDUE_THREADS, RUNS, START_LAG, WAIT, RUN_TIME)
OF_CLAIMS: Final = (WAITING, WORKING, DOCUMENTS, DEAD_LETTERS)
FAMILIES: Final = (*OF_COLLECTION, *OF_INSTANCE, *OF_SCHEDULER, *OF_CLAIMS)
