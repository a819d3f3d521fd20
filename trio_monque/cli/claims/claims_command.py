"""The commands of `trio-monque claims`: statistics, held documents, dead letters, and their return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import click

from ...claims.claim_options import check_filter, check_lock_field
from ...client.server_time import ServerTime
from ...error_types import InvalidOptionError, MissingIndexError
from ...safe_text import shown
from ...store.documents import counting, indexes, listing_and_readmitting, rescuing
from ...store.documents.locked_collection import LockedCollection
from ...store.driver.connection import collection_of
from ...store.driver.extended_json import filter_in, id_in, text_of_id
from ..connection_options import Connection, connection_options
from ..exit_statuses import CHECK_FAILED, SUCCEEDED
from ..output import counted, print_fields, print_json, print_records, warn
from ..parameters import operation_timeout_option

P = ParamSpec("P")
R = TypeVar("R")

_EXAMPLES: Final = """\b
Examples:
  trio-monque claims stats messages --filter '{"status": "new"}'
  trio-monque claims dead-letters messages --json
  trio-monque claims readmit messages 65f1c0ffee0123456789abcd
  trio-monque claims readmit messages --all --dry-run
"""


# --- The collection: COLLECTION, `--filter`, `--lock-field` ---


@dataclass(frozen=True)
class Target:
    """What a command works on.

    Attributes:
        locked: The collection.
        now: The server's time.
    """

    locked: LockedCollection
    now: datetime

    @property
    def name(self) -> str:
        return str(self.locked.collection.full_name)


def target_options(function: Callable[Concatenate[Target, P], R]) -> Callable[P, R]:
    """Add the argument and the options to a command, which gets a Target as its first argument."""

    @click.argument("collection")
    @connection_options
    @click.option(
        "--filter",
        "wanted",
        default="{}",
        metavar="JSON",
        help="The filter of the claims, as extended JSON. (default: all documents)",
    )
    @click.option("--lock-field", default="lock", metavar="NAME", help="The field that holds the lock. (default: lock)")
    @operation_timeout_option
    @click.option("--allow-scan", is_flag=True, help="Read a large collection even if no index serves the filter.")
    @wraps(function)
    def command(connection: Connection, /, *args: P.args, **options: P.kwargs) -> R:
        collection, wanted, lock_field = (str(options.pop(name)) for name in ("collection", "wanted", "lock_field"))
        allow_scan, seconds = bool(options.pop("allow_scan")), options.pop("operation_timeout")
        assert isinstance(seconds, float)
        with _opened(connection, collection, wanted, lock_field, seconds) as target:
            if not allow_scan:
                _check_index(target)
            return function(target, *args, **options)

    return command


@contextmanager
def _opened(
    connection: Connection, collection: str, wanted: str, lock_field: str, operation_timeout: float
) -> Iterator[Target]:
    try:
        check_lock_field(lock_field)
        chosen = check_filter(filter_in(wanted), lock_field)
    except InvalidOptionError as error:
        raise click.UsageError(f"--{str(error).replace('_', '-', 1)}") from None
    with connection.open() as database:
        try:
            named = collection_of(database, collection)
        except InvalidOptionError as error:
            raise click.UsageError(f"{error}") from None
        locked = LockedCollection.of(named, chosen, lock_field=lock_field, operation_timeout=operation_timeout)
        yield Target(locked, ServerTime(locked).now())


def _check_index(target: Target) -> None:
    if indexes.is_large(target.locked) and not indexes.is_served(target.locked, target.now):
        raise MissingIndexError(
            f"no index of {target.name} serves the filter {shown(target.locked.shown_filter)}, and this would read all "
            "of its documents: call create_claim_index(collection, filter) once, or give --allow-scan"
        )


# --- The commands ---


def _examples(*lines: str) -> str:
    return "\n".join(["\b", "Examples:", *(f"  trio-monque claims {line}" for line in lines)])


_limit = click.option(
    "--limit", type=click.IntRange(min=1), default=100, metavar="N", help="Show at most N. (default: 100)"
)
_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(short_help="Inspect documents that are claimed by a lock.", epilog=_EXAMPLES)
def claims() -> None:
    """Look at the documents of any collection that `open_claims` and `run_claims` work through.

    Give the --filter and --lock-field that your program passes to them.

    Exit status: 0 if it was done, 1 if `readmit` found other documents than it was given, 2 if it could not be done.
    """


@claims.command(
    short_help="Count documents by the state of their locks.",
    epilog=_examples('stats messages --filter \'{"status": "new"}\'', "stats messages --json"),
)
@target_options
@_json
def stats(target: Target, *, as_json: bool) -> int:
    """Count the documents of COLLECTION by the state of their locks, and show who holds the most.

    Each state is counted up to 100,000.
    """
    counts = counting.count(target.locked, target.now)
    numbers = {
        "claimable": counts.claimable,
        "waiting": counts.waiting,
        "held": counts.held,
        "overdue": counts.overdue,
        "dead letters": counts.dead_letters,
        "unreadable": counts.unreadable,
    }
    holders = [
        {"by": one.by, "held": one.held, "until": one.until, "left": _seconds(target.now, one.until)}
        for one in counts.holders
    ]
    if as_json:
        named = {name.replace(" ", "_"): number for name, number in numbers.items()}
        print_json({"collection": target.name, **named, "holders": holders})
        return SUCCEEDED
    print_fields(numbers)
    if holders:
        click.echo()
        print_records(holders, "")
    return SUCCEEDED


@claims.command(
    short_help="List held documents.",
    epilog=_examples('held messages --filter \'{"status": "new"}\'', "held messages --limit 5 --json"),
)
@target_options
@_limit
@_json
def held(target: Target, *, limit: int, as_json: bool) -> int:
    """List documents of COLLECTION that are held: by whom, and until when unless the lock is renewed.

    A lock that ended some seconds ago has a dead holder. Another instance takes it away, if one runs.
    """
    found = rescuing.observe(target.locked, limit)
    _print_list(
        [
            {
                "id": text_of_id(one.id),
                "by": one.lock.by,
                "until": one.lock.until,
                "left": None if one.lock.until is None else _seconds(target.now, one.lock.until),
                "attempts": one.lock.tries,
                "holder": "instance" if one.lock.is_ours else "other program",
            }
            for one in found
        ],
        f"no document of {target.name} is held",
        as_json=as_json,
    )
    return SUCCEEDED


@claims.command(
    "dead-letters",
    short_help="List documents with no attempts left.",
    epilog=_examples('dead-letters messages --filter \'{"status": "new"}\'', "dead-letters messages --json"),
)
@target_options
@_limit
@_json
def dead_letters_(target: Target, *, limit: int, as_json: bool) -> int:
    """List documents of COLLECTION whose attempts are used up, with their last errors."""
    found = listing_and_readmitting.listed(target.locked, limit)
    _print_list(
        [{"id": text_of_id(one.id), "attempts": one.lock.tries, "error": one.lock.error} for one in found],
        f"{target.name} has no dead letters",
        as_json=as_json,
    )
    return SUCCEEDED


@claims.command(
    short_help="Make dead letters claimable again.",
    epilog=_examples(
        "readmit messages 65f1c0ffee0123456789abcd", "readmit messages --all --dry-run", "readmit messages --all --yes"
    ),
)
@target_options
@click.argument("ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="All dead letters that match the filter. Needs --yes.")
@click.option("--dry-run", is_flag=True, help="Show how many would change, and change nothing.")
@click.option("--yes", is_flag=True, help="Confirm --all.")
@_json
def readmit(target: Target, *, ids: tuple[str, ...], every: bool, dry_run: bool, yes: bool, as_json: bool) -> int:
    """Make dead letters of COLLECTION claimable again, with all their attempts.

    An ID is an ObjectId of 24 digits, or another value as extended JSON, or text. Documents that are not dead letters
    do not change.
    """
    if bool(ids) == every:
        raise click.UsageError("give the ids of documents, or --all")
    if every and not (dry_run or yes):
        raise click.UsageError("--all needs --yes, or --dry-run to see how many would change")
    chosen = None if every else [id_in(one) for one in dict.fromkeys(ids)]
    if dry_run:
        number = counting.count_dead_letters(target.locked, chosen)
    else:
        number = listing_and_readmitting.readmit(target.locked, chosen)
    if as_json:
        print_json({"collection": target.name, "count": number, "dry_run": dry_run})
    else:
        letters = counted(number, "dead letter")
        what = "would be" if dry_run else "is" if number == 1 else "are"
        click.echo(f"{letters} of {target.name} {what} claimable again")
    if chosen is not None and number < len(chosen):
        warn(f"{len(chosen) - number:,} of the given documents are not dead letters, or do not exist")
        return CHECK_FAILED
    return SUCCEEDED


# --- What is printed ---


def _seconds(now: datetime, until: datetime) -> float:
    return round((until - now) / timedelta(seconds=1), 1)


def _print_list(records: Sequence[Mapping[str, Any]], empty: str, *, as_json: bool) -> None:
    if as_json:
        print_json(records)
    else:
        print_records(records, empty)
