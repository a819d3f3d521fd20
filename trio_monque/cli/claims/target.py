"""The argument and options that name a collection with locks: COLLECTION, `--filter`, `--lock-field`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import click

from ...claims.options_and_defaults import check_filter, check_lock_field
from ...client.server_time import ServerTime
from ...error_types import InvalidOptionError, MissingIndexError
from ...safe_text import shown
from ...store.connection import collection_of
from ...store.documents import indexes
from ...store.documents.locked_collection import LockedCollection
from ...store.extended_json import filter_in
from ..connection import Connection, connection_options
from ..parameters import operation_timeout_option

P = ParamSpec("P")
R = TypeVar("R")


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
    @click.option("--allow-scan", is_flag=True, help="Read a large collection although no index serves the filter.")
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
