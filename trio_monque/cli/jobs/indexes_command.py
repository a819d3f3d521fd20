"""`trio-monque indexes`: which indexes the jobs have, should have, and need not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import click

from ...jobs.field_conditions import is_field_path
from ...store.jobs import indexes as ours
from ...store.reads.diagnosis.index_health import Indexes, definitions, look_at_indexes
from ..confirmation import confirm
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from ..output import print_json, print_records
from .access import JobsAccess, jobs_options

_EXAMPLES: Final = """\b
Examples:
  trio-monque indexes
  trio-monque indexes --create
  trio-monque indexes --create --filter meta.tenant
  trio-monque indexes --drop-surplus --dry-run
"""


class FieldPath(click.ParamType[str]):
    """A field of the meta or the data."""

    name = "PATH"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not is_field_path(value):
            self.fail(f"{value!r} is not a path such as meta.tenant or data.order.id", param, ctx)
        return value


@click.command(short_help="List, create and drop indexes.", epilog=_EXAMPLES)
@click.option("--create", is_flag=True, help="Create the missing indexes.")
@click.option(
    "--filter",
    "paths",
    multiple=True,
    type=FieldPath(),
    help="A field that pages are filtered by: meta.NAME or data.PATH. It needs an index. May be repeated.",
)
@click.option("--drop-surplus", is_flag=True, help="Drop those that neither this library nor Monque for Node creates.")
@click.option(
    "--drop-node", is_flag=True, help="Drop those that only Monque for Node needs. Not while it is still in use."
)
@click.option("--dry-run", is_flag=True, help="Show what would be dropped, and change nothing.")
@click.option("--yes", is_flag=True, help="Drop without asking.")
@jobs_options
def indexes(
    access: JobsAccess,
    *,
    create: bool,
    paths: Sequence[str],
    drop_surplus: bool,
    drop_node: bool,
    dry_run: bool,
    yes: bool,
) -> int:
    """List the indexes of the jobs with their definitions: those that are there, and those that are missing.

    Workers and clients create the missing ones themselves, unless `skip_index_creation` is set. On a large collection,
    that takes minutes: give --operation-timeout 1h. The indexes of fields (--filter) are created by this command only.

    Exit status: 0 if all of this library are there as it defines them, 1 if not, 2 if it could not be done.
    """
    if create and not dry_run:
        ours.ensure(access.jobs, also=[ours.of_field(path) for path in paths])
    found = look_at_indexes(access.jobs, paths)
    doomed = [*((one.name for one in found.surplus) if drop_surplus else ()), *(found.of_node if drop_node else ())]
    if drop_surplus or drop_node:
        _drop(access, doomed, dry_run=dry_run, yes=yes)
        if not dry_run:
            found = look_at_indexes(access.jobs, paths)
    _print(access, found, paths)
    is_complete = found.has_collection and not (found.missing or found.altered or found.renamed)
    return SUCCEEDED if is_complete else CHECK_FAILED


def _drop(access: JobsAccess, doomed: Sequence[str], *, dry_run: bool, yes: bool) -> None:
    if not doomed:
        click.echo("no index to drop")
        return
    named = f"{len(doomed)} index{'es' if len(doomed) > 1 else ''} of {access.name}: {', '.join(doomed)}"
    if dry_run:
        click.echo(f"would drop {named}")
        return
    confirm(f"Drop {named}?", yes=yes)
    for name in doomed:
        ours.drop(access.jobs, name)
    click.echo(f"dropped {named}")


def _print(access: JobsAccess, found: Indexes, paths: Sequence[str]) -> None:
    defined = definitions(access.jobs, paths)
    expiring = {one.name: one.expires_after for one in found.surplus if one.expires_after is not None}
    records = [
        {"name": name, "state": _state(name, found, expiring), "definition": definition}
        for name, definition in defined.items()
    ]
    if access.as_json:
        print_json(records)
    else:
        print_records(records, f"{access.name} has no indexes")


def _state(name: str, found: Indexes, expiring: Mapping[str, float]) -> str:
    if name in found.missing:
        return "missing"
    if name in found.altered:
        return "its definition differs: drop it while no scheduler runs, and create it again"
    if name in found.renamed:
        return f"missing: {found.renamed[name]} has its definition"
    if name in found.of_node:
        return "of Monque for Node"
    if name in expiring:
        return f"surplus: it deletes jobs after {expiring[name]:g} s"
    return "surplus" if name in {one.name for one in found.surplus} else "present"
