"""`trio-monque pause` and `resume`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from ...jobs.name_pause import NamePause
from ...store.jobs.bulk_writes import last_id
from ...store.jobs.job_json import iso
from ..current_user import user_name
from ..exit_statuses import SUCCEEDED
from ..output import print_json, print_records
from .access import JobsAccess, jobs_options
from .name_warnings import warn_about

_PAUSE_EXAMPLES: Final = """\b
Examples:
  trio-monque pause send
  trio-monque pause                 list what is paused
  trio-monque resume send
"""
_RESUME_EXAMPLES: Final = """\b
Examples:
  trio-monque resume send
  trio-monque resume send render
"""


@click.command(short_help="Stop instances from starting jobs of a name.", epilog=_PAUSE_EXAMPLES)
@jobs_options
@click.argument("names", metavar="[NAME]...", nargs=-1)
def pause(access: JobsAccess, *, names: tuple[str, ...]) -> int:
    """Stop all instances from starting jobs of NAME, within a second. Runs in progress continue.

    New jobs are stored and wait, until `trio-monque resume NAME`. Without NAME, list the names that are paused.
    Instances of Monque for Node do not honour a pause.
    """
    if not names:
        pauses = access.client.pauses()
        if access.as_json:
            print_json(pauses_as_json(pauses))
        else:
            records = [{"name": one.name, "since": one.since, "by": one.by} for one in pauses]
            print_records(records, f"nothing is paused on {access.name}")
        return SUCCEEDED
    if last_id(access.jobs) is None and not access.client.instances():
        # The pause would make a collection beside one that is not there.
        raise click.UsageError(
            f"{access.name} has neither jobs nor instances: are the database and --collection right?"
        )
    by = user_name()
    changed = {name: access.client.pause(name, by=by) for name in dict.fromkeys(names)}
    return _report(access, changed, "paused {}", "{} was already paused")


@click.command(short_help="Let instances start jobs of a paused name.", epilog=_RESUME_EXAMPLES)
@jobs_options
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def resume(access: JobsAccess, *, names: tuple[str, ...]) -> int:
    """Let instances start jobs of NAME again, within a second."""
    changed = {name: access.client.resume(name) for name in dict.fromkeys(names)}
    return _report(access, changed, "resumed {}", "{} was not paused")


def pauses_as_json(pauses: Sequence[NamePause]) -> dict[str, object]:
    """Return the paused names, and what else is known of each pause."""
    return {
        "paused": [one.name for one in pauses],
        "pauses": [{"name": one.name, "since": one.since and iso(one.since), "by": one.by} for one in pauses],
    }


def _report(access: JobsAccess, changed: Mapping[str, bool], line: str, line_if_unchanged: str) -> int:
    """Print what the command did to each name; return its exit status."""
    if access.as_json:
        print_json(
            {**pauses_as_json(access.client.pauses()), "changed": [name for name, has in changed.items() if has]}
        )
    else:
        for name, has_changed in changed.items():
            click.echo((line if has_changed else line_if_unchanged).format(name))
    warn_about(access, changed, pauses=False)
    return SUCCEEDED
