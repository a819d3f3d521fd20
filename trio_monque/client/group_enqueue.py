"""Group enqueue: callers that enqueue at the same time share one statement, and each gets its own outcome.

A batch is what gathered while the last one was in flight. There is no timer, and a caller that is alone does not wait.
A client has no tasks of its own, so the callers do the work: the first one that waits leads. It takes the waiting
callers into its thread as a batch, sends them, and passes the lead on.

Any caller may be cancelled at any moment, and a leader is one of them. What closes each race:

- A caller is cancelled before a thread took it: `leave` removes it, and its job is never sent. Afterwards its job is on
  its way, and may be stored, so the caller waits for the outcome as it would for a call of its own.
- A leader is cancelled and waits no longer, and its thread begins only then. If it took callers, no task would wake
  them. So `stop` marks the leader, and `take` takes no callers for a leader that has stopped.
- A leader is cancelled while its thread sends. The jobs of the other callers are in that statement, so the thread goes
  on, and wakes them itself at its end.
- The leader stops and its thread ends at the same moment. Under one lock, `stop` and `sent` tell each of them whether
  the other was first: the second one wakes the batch, exactly once.
"""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import anyio
import anyio.lowlevel
import trio

from ..error_types import MonqueConnectionError
from ..grace import grace_of_task, grace_owner_of_context
from ..jobs.job import Job
from ..jobs.new_job import Draft
from ..loops import current_loop
from ..store.driver.database_threads import LONGEST_WAIT, DatabaseThreads

# One statement takes 25 to 35 µs of server for each further document: with a thousand, a caller waits some
# 30 ms for the others. The bytes are for payloads that are large: one message of the driver holds 48 MB.
MOST_JOBS: Final = 1000
MOST_BYTES: Final = 16 * 1024 * 1024

Send = Callable[[Sequence[Draft]], Sequence[Job | Exception]]


@dataclass(eq=False, slots=True)
class Caller:
    """One call of `enqueue`, waiting.

    Attributes:
        turn: Set, in the event loop, when this caller should lead, or when it has its outcome.
        outcome: The job or the error; the thread that sends writes it.
        has_stopped: It led, and no longer waits for its thread.
        has_sent: It led, and its thread has ended.
    """

    draft: Draft
    turn: anyio.Event = field(default_factory=anyio.Event)
    outcome: Job | BaseException | None = None
    has_stopped: bool = False
    has_sent: bool = False


class Gathering:
    """The waiting callers of one event loop. The loop adds and removes them, and a thread takes them, under a lock."""

    def __init__(self) -> None:
        self.loop = current_loop()
        self._lock = threading.Lock()
        self._waiting: dict[Caller, None] = {}
        self._leader: Caller | None = None

    def join(self, caller: Caller) -> None:
        """Add a waiting caller. It leads if no other caller does."""
        with self._lock:
            self._waiting[caller] = None
            if self._leader is None:
                self._appoint(caller)

    def take(self, leader: Caller, batch: list[Caller]) -> None:
        """Move waiting callers, the oldest first, into the batch. From then on they cannot leave."""
        with self._lock:
            if leader.has_stopped:
                return  # The leader does not wake callers any more: they would wait for ever.
            room = MOST_BYTES
            for caller in list(self._waiting):
                room -= len(caller.draft.payload)
                if batch and (room < 0 or len(batch) == MOST_JOBS):
                    break
                del self._waiting[caller]
                batch.append(caller)

    def stop(self, leader: Caller) -> bool:
        """Pass the lead on, because the leader no longer waits. Return whether its thread has ended.

        If it has, the leader wakes the batch; otherwise the thread does.
        """
        with self._lock:
            leader.has_stopped = True
            # A leader that no thread took still waits: `leave`, which comes next, passes the lead on.
            if leader not in self._waiting:
                self._pass_on(leader)
            return leader.has_sent

    def sent(self, leader: Caller) -> bool:
        """Note that the leader's thread has ended. Return whether the leader still waits for it."""
        with self._lock:
            leader.has_sent = True
            return not leader.has_stopped

    def leave(self, caller: Caller) -> bool:
        """Take the caller out; return False if its job is being sent. A leader that leaves passes the lead on."""
        with self._lock:
            if caller not in self._waiting:
                return False
            del self._waiting[caller]
            self._pass_on(caller)
            return True

    def _pass_on(self, leader: Caller) -> None:
        if self._leader is leader:
            self._leader = None
            for caller in self._waiting:
                self._appoint(caller)
                break

    def _appoint(self, caller: Caller) -> None:
        self._leader = caller
        caller.turn.set()


