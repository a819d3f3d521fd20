"""InstanceEntry: the document by which one instance owns its id in the fleet. Blocking.

Claims, log lines and the fleet name an instance by its id, so two live instances must not share one. The id is the
`_id` of the entry: of two instances that start at once with one id, the insert of one fails.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from dataclasses import replace
from datetime import datetime, timedelta
from importlib import metadata
from typing import Final

from ..client.client_context import ClientContext
from ..client.local_wakeups import local_instance_ids
from ..engine.lease import Beats
from ..error_types import ClientClosedError, InstanceCollisionError, MonqueConnectionError
from ..jobs.instance import Instance, evidence_of, is_alive, is_of_a_stranger
from ..jobs.job_parts import NO_CLAIM
from ..log import logger_of
from ..options_and_defaults import SchedulerConfig
from ..store.jobs import instances
from .instance_state import InstanceState, with_state

logger = logger_of("scheduler")

# Another instance with the same id may come and go between two of our commands. More rounds than this are not chance.
MOST_ROUNDS: Final = 10


class InstanceEntry:
    """The entry of this instance, from its start to its end. All methods block, except for `renewed`."""

    def __init__(self, context: ClientContext, config: SchedulerConfig) -> None:
        self._context = context
        self._id = config.instance_id
        self._interval = config.heartbeat_interval
        self._beats = Beats()
        # One for all attempts of a start: it shows whether an entry is ours although its insert was not answered.
        self._incarnation = secrets.token_hex(8)
        self._entry: Instance | None = None

    @property
    def is_there(self) -> bool:
        """Whether the entry was written, and this instance has not removed it."""
        return self._entry is not None

    def enter(self, state: InstanceState) -> None:
        """Write the entry.

        Raises:
            InstanceCollisionError: Another live instance has this id, or holds a job under it.
        """
        now = self._context.now()
        self._beats.claimed(now)
        entry = Instance(
            id=self._id,
            incarnation=self._incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            names=(),
            started_at=now,
            last_heartbeat=now,
            heartbeat_interval=self._interval,
            version=_version(),
        )
        entry = with_state(entry, state, now)
        # An instance may run jobs without an entry: an operator has deleted it, or it is Monque for Node.
        self._check_claims()
        for _ in range(MOST_ROUNDS):
            if self._has_entered(entry):
                return
        raise InstanceCollisionError(
            self._id,
            f"the document with this _id in {instances.name_of_collection(self._context.jobs.collection.name)!r} "
            "is not the entry of a dead instance",
        )

    def _check_claims(self) -> None:
        now = self._context.now()
        for job in instances.claims_of(self._context.jobs, self._id):
            claim = job.claim or NO_CLAIM
            if claim.last_heartbeat is not None and is_alive(claim.last_heartbeat, claim.heartbeat_interval, now):
                ago = (now - claim.last_heartbeat) / timedelta(seconds=1)
                stranger = f"; {evidence_of(job)}" if is_of_a_stranger(job, now) else ""
                raise InstanceCollisionError(
                    self._id, f"job {job} is processing under it, and its claim was renewed {ago:.1f} s ago{stranger}"
                )

    def _has_entered(self, entry: Instance) -> bool:
        try:
            entered = self._enter(entry)
        except MonqueConnectionError as error:
            if error.unknown_outcome:
                # The entry may have been written, and the next start with this id would collide with it.
                self._entry = entry
                self.leave()
            raise
        if entered:
            self._entry = entry
        return entered

    def _enter(self, entry: Instance) -> bool:
        jobs = self._context.jobs
        if instances.insert(jobs, entry):
            return True
        seen = instances.read(jobs, self._id)
        if seen is None:
            return False  # The other instance left between the two commands: insert again.
        if seen.incarnation == entry.incarnation:
            return True  # The driver sent the insert twice, or an earlier attempt of this start wrote the entry.
        now = self._context.now()
        # In virtual time schedulers send no heartbeats: those of this trio run are alive.
        if seen.id in local_instance_ids(jobs.collection.full_name) or is_alive(
            seen.last_heartbeat, seen.heartbeat_interval, now
        ):
            ago = (now - seen.last_heartbeat) / timedelta(seconds=1)
            raise InstanceCollisionError(
                self._id, f"process {seen.pid} on {seen.host} has it, and sent a heartbeat {ago:.1f} s ago"
            )
        # Unchanged since the read: the holder, or a third instance, may have written it meanwhile.
        if not instances.replace_if_unchanged(jobs, seen, entry):
            return False
        logger.info("took over the instance id of %s, which is dead", seen)
        return True

    def leave(self) -> None:
        """Remove the entry. If that fails, it is logged, and another instance removes the entry later."""
        entry = self._entry
        if entry is None:
            return
        try:
            instances.remove(self._context.jobs, entry)
        except MonqueConnectionError as error:
            # That the client is closed is in the log already.
            level = logging.DEBUG if isinstance(error, ClientClosedError) else logging.INFO
            logger.log(level, "could not remove the entry of this instance: %s; another instance removes it", error)
        else:
            self._entry = None

    def beat(self, entry: Instance) -> Instance | None:
        """Write this state of the entry. Return the entry of the other instance if it has taken the id."""
        jobs = self._context.jobs
        if instances.beat(jobs, entry):
            return None
        # The entry is gone: another instance removed it as dead, or the collection was dropped. A draining instance
        # does not insert it again, as it is about to remove it.
        if not entry.draining and instances.insert(jobs, entry):
            return None
        seen = instances.read(jobs, entry.id)
        return None if seen is None or seen.incarnation == entry.incarnation else seen

    def renewed(self, state: InstanceState, now: datetime, *, draining: bool) -> Instance:
        """Return the entry that the next heartbeat writes; `now` is the server's time."""
        assert self._entry is not None, "it enters first"
        beaten = replace(self._entry, last_heartbeat=self._beats.next(now), draining=draining)
        self._entry = with_state(beaten, state, now)
        return self._entry


def _version() -> str:
    try:
        return metadata.version("trio-monque")
    except metadata.PackageNotFoundError:
        return "unknown"
