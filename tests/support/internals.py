"""What tests use from inside clients, schedulers and claims, because no public door shows or causes it.

Each function says why its tests need it. All other tests use public doors: a test of the architecture keeps private
attributes of the package out of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from trio_monque import Claim, Monque, Scheduler
from trio_monque.bridge.app_loop import AppLoop
from trio_monque.bridge.runtime import Runtime
from trio_monque.claims.assembly import ClaimsParts
from trio_monque.claims.claims import RunningClaims
from trio_monque.client.client_context import ClientContext
from trio_monque.clock import ServerClock
from trio_monque.engine.nursery import Engine
from trio_monque.engine.progress import Progress
from trio_monque.engine.run import Run
from trio_monque.engine.watchdog import Watchdog
from trio_monque.events import Event
from trio_monque.host.host import Host
from trio_monque.scheduler.job_stream import JobStream
from trio_monque.scheduler.scheduler_client import SchedulerClient
from trio_monque.store.driver.database_threads import DatabaseThreads


def context_of(client: Monque) -> ClientContext:
    """A client's view of the server's time, its indexes and its codec: tests step that time, or forget the indexes."""
    return client._context


def interference_of(client: Monque) -> list[Any]:
    """What gets in the way of the commands of a client. `fail_next` only fails them; tests also delay or hold them."""
    return client._context.jobs.interference


def make_indexes(client: Monque) -> None:
    """Makes the indexes as the first write does, before a test stores documents that the indexes could not have."""
    client._context.ensure_indexes()


def threads_of(client: Monque) -> DatabaseThreads:
    """The threads that send a client's commands: tests keep all of them busy."""
    return client._db_threads


def emit(client: Monque, event: Event) -> None:
    """Emits an event without the work that causes it: tests need thousands at one moment."""
    client._event_delivery.emit(event)


def host_of(scheduler: Scheduler) -> Host[Any, Any]:
    """Runs a scheduler that `open_scheduler` does not return until it works: tests ask it before its start."""
    return scheduler._parts.host


def engine_of(scheduler: SchedulerClient) -> Engine[Any, Any, Any, Any, Any]:
    """A scheduler's engine: tests cut it as a crash does, or read which slots are taken."""
    return scheduler._parts.engine


def sources_of(scheduler: SchedulerClient) -> Any:
    """What claims, renews and settles for a scheduler: tests hold or break single calls, and ask it by hand."""
    return scheduler._parts.engine.sources


def die(scheduler: SchedulerClient) -> None:
    """Ends a scheduler at once, from one of its own handlers: `crash` would wait for that handler."""
    scheduler._parts.engine.die()


def look_for_jobs(scheduler: SchedulerClient) -> None:
    """Makes a scheduler look for due jobs now, as a hint does. An enqueue would also add a job."""
    scheduler._parts.engine.waker.look()


def has_looked_for_jobs(scheduler: SchedulerClient) -> bool:
    """Whether the first look of a scheduler is over, and none is under way: then only a wake-up makes it look."""
    claimer = scheduler._parts.engine._claimer
    return claimer._ledger.claims_sent > 0 and not claimer.is_claiming


def look_for_dead_claims(scheduler: SchedulerClient) -> None:
    """Makes a scheduler look for claims of dead instances now, at a moment that a test chose."""
    scheduler._parts.engine.reaper.look()


def candidates_of(scheduler: SchedulerClient) -> Any:
    """The jobs that a scheduler has read and will try to claim: tests change them in the database first."""
    return sources_of(scheduler).claims._candidates


def names_known_as_paused(scheduler: SchedulerClient) -> frozenset[str]:
    """The paused names that a scheduler has read so far, which may be old."""
    known: frozenset[str] = sources_of(scheduler).claims._paused.names
    return known


def end_at_once(run: Any) -> None:
    """Lets the time limit of a run be over now, by the engine's own arithmetic of deadlines."""
    run._time_limit = run.duration
    run._set_deadlines()


def runs_of(scheduler: SchedulerClient) -> Any:
    """The runs of a scheduler, whose order of cancellations a test plays."""
    return scheduler._parts.engine._runner.running


def runs_of_claims(claims: RunningClaims) -> Any:
    """The runs of claims, whose leases a test lets expire."""
    return claims._parts.engine._runner.running


def parts_of(claims: RunningClaims) -> ClaimsParts:
    """The parts of running claims: their engine, source and clock, which no public class shows."""
    return claims._parts


