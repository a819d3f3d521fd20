"""ClaimsContext: the collection, the database threads, the server's time and the options, shared by the parts."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..bridge.handler_loop import HandlerLoop
from ..client.server_time import ServerTime
from ..host.limits import leased_timeout
from ..jobs.retries_and_next_occurrences import RetryPolicy
from ..store.documents.locked_collection import LockedCollection
from ..store.driver.database_threads import DatabaseThreads
from .claim_options import ClaimConfig


@dataclass(frozen=True, eq=False)
class ClaimsContext:
    """Made once for each `open_claims` or `run_claims`.

    Attributes:
        locked: The collection, the filter and the lock field.
        db_threads: Runs blocking calls in database threads.
        time: The server's time.
        config: The options.
        policy: What follows a failed attempt.
        loop: Where the program works on claims.
        leased: The collection for claims and renewals, with a shorter timeout; see `leased_timeout`.
    """

    locked: LockedCollection
    db_threads: DatabaseThreads
    time: ServerTime
    config: ClaimConfig
    policy: RetryPolicy
    loop: HandlerLoop
    leased: LockedCollection = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "leased", replace(self.locked, operation_timeout=leased_timeout(self.config)))
