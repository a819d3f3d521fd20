"""ClaimsContext: what the parts of claims on a collection that ask the database share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from ..client.server_time import ServerTime
from ..jobs.retry_policy import RetryPolicy
from ..store.database_threads import DatabaseThreads
from ..store.documents.locked_collection import LockedCollection
from .options import ClaimConfig


@dataclass(frozen=True, eq=False)
class ClaimsContext:
    """Made once for each `open_claims` or `run_claims`.

    Attributes:
        locked: The collection, the filter and the lock field.
        door: Takes blocking calls to threads.
        time: The server's.
        config: The options.
        policy: What becomes of a failed try.
        leased: The collection, for whatever must be answered within a heartbeat: a later answer comes too late for what
            it is asked for.
    """

    locked: LockedCollection
    door: DatabaseThreads
    time: ServerTime
    config: ClaimConfig
    policy: RetryPolicy
    leased: LockedCollection = field(init=False)

    def __post_init__(self) -> None:
        timeout = min(self.config.operation_timeout, self.config.heartbeat_interval)
        object.__setattr__(self, "leased", replace(self.locked, operation_timeout=timeout))
