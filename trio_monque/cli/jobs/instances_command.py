"""`trio-monque instances`: the scheduler instances of the fleet."""

from __future__ import annotations

from typing import Final

import click

from ...jobs.instance import MOST_NAMES, Instance
from ...safe_text import one_line
from ...store.jobs.job_json import iso
from ...store.reads.diagnosis.caps import Count
from ...store.reads.diagnosis.held_jobs import numbers_held
from ..exit_statuses import SUCCEEDED
from ..output import print_json, print_records, since, since_and_by
from .access import JobsAccess, jobs_options
from .pause_resume import pauses_as_json

_EXAMPLES: Final = """\b
Examples:
  trio-monque instances
  trio-monque instances --json
"""


@click.command(short_help="List the scheduler instances.", epilog=_EXAMPLES)
@jobs_options
def instances(access: JobsAccess) -> int:
    """List the scheduler instances that work on these jobs, each as of its last heartbeat, and the paused names.

    `held` counts the running jobs themselves: it is right before the first heartbeat, and for a process that died.
    The numbers behind the names of a live one are those of the last heartbeat. `library` is the version of this
    library, not that of your program; with --json it is `version`.

    An instance that shut down normally has no entry. One that is dead keeps its entry until another instance has seen
    no heartbeat for ten of its intervals, five minutes by default. Monque for Node works without entries.
    """
    found, pauses = access.client.instances(), access.client.pauses()
    held = numbers_held(access.jobs)
    if access.as_json:
        print_json({"instances": [_as_json(one, held.get(one.id, Count())) for one in found], **pauses_as_json(pauses)})
        return SUCCEEDED
    now = access.now()
    print_records(
        [
            {
                "id": one_line(one.id),
                "state": _state(one),
                "heartbeat": since(one.last_heartbeat, now),
                "started": since(one.started_at, now),
                "held": str(held.get(one.id, Count())),
                "pid": str(one.pid),
                "host": one_line(one.host),
                "library": one.version,
                "names": _names(one),
            }
            for one in found
        ],
        f"no instance has an entry in {access.name}",
    )
    if pauses:
        click.echo(f"\npaused: {', '.join(one_line(one.name) + since_and_by(one.since, one.by) for one in pauses)}")
    return SUCCEEDED


def _state(one: Instance) -> str:
    if not one.is_live:
        return "dead"
    return "draining" if one.draining else "live"


def _names(one: Instance) -> str:
    """With the number of jobs that it held of each, and whether these were as many as may run."""
    more = " …" if len(one.names) >= MOST_NAMES else ""
    return ", ".join(one_line(name) + _held_of(one, name) for name in one.names) + more


def _held_of(one: Instance, name: str) -> str:
    held = one.held_by_name.get(name)
    if held is None or not one.is_live:  # Behind `held`, a number of before its death would contradict it.
        return ""
    return f" ({held}, no free slot)" if one.is_full_for(name) else f" ({held})"


def _as_json(one: Instance, held: Count) -> dict[str, object]:
    last = one.last_block
    return {
        **{name: value for name, value in vars(one).items() if name != "incarnation"},
        "held": held.number,
        "is_capped": held.is_capped,
        "state": _state(one),
        "started_at": iso(one.started_at),
        "last_heartbeat": iso(one.last_heartbeat),
        "last_block": None if last is None else {"name": last.name, "at": iso(last.at), "seconds": last.seconds},
    }
