"""Reporter: the log lines that are the same for every kind of work: start, drain, outages, lost claims, and the end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from logging import Logger
from typing import Final, Generic, TypeVar

from ..client.event_delivery import EventDelivery
from ..engine.observer import RunsLeft

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
RescuedT = TypeVar("RescuedT")
ReportT = TypeVar("ReportT")

MOST_NAMED: Final = 10
"""How many items one log record names; events and reports have all of them."""


@dataclass(frozen=True, kw_only=True)
class HostEnd(Generic[ClaimT]):
    """How a host ended.

    Attributes:
        cause: The reason, in words.
        unfinished: Claims that were neither settled nor released. Other instances take them when their leases expire.
        crashed: The errors that ended the host.
        loop_blocked: How many times something blocked the event loop for longer than a second.
    """

    cause: str
    unfinished: tuple[ClaimT, ...] = ()
    crashed: tuple[BaseException, ...] = ()
    loop_blocked: int = 0


class Reporter(ABC, Generic[ClaimT, SettlementT, RescuedT, ReportT]):
    """The engine's observer: makes events, log records and counts. Each kind of work has a subclass.

    Args:
        event_delivery: Delivers the events.
        logger: The logger of this kind of work.
        kind: The first word of the lines about the whole host: "scheduler", "claims".
        item: What log lines call one item: "job", "document".
        instance: The id of this instance.
    """

    def __init__(self, event_delivery: EventDelivery, logger: Logger, kind: str, item: str, instance: str) -> None:
        self.event_delivery = event_delivery
        self._logger = logger
        self._kind = kind
        self._item = item
        self._instance = instance

    @abstractmethod
    def report(self, end: HostEnd[ClaimT]) -> ReportT:
        """Return the report of this kind of work."""

    @abstractmethod
    def counts(self, report: ReportT) -> Mapping[str, int]:
        """Return the numbers of the last log line, by their names, in order."""

    def extra_of(self, claim: ClaimT) -> Mapping[str, object]:
        """Return the `extra` fields of a log record about this claim."""
        return {}

    def log_started(self, where: str, work: str) -> None:
        """Log that the host is ready.

        Args:
            where: The collection, with its database.
            work: What the host runs, and how much at a time.
        """
        logger = self._logger
        logger.info(
            "%s %s started on %s: %s", self._kind, self._instance, where, work, extra={"instance": self._instance}
        )

    def complaints(self, now: float) -> Sequence[str]:
        """Return why the host is unhealthy at `now` (trio's clock), beside its loops. May be called from any thread."""
        return ()

    # --- The observer of the engine: what every kind reports alike. See `engine.observer` ---

    def run_started(self, claim: ClaimT) -> None:
        pass

    def draining(self, cause: str, left: RunsLeft) -> None:
        logger = self._logger
        extra = {"instance": self._instance, "cause": cause}
        if not left.running:
            logger.info("%s %s stopped claiming and is draining: %s", self._kind, self._instance, cause, extra=extra)
            return
        # What an operator waits for in silence until then.
        logger.info(
            "%s %s stopped claiming and is draining: %s (runs left, for %g s at most: %d; waiting for jobs: %d)",
            self._kind,
            self._instance,
            cause,
            left.seconds,
            left.running,
            left.waiting,
            extra=extra,
        )

    @abstractmethod
    def run_settled(self, settlement: SettlementT) -> None:
        """Count the end of a run, which is written, and emit its events."""

    def claims_rescued(self, rescued: Sequence[RescuedT]) -> None:
        pass

    def claim_lost(self, claim: ClaimT) -> None:
        logger = self._logger
        logger.warning(
            "lost the claim on %s %s (not renewed in time, or taken by another instance); run cancelled",
            self._item,
            claim,
            extra=self.extra_of(claim),
        )

    def failed_after_settlement(self, claim: ClaimT, error: Exception) -> None:
        pass

    def runs_cut_short(self, claims: Sequence[ClaimT]) -> None:
        logger = self._logger
        logger.warning("cancelled runs to shut down (%ss: %d): %s", self._item, len(claims), named(claims))

    def renewal_failed(self, error: Exception) -> None:
        logger = self._logger
        logger.warning("could not renew claims: %s; retrying until their leases expire", error)

    def outage(self, error: Exception) -> None:
        """Log an outage: a claim, a settlement or a rescue failed, and the engine retries."""
        logger = self._logger
        logger.warning("%s; retrying", error)

    def claiming_failed(self, error: Exception) -> None:
        self.outage(error)

    def settlement_delayed(self, error: Exception) -> None:
        self.outage(error)

    def rescue_delayed(self, error: Exception) -> None:
        self.outage(error)

    # Only a kind of work with a change stream overrides these.

    def stream_connected(self) -> None:
        pass

    def stream_failed(self, error: Exception) -> None:
        pass

    def stream_closed(self) -> None:
        pass

    def stream_fallback(self, error: Exception) -> None:
        pass

    def log_ended(self, report: ReportT, cause: str) -> None:
        """Log the end of the host, also after a crash."""
        logger, counts = self._logger, self.counts(report)
        logger.info(
            "%s %s ended (%s): %s",
            self._kind,
            self._instance,
            cause,
            ", ".join(f"{number} {name}" for name, number in counts.items()),
            extra={"instance": self._instance, "cause": cause, **counts},
        )


def named(items: Sequence[object]) -> str:
    """Return the first ten items in words, and the number of the others."""
    first = ", ".join(str(one) for one in items[:MOST_NAMED])
    return first if len(items) <= MOST_NAMED else f"{first} and {len(items) - MOST_NAMED} more"
