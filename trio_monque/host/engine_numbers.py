"""What an engine has counted, as the statistics of each kind of work show it. They add how its runs ended."""

from __future__ import annotations

from typing import Any, TypedDict

from ..engine.nursery import Engine


class EngineNumbers(TypedDict):
    """The numbers that are the same for every kind of work. Their meaning is in `scheduler.statistics.Statistics`."""

    uptime: float
    claimed: int
    rescued: int
    renewals: int
    unsettled: int
    free_slots: int
    claim_batches: int
    largest_claim_batch: int
    settlement_batches: int
    largest_settlement_batch: int
    start_lag_average: float
    start_lag_max: float


def engine_numbers(engine: Engine[Any, Any, Any, Any, Any], running: int) -> EngineNumbers:
    """Return the numbers of this moment, in any thread. `running` is the number of taken slots, as the caller read it.

    The caller passes it so that `unsettled` agrees with the number of running items that it shows.
    """
    claims, settlements, renewals, rescues = (
        engine.vitals.progress_of(name).batches for name in ("claimer", "settler", "heartbeat", "reaper")
    )
    return EngineNumbers(
        uptime=engine.vitals.uptime,
        claimed=int(claims.total),
        rescued=int(rescues.total),
        renewals=int(renewals.total),
        unsettled=max(0, engine.number_held - (running - engine.number_outliving)),
        free_slots=engine.slots.demand().total,
        claim_batches=claims.count,
        largest_claim_batch=int(claims.largest),
        settlement_batches=settlements.count,
        largest_settlement_batch=int(settlements.largest),
        start_lag_average=engine.start_lags.average,
        start_lag_max=engine.start_lags.largest,
    )
