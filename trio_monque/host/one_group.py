"""What is the same for every kind of work whose items have no names: all of them share one concurrency limit.

Jobs have names, so their source answers each of these questions by itself. Documents, and the outbox in `tests/host`,
inherit the answers, and override those that differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Any, Final, Generic, TypeVar

from ..engine.demand import Demand, Due, Granted, KnownItem
from ..engine.handler_tasks import TRIO_TASKS, HandlerTasks
from ..engine.nursery import Engine
from ..engine.source import Control, Source
from ..error_types import ClientClosedError, MonqueConnectionError, is_shortage
from ..options_and_defaults import HostOptions
from .claiming import Taking
from .host import Host, Life
from .limits import engine_limits
from .log_lines import Reporter

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
BatchT = TypeVar("BatchT")
SeenT = TypeVar("SeenT")
RescuedT = TypeVar("RescuedT")
ReportT = TypeVar("ReportT")

GROUP: Final = "all"
"""The only group."""


class OneGroupSource(Generic[ClaimT, SettlementT]):
    """The part of `Source` that needs no knowledge of the items.

    Attributes:
        taking: Releases orphaned claims. A subclass sets it before the engine runs.
    """

    taking: Taking[Any, Any]
    _control: Control[ClaimT, SettlementT]

    def attach(self, control: Control[ClaimT, SettlementT]) -> None:
        self._control = control

    def group_of(self, _claim: ClaimT) -> str:
        return GROUP

    def is_suspect(self, _claim: ClaimT) -> bool:
        return False

    def time_limit(self, _claim: ClaimT) -> float:
        return math.inf

    def renewal_limit(self, _claim: ClaimT) -> float:
        return math.inf

    def start_limit(self, _claim: ClaimT) -> float:
        return math.inf

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[ClaimT]:
        raise AssertionError("this source never names a single item")

    async def next_due(self, groups: Set[str]) -> Due | None:
        """Return None: no item has a date from which it is due. The engine polls."""
        return None

    async def prepare(self, settlements: Sequence[SettlementT]) -> Sequence[SettlementT]:
        """Return the settlements: each is written by itself, and nothing is decided for all of them."""
        return settlements

    def released(self) -> None:
        """In a thread, after orphaned claims were released: the engine looks at once, as it may claim these items."""
        self._control.post(self._control.look)

    def rescue_abandoned(self) -> None:
        """Do nothing: the next look of any instance finds what is free."""

    def has_orphaned_claims(self) -> bool:
        return self.taking.has_orphaned()

    async def release_orphaned_claims(self) -> None:
        await self.taking.release_orphaned()

    def is_transient(self, error: Exception) -> bool:
        # Also an error that the server calls permanent. The start has shown that commands on these items succeed, so a
        # later refusal is due to a single item (for documents, a division in `$expr` of the filter, for example).
        # Claims go on when that item is repaired.
        if isinstance(error, ClientClosedError):
            return False  # The program has closed the client, for every item.
        return isinstance(error, MonqueConnectionError) or is_shortage(error)


def one_group_host(
    source: Source[ClaimT, SettlementT, BatchT, SeenT, RescuedT],
    reporter: Reporter[ClaimT, SettlementT, RescuedT, ReportT],
    options: HostOptions,
    life: Life,
    *,
    concurrency: int,
    handlers: HandlerTasks = TRIO_TASKS,
) -> Host[ClaimT, ReportT]:
    """Return the host of such a source.

    The engine polls, also in virtual time, because no client and no other instance announces items to it.
    """
    limits = engine_limits(options, concurrency=concurrency, has_local_wakeups=False)
    engine = Engine(source, reporter, limits, handlers=handlers)
    engine.slots.set_limit(GROUP, concurrency)
    return Host(engine, reporter, life, start_timeout=options.start_timeout)