class GroupEnqueue:
    """Sends drafts in database threads, and those of concurrent callers together.

    Any number of event loops may use it: each has a Gathering of its own.
    """

    def __init__(self, db_threads: DatabaseThreads, send: Send) -> None:
        self._db_threads = db_threads
        self._send = send
        self._gatherings: anyio.lowlevel.RunVar[Gathering] = anyio.lowlevel.RunVar("monque_group_enqueue")

    async def enqueue(self, draft: Draft) -> Job:
        """Return the job, once it is stored.

        If the caller is cancelled before its job was sent, the job is not sent. Afterwards the call waits for the
        outcome, and delivers the cancellation then.
        """
        gathering = self._gathering()
        caller = Caller(draft)
        gathering.join(caller)
        try:
            await caller.turn.wait()
            if caller.outcome is None:
                await self._lead(gathering, caller)
        except BaseException:
            if not gathering.leave(caller):
                # A thread took the job: it may be stored. So wait for the outcome, as every call does that was sent.
                await self._set_although_cancelled(caller.turn)
            raise
        return _unwrapped(caller.outcome)

    async def _lead(self, gathering: Gathering, leader: Caller) -> None:
        batch: list[Caller] = []
        try:
            # One turn of the loop: callers that were woken together with this one enqueue their next jobs first, and
            # so get into this batch.
            await anyio.lowlevel.checkpoint()
            await self._db_threads.call(partial(self._in_thread, gathering, leader, batch))
        finally:
            if gathering.stop(leader):
                _wake(batch)  # Its thread has ended already. Otherwise the thread wakes them, below.

    def _in_thread(self, gathering: Gathering, leader: Caller, batch: list[Caller]) -> None:
        gathering.take(leader, batch)
        if not batch:
            return  # The leader has stopped: there is nothing to send, and no caller to wake.
        try:
            for caller, outcome in zip(batch, self._send([caller.draft for caller in batch]), strict=True):
                caller.outcome = outcome
        # Any error: a caller that is woken without an outcome takes itself for the next leader.
        except BaseException as error:  # noqa: BLE001  # Each caller raises it.
            for caller in batch:
                caller.outcome = error
        if not gathering.sent(leader):
            # The grace of the leader has ended, and it waits no longer. The others may: this thread wakes them.
            gathering.loop.post(partial(_wake, batch))

    async def _set_although_cancelled(self, event: anyio.Event) -> None:
        if trio.lowlevel.in_trio_task():
            grace = grace_of_task() or self._db_threads.grace
            scope = trio.CancelScope()
            grace.shield(scope)
            with grace.waiting(scope), scope:
                await event.wait()
            return
        # On asyncio a task can be cancelled natively, past every anyio shield: wait all the same.
        owner = grace_owner_of_context() or self._db_threads.grace
        with anyio.CancelScope(shield=True):
            while not event.is_set() and (left := owner.seconds_left) > 0:
                with suppress(asyncio.CancelledError), anyio.move_on_after(min(left, LONGEST_WAIT)):
                    await event.wait()

    def _gathering(self) -> Gathering:
        gathering = self._gatherings.get(None)
        if gathering is None:
            gathering = Gathering()
            self._gatherings.set(gathering)
        return gathering


def _unwrapped(outcome: Job | BaseException | None) -> Job:
    if isinstance(outcome, Job):
        return outcome
    assert outcome is not None
    if isinstance(outcome, MonqueConnectionError):
        # Many callers raise the error of one batch. Each raises a copy, or their tracebacks would mix.
        own = copy.copy(outcome)
        raise own from outcome.__cause__
    raise outcome


def _wake(batch: Sequence[Caller]) -> None:
    for caller in batch:
        caller.turn.set()
