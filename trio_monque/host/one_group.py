"""What is the same for every kind of work whose items have no names: all of them share one concurrency limit.

Documents use it, and the outbox in `tests/host`. Jobs have names, so they answer each of these questions by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Final, TypeVar

from ..engine.demand import Demand, Due, Granted, KnownItem
from ..engine.handler_tasks import TRIO_TASKS, HandlerTasks
from ..engine.nursery import Engine
from ..engine.source import Control, Sources
from ..error_types import ClientClosedError, MonqueConnectionError, is_shortage
from ..options_and_defaults import HostOptions
from .host import Host, Life
from .limits import engine_limits
from .log_lines_of_jobs_and_documents import Reporter

ClaimT = TypeVar("ClaimT")
SettlementT = TypeVar("SettlementT")
BatchT = TypeVar("BatchT")
SeenT = TypeVar("SeenT")
RescuedT = TypeVar("RescuedT")
ReportT = TypeVar("ReportT")

GROUP: Final = "all"
"""The only group."""


class NamesNoItems:
    """The part of `ClaimSource` that is the same for items which are never announced by their keys."""

    async def claim_one(self, item: KnownItem, demand: Demand) -> Granted[Any]:
        raise AssertionError("this source never names a single item")

    async def next_due(self, groups: Set[str]) -> Due | None:
        """Return None: no item has a date from which it is due. The engine polls."""
        return None


def is_transient(error: Exception) -> bool:
    """Also for an error that the server calls permanent. See `Sources.is_transient`."""
    # The start has shown that commands on these items succeed, so a later refusal is due to a single item (for
    # documents, a division in `$expr` of the filter, for example). Claims go on when that item is repaired.
    if isinstance(error, ClientClosedError):
        return False  # The program has closed the client, for every item.
    return isinstance(error, MonqueConnectionError) or is_shortage(error)


def one_group_host(
    connect: Callable[[Control[ClaimT, SettlementT]], Sources[ClaimT, SettlementT, BatchT, SeenT, RescuedT]],
    reporter: Reporter[ClaimT, SettlementT, RescuedT, ReportT],
    options: HostOptions,
    life: Life,
    *,
    concurrency: int,
    handlers: HandlerTasks = TRIO_TASKS,
) -> Host[ClaimT, ReportT]:
    """Return the host of such sources.

    The engine polls, also in virtual time, because no client and no other instance announces items to it.
    """
    limits = engine_limits(options, concurrency=concurrency, has_local_wakeups=False)
    engine = Engine(connect, reporter, limits, handlers=handlers)
    engine.slots.set_limit(GROUP, concurrency)
    return Host(engine, reporter, life, start_timeout=options.start_timeout)
