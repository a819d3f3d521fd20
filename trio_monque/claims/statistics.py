"""Statistics: what claims on a collection have done since their start, and do now."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.contention import Contention
from ..host.engine_numbers import EngineNumbers, engine_numbers
from .events_and_report import ClaimsReport
from .sources import DocumentEngine


@dataclass(frozen=True, kw_only=True)
class ClaimsStatistics(EngineNumbers):
    """What the claims of one instance have done since their start, and do now. Durations are in seconds.

    A claim is counted once, when the database has accepted its end: as `finished`, `failed` or `released`. If the
    database did not accept it, the claim was lost. `rescued` and `dead_lettered` count beside these ends.

    Attributes:
        uptime: Seconds since the start, until the end.
        claimed: Documents claimed; each claim on a document counts.
        candidates_lost: Free documents that this instance had found and did not get, mostly because other instances
            claimed them first (contention).
        finished: Documents whose lock was removed, with or without a result.
        failed: Attempts that failed, with or without attempts left.
        released: Documents that were released without counting the attempt.
        lost: Locks that were not renewed in time, or that another program took. If such a document could be released
            after all, it is counted as released, too.
        rescued: Documents that were taken from dead holders.
        dead_lettered: Documents that became dead letters because no attempts were left.
        broken: Documents that this instance has met and skips; see `Health.broken`.
        renewals: Renewed locks; each one counts at every heartbeat.
        renewal_failures: Attempts to renew locks that the database did not answer or refused as a whole.
        held: Documents whose locks this instance holds. `claimed` is this number and all ends together.
        running: Handlers that have not ended, also those that go on after `finish`; for `open_claims`, claims that a
            task has taken and that have not ended.
        waiting: Claimed documents that no task works on yet: the `async for` has not taken them, or each handler of
            `concurrency` still runs. Their locks are renewed.
        unsettled: Held documents whose end is being written.
        free_slots: How many more documents this instance would claim now.
        claim_batches, largest_claim_batch: The number of commands that claimed something, and the most documents in
            one.
        settlement_batches, largest_settlement_batch: The same for the ends of claims.
        batches: The sizes of the commands for a "claim", a "settlement", a "renewal" and a "rescue"; see Batches.
        start_lag_average, start_lag_max: From the request of a claim until the document was ready for a handler or for
            the `async for`; 0 if none was.
        loop_blocked: How many times something blocked an event loop for longer than a second: that of the claims, or
            on asyncio that of the program. Not counted in virtual time.
    """

    finished: int
    failed: int
    released: int
    lost: int
    dead_lettered: int
    broken: int
    running: int
    waiting: int


def statistics_of(
    engine: DocumentEngine, so_far: ClaimsReport, contention: Contention, *, waiting: int, broken: int
) -> ClaimsStatistics:
    """Return the answer of `RunningClaims.statistics`.

    Args:
        so_far: The report as it would be now.
        contention: How many documents that it saw it did not get.
        waiting: How many claims wait in the delivery; they have slots, as those that are worked on.
        broken: See `Health.broken`.
    """
    slots_taken = engine.slots.running
    return ClaimsStatistics(
        **vars(engine_numbers(engine, slots_taken, contention)),
        finished=so_far.finished,
        failed=so_far.failed,
        released=so_far.released,
        lost=so_far.lost,
        dead_lettered=so_far.dead_lettered,
        broken=broken,
        running=max(0, slots_taken - waiting),
        waiting=min(waiting, slots_taken),
    )
