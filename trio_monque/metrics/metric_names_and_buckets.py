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
    "Jobs in the collection. Counts up to 100,000 pending, 10,000 failed and 1,000 other ended jobs of each name.",
    ("name", "status"),
)
OLDEST_DUE: Final = Family(
    "gauge",
    "oldest_due_age_seconds",
    "How long the oldest due job has been waiting to start; 0 if no job is due.",
    BY_NAME,
)
STUCK: Final = Family(
    "gauge",
    "stuck_jobs",
    "Processing jobs without a heartbeat for three heartbeat intervals: their holders are dead, frozen or cut off.",
    BY_NAME,
)
SNAPSHOT_AGE: Final = Family(
    "gauge",
    "collection_age_seconds",
    "Age of the collection metrics, which keep their values while the database does not answer. +Inf before the first "
    "answer.",
)
SNAPSHOT_FAILURES: Final = Family("counter", "collection_failures", "Failed attempts to read the collection metrics.")

# --- Of one scheduler, or of claims on a collection ---

INSTANCE: Final = Family(
    "info",
    "instance",
    "1 for each instance in this process, with its id, its host, the version of trio_monque and its kind (scheduler "
    "or claims).",
    ("id", "host", "version", "kind"),
)
HEALTHY: Final = Family("gauge", "healthy", "1 while the instance is healthy, 0 otherwise; see its health().")
DRAINING: Final = Family("gauge", "draining", "1 while the instance is shutting down and claims nothing more.")
HELD: Final = Family("gauge", "held_claims", "Claims that this instance holds and renews.")
UNSETTLED: Final = Family("gauge", "unsettled_runs", "Runs that have ended but whose outcomes are not written yet.")
FREE_SLOTS: Final = Family("gauge", "free_slots", "How many more runs could start now.")
CLAIMED: Final = Family("counter", "claims", "Claimed jobs or documents.")
LOST_TO_OTHERS: Final = Family(
    "counter",
    "claim_candidates_lost",
    "Due jobs or documents that this instance found but did not get, mostly because others claimed them first.",
)
BATCH_SIZE: Final = Family(
    "histogram",
    "batch_size",
    "Jobs or documents per command. The operation is claim, settlement, renewal or rescue.",
    ("operation",),
)
RESCUED: Final = Family("counter", "rescues", "Claims of dead instances that this instance rescued.")
RENEWED: Final = Family("counter", "renewals", "Renewed claims; each claim counts once per heartbeat.")
RENEWAL_FAILURES: Final = Family(
    "counter", "renewal_failures", "Attempts to renew claims that the database did not answer or refused."
)
CLAIMS_LOST: Final = Family(
    "counter", "claims_lost", "Claims that were not renewed in time or were taken by others. Their runs were cancelled."
)
LOOP_LAG: Final = Family(
    "gauge",
    "event_loop_lag_seconds",
    "How long an event loop took to answer: the instance's, or, in a program on asyncio, the application's.",
    ("of",),
)
LOOP_BLOCKED: Final = Family(
    "counter", "event_loop_blocked", "How many times something blocked an event loop for longer than a second."
)
INTERNAL_LAG: Final = Family(
    "gauge", "loop_lag_seconds", "How late a loop of the instance is, such as the claimer or the heartbeat.", ("loop",)
)
BROKEN: Final = Family("gauge", "broken_documents", "Documents that this instance has found and cannot run.")

# --- Of one scheduler ---

RUNNING: Final = Family("gauge", "running_jobs", "Runs that occupy a slot and whose handlers have not ended.", BY_NAME)
PARKED: Final = Family(
    "gauge", "parked_runs", "Runs that wait for the children of their job nurseries, without a slot."
)
OVERDUE_THREADS: Final = Family(
    "gauge",
    "overdue_threads",
    "Plain handlers that are still running after their run was cancelled, and occupy their slots.",
)
RUNS: Final = Family(
    "counter",
    "runs",
    "Ended runs. The verdict is completed, retried (failed, and pending again), failed (no attempts left), "
    "discarded, snoozed, released or cancelled.",
    ("name", "verdict"),
)
START_LAG: Final = Family(
    "histogram", "job_start_lag_seconds", "Time from when a job was due to its claim for a run.", BY_NAME
)
WAIT: Final = Family(
    "histogram",
    "job_wait_seconds",
    "Time from when a one-off job was enqueued to its first claim, including the delay that its caller asked for.",
    BY_NAME,
)
RUN_TIME: Final = Family("histogram", "job_run_seconds", "Duration of runs that completed or failed.", BY_NAME)

# --- Of claims on a collection ---

WAITING: Final = Family("gauge", "waiting_claims", "Claimed documents that no task is working on yet.")
WORKING: Final = Family("gauge", "running_claims", "Claimed documents that a task is working on.")
DOCUMENTS: Final = Family(
    "counter", "documents", "Ended claims on documents. The verdict is finished, failed or released.", ("verdict",)
)
DEAD_LETTERS: Final = Family(
    "counter", "dead_letters", "Documents that became dead letters because no attempts were left."
)

OF_COLLECTION: Final = (JOBS, OLDEST_DUE, STUCK, SNAPSHOT_AGE, SNAPSHOT_FAILURES)
OF_INSTANCE: Final = (
    *(INSTANCE, HEALTHY, DRAINING, HELD, UNSETTLED, FREE_SLOTS, CLAIMED, LOST_TO_OTHERS, BATCH_SIZE),
    *(RESCUED, RENEWED, RENEWAL_FAILURES, CLAIMS_LOST, LOOP_LAG, LOOP_BLOCKED, INTERNAL_LAG, BROKEN),
)
OF_SCHEDULER: Final = (RUNNING, PARKED, OVERDUE_THREADS, RUNS, START_LAG, WAIT, RUN_TIME)
OF_CLAIMS: Final = (WAITING, WORKING, DOCUMENTS, DEAD_LETTERS)
FAMILIES: Final = (*OF_COLLECTION, *OF_INSTANCE, *OF_SCHEDULER, *OF_CLAIMS)
