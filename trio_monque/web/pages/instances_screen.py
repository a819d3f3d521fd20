"""The screen Instances: the schedulers of the fleet, silent ones first, and the other holders of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from ...client.monque import holders_of
from ...jobs.instance import Instance
from ...store.reads.diagnosis.caps import Count
from ...store.reads.diagnosis.held_jobs import Holder
from ..words.lengths import counted, grouped
from ..words.silence_sentences import fate_of, sentence_of_silence
from .screen import PageCall, View

MOST_INSTANCES: Final = 200
MOST_NAMES: Final = 4
"""Instances of a page, and names of an instance."""


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One instance.

    Attributes:
        one: Its entry.
        names: The first names that it runs.
        more_names: How many more there are.
        running: How many jobs it holds now; its entry has the number as of its last heartbeat.
        overdue: How many plain handlers go on although their runs were cancelled.
        silence: What becomes of its jobs; None if it is alive.
    """

    one: Instance
    names: Sequence[str]
    more_names: int
    running: Count
    overdue: int
    silence: str | None


@dataclass(frozen=True, slots=True)
class OtherHolder:
    """A holder of jobs that has no entry among the instances.

    Attributes:
        holder: What it holds.
        kind: "Node", "ended", or "no holder".
        fate: What becomes of its jobs; "" if all claims are renewed.
    """

    holder: Holder
    kind: str
    fate: str


async def instances_facts(call: PageCall) -> View:
    """Ask for what the screen shows."""
    entries = await call.monque.instances()
    holders = await holders_of(call.monque)
    rows = instance_rows(entries, holders, call.now)
    others = other_holders(entries, holders, call.now)
    silent = sum(not one.is_live for one in entries)
    alive = len(entries) - silent
    return View(
        "instances.html",
        f"{grouped(silent)} silent, instances" if silent else f"{grouped(alive)} alive, instances",
        {
            "rows": rows[:MOST_INSTANCES],
            "more_instances": max(0, len(rows) - MOST_INSTANCES),
            "others": others,
            "alive": alive,
            "silent": silent,
            "running": sum(row.running.number for row in rows if row.one.is_live),
            "slots": sum(one.slots or 0 for one in entries if one.is_live),
        },
    )


def instance_rows(entries: Sequence[Instance], holders: Sequence[Holder], now: datetime) -> Sequence[InstanceRow]:
    """Return the rows: silent instances first, then by their ids: what changes often would move them."""
    of_ours = {one.instance_id: one for one in holders if one.is_ours}
    is_alive = any(one.is_live for one in entries)
    return [
        InstanceRow(
            one=one,
            names=one.names[:MOST_NAMES],
            more_names=max(0, len(one.names) - MOST_NAMES),
            running=of_ours[one.id].held if one.id in of_ours else Count(),
            overdue=sum(one.overdue_by_name.values()),
            silence=None if one.is_live else sentence_of_silence(one, of_ours.get(one.id), now, is_one_alive=is_alive),
        )
        for one in sorted(entries, key=lambda one: (one.is_live, one.id))
    ]


def other_holders(entries: Sequence[Instance], holders: Sequence[Holder], now: datetime) -> Sequence[OtherHolder]:
    """Return the holders of jobs that have no entry, those with claims that are not renewed first."""
    known = {one.id for one in entries}
    is_one_alive = any(one.is_live for one in entries)
    found = [
        OtherHolder(one, kind, _fate_of_other(one, kind, now, is_one_alive=is_one_alive))
        for one in holders
        if (kind := _kind_of(one, known)) is not None
    ]
    return sorted(found, key=lambda one: (not one.holder.silent.number, -one.holder.held.number))


def _kind_of(holder: Holder, known: set[str]) -> str | None:
    if holder.instance_id is None:
        return "no holder"
    if not holder.is_ours:
        return "Node"
    return None if holder.instance_id in known else "ended"


def _fate_of_other(holder: Holder, kind: str, now: datetime, *, is_one_alive: bool) -> str:
    if kind == "no holder":
        return "Another program left them in this state. A live instance makes them due again after its lock_timeout."
    if holder.silent_since is None:
        return ""
    if kind == "Node":
        silent = counted(holder.silent.number, "claim")
        return f"{silent} not renewed: a live instance takes the jobs after its lock_timeout."
    return fate_of(holder, holder.silent_since + timedelta(seconds=holder.lease), now, is_one_alive=is_one_alive)