def run_of(claim: Claim[Any]) -> Run[Any]:
    """The run of a claim: tests wait until it settles, and read which stamp it holds."""
    return claim._run


def sources_of_claim(claim: Claim[Any]) -> Any:
    """What renews and settles a claim: tests call it between two steps of the claim's own."""
    return claim._work._control.sources  # type: ignore[attr-defined]  # It is the engine.


def interferences_of_claims(sources: Any) -> list[list[Any]]:
    """What gets in the way of the commands of claims: of those that read locks, and of those that write them."""
    return [sources.claims._locked.interference, sources.claims._leased.interference]


def answered_at(watchdog: Watchdog) -> float:
    """When the event loop last answered its watchdog; 0.0 before it first did. Health shows only the lag."""
    return watchdog._answered_at


def loops_of(claims: RunningClaims) -> list[Progress]:
    """The loops of running claims, which have no `health()`: tests wait until a certain one is failing."""
    return [watched.progress for watched in claims._parts.engine.vitals._watched.values()]


def beat(scheduler: Scheduler) -> Any:
    """Lets a scheduler write its heartbeat now. Awaitable: whether it was written."""
    return scheduler._parts.presence._try_to_beat(again=False)


def next_known_look(scheduler: Scheduler) -> Any:
    """When a scheduler will look next, as far as it knows: a test waits until it knows."""
    return scheduler._parts.engine.waker._next


def open_group(scheduler: Scheduler, name: str) -> None:
    """Gives a name its slots again, which a test had taken away, and looks."""
    scheduler._parts.open_group(name)


def take_all_slots(patch: pytest.MonkeyPatch, scheduler: Scheduler) -> None:
    """Leaves a scheduler no slots at all, which no option allows: it seems to hang, with a job that is due."""
    patch.setattr(scheduler._parts.engine.slots, "_total", 0)


def after_each_settlement(scheduler: SchedulerClient, happens: Callable[[int], None]) -> None:
    """Calls `happens` with the size of each batch that was written, before the scheduler gets the answer."""
    settling = sources_of(scheduler).settlements
    write = settling._write

    async def write_then(statements: Sequence[Any]) -> Any:
        fates = await write(statements)
        happens(len(statements))
        return fates

    settling._write = write_then


def prefetch_of(candidates: Any) -> Any:
    """The jobs that candidates hold in advance: a test counts when they were read, and when they were used."""
    return candidates._prefetch


def prefetched(prefetch: Any) -> Iterable[Iterable[Any]]:
    """The jobs that were read in advance, by name: a test changes those that will be claimed next."""
    groups: dict[str, Iterable[Any]] = prefetch._groups
    return groups.values()


def read_at(prefetch: Any) -> float:
    """When the jobs were read that are held in advance, on trio's clock."""
    moment: float = prefetch._read_at
    return moment


def opened_of(stream: JobStream) -> Any:
    """The cursor of an open change stream: a test sees that it was closed."""
    return stream._opened


def cursor_id_of(stream: Any) -> Any:
    """The id of a change stream's cursor on the server: a test kills that cursor there."""
    return stream._cursor.cursor_id


def was_never_measured(clock: ServerClock) -> bool:
    """Whether a clock knows no time of the server at all. A worker of the faults takes it for the only staleness."""
    return clock._offset.measured_at is None


def thread_of(runtime: Runtime) -> threading.Thread:
    """A program waits for the thread of a runtime only by leaving its block."""
    return runtime._thread


def canary_of(app_loop: AppLoop) -> Any:
    """The task by which the application loop shows that all its tasks are cancelled."""
    return app_loop._canary


@contextmanager
def without_wake_ups(app_loop: AppLoop) -> Iterator[list[object]]:
    """Inside, nothing wakes the application loop, as if a Ctrl-C hit each delivery. What should have is listed."""
    mailbox, lost = app_loop._mailbox, list[object]()
    wake, mailbox._wake = mailbox._wake, lost.append
    try:
        yield lost
    finally:
        mailbox._wake = wake


def calls_waiting(runtime: Runtime) -> int:
    """How many tasks of the application wait for an answer of the runtime."""
    return len(runtime._waiting)


def run_has_ended(runtime: Runtime) -> bool:
    """Whether the run refuses what is posted to it: its loop may be unable to note the end, as tests block it."""
    try:
        runtime._mailbox.ring()
    except RuntimeError:
        return True
    return False


def run_now(handle: Any) -> None:
    """Run what an asyncio loop would run in its next turn: Python 3.11 has no eager tasks."""
    handle._run()
