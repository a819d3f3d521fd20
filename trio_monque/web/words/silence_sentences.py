"""The words for a holder of jobs that is silent: since when, and what becomes of its jobs. Pure."""

from __future__ import annotations

from datetime import datetime, timedelta

from ...jobs.instance import Instance
from ...store.reads.diagnosis.held_jobs import Holder
from .lengths import counted, length


def sentence_of_silence(instance: Instance, holder: Holder | None, now: datetime, *, is_one_alive: bool) -> str:
    """Return what is known of a silent instance, and what becomes of its jobs.

    Args:
        instance: Its entry.
        holder: What it holds; None for nothing.
        now: The server's time.
        is_one_alive: Whether any instance is alive.
    """
    silent = length(max(0.0, (now - instance.last_heartbeat) / timedelta(seconds=1)))
    begin = f"{instance.id} (process {instance.pid} on {instance.host}) has been silent for {silent}."
    if holder is None:
        removed = "A live instance removes its entry when it has seen no heartbeat for ten of its intervals."
        return f"{begin} It holds no job. {removed if is_one_alive else 'Its entry stays while no instance is alive.'}"
    ends = (holder.silent_since or instance.last_heartbeat) + timedelta(seconds=holder.lease)
    return f"{begin} {fate_of(holder, ends, now, is_one_alive=is_one_alive)}"


def fate_of(holder: Holder, ends: datetime, now: datetime, *, is_one_alive: bool) -> str:
    """Return what becomes of jobs whose claims are not renewed.

    Args:
        holder: Who holds them.
        ends: When the first of their leases ends.
        now: The server's time.
        is_one_alive: Whether any instance is alive.
    """
    jobs = f"Its {counted(holder.held.number, 'job')}"
    if holder.held.is_capped:
        jobs = f"Its jobs, {holder.held} of them,"
    if not is_one_alive:
        wait = "waits" if holder.held.number == 1 else "wait"
        return f"{jobs} {wait} until an instance starts: no other one is alive."
    left = (ends - now) / timedelta(seconds=1)
    are = "becomes" if holder.held.number == 1 else "become"
    if left > 0:
        return f"{jobs} {are} due again when the lease ends, in {length(left)} at the earliest."
    return f"{jobs} {are} due again: the lease ended {length(-left)} ago, and a live instance is about to take over."
