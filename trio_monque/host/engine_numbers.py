"""What an engine has counted, as the statistics of each kind of work show it. They add how its runs ended."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..engine.contention import Contention
from ..engine.nursery import Engine
from ..engine.progress import BatchSizes

BATCH_LOOPS: Final = {"claim": "claimer", "settlement": "settler", "renewal": "heartbeat", "rescue": "reaper"}
"""What is done in batches, and the loop that does it."""


@dataclass(frozen=True)
class Batches:
    """The sizes of the commands of one kind. Those that did nothing do not count.

    Attributes:
        items: How many items all of them had.
        by_size: How many commands there were, by the largest number of items in each group: 1, 2, 4, 8 and so on. A
            command counts in one group. The last group is infinity.
    """

    items: int
    by_size: Mapping[float, int]


@dataclass(frozen=True, kw_only=True)
class EngineNumbers:
    """The numbers that every kind of work has. Statistics of a kind inherit them, and describe them for their items."""

    uptime: float
    claimed: int
    candidates_lost: int
    rescued: int
    renewals: int
    renewal_failures: int
    held: int
    unsettled: int
    free_slots: int
    claim_batches: int
    largest_claim_batch: int
    settlement_batches: int
    largest_settlement_batch: int
    batches: Mapping[str, Batches]
    start_lag_average: float
    start_lag_max: float
    loop_blocked: int


def engine_numbers(engine: Engine[Any, Any, Any, Any, Any], running: int, contention: Contention) -> EngineNumbers:
    """Return the numbers of this moment, in any thread. `running` is the number of taken slots, as the caller read it.

    The caller passes it so that `unsettled` agrees with the number of running items that it shows.
    """
    progress_of = engine.vitals.progress_of
    batches = {kind: progress_of(loop).batches for kind, loop in BATCH_LOOPS.items()}
    claims, settlements, renewals, rescues = batches.values()
    held = engine.number_held
    return EngineNumbers(
        uptime=engine.vitals.uptime,
        claimed=int(claims.total),
        candidates_lost=contention.lost,
        rescued=int(rescues.total),
        renewals=int(renewals.total),
        renewal_failures=progress_of("heartbeat").failures,
        held=held,
        unsettled=max(0, held - engine.number_parked - (running - engine.number_outliving)),
        free_slots=engine.slots.demand().total,
        claim_batches=claims.count,
        largest_claim_batch=int(claims.largest),
        settlement_batches=settlements.count,
        largest_settlement_batch=int(settlements.largest),
        batches={kind: _batches(sizes) for kind, sizes in batches.items()},
        start_lag_average=engine.start_lags.average,
        start_lag_max=engine.start_lags.largest,
        loop_blocked=engine.loop_blocked,
    )


def _batches(sizes: BatchSizes) -> Batches:
    *powers, larger = sizes.by_power
    return Batches(int(sizes.total), {**{2.0**power: count for power, count in enumerate(powers)}, math.inf: larger})
