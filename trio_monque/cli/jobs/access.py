"""The options of every command about jobs, and the client that it works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import wraps
from typing import Concatenate, Final, ParamSpec, TypeVar

import click

from ...client.client_context import ClientContext
from ...client.monque import Monque
from ...client.sync_monque import SyncMonque
from ...error_types import InvalidJobIdentifierError, InvalidOptionError
from ...options_and_defaults import ClientOptions, client_config
from ...store.driver.types import Database
from ...store.job_collection import JobCollection
from ..connection_options import Connection, connection_options
from ..parameters import operation_timeout_option

_SPELLED: Final = {"collection_name": "collection"}

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True)
class JobsAccess:
    """The jobs that a command works on.

    Attributes:
        client: For looks and changes. It creates no indexes: after a typing error, not even a collection.
        producer: For operations on new jobs. It creates the indexes that are missing, as a program would.
        as_json: Print JSON.
    """

    client: SyncMonque
    producer: ClientContext
    as_json: bool
    _context: ClientContext

    @property
    def name(self) -> str:
        """The database and the collection."""
        return str(self.jobs.collection.full_name)

    @property
    def jobs(self) -> JobCollection:
        """The collection."""
        return self._context.jobs

    def now(self) -> datetime:
        """Return the server's time."""
        return self._context.now()


def jobs_options(function: Callable[Concatenate[JobsAccess, P], R]) -> Callable[P, R]:
    """Add the options to a command, which gets a JobsAccess as its first argument."""

    @connection_options
    @click.option("--collection", metavar="NAME", help="The collection of the jobs. (default: monque_jobs)")
    @operation_timeout_option
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @wraps(function)
    def command(connection: Connection, /, *args: P.args, **options: P.kwargs) -> R:
        collection, operation_timeout, as_json = (
            options.pop(name) for name in ("collection", "operation_timeout", "as_json")
        )
        chosen: ClientOptions = {"stats_cache_ttl": 0.0}
        if isinstance(collection, str):
            chosen["collection_name"] = collection
        if isinstance(operation_timeout, float):
            chosen["operation_timeout"] = operation_timeout
        with invalid_options(), connection.open() as database:
            return function(_access(database, chosen, as_json=bool(as_json)), *args, **options)

    return command


def _access(database: Database, chosen: ClientOptions, *, as_json: bool) -> JobsAccess:
    looking: ClientOptions = {**chosen, "skip_index_creation": True}
    producer = ClientContext.of(database, client_config(chosen))
    producer.unserved.turn_off()  # The commands warn in lines of their own: the log would say it twice.
    return JobsAccess(
        client=Monque(database, **looking).sync,
        producer=producer,
        as_json=as_json,
        _context=ClientContext.of(database, client_config(looking)),
    )


@contextmanager
def invalid_options(**renamed: str) -> Iterator[None]:
    """Raise the library's error of an invalid option as one of the command, which spells options otherwise.

    Args:
        renamed: What the command calls an option of the library, where it has another name for it.
    """
    try:
        yield
    except InvalidOptionError as error:
        names = _SPELLED | renamed
        option = f"--{names.get(error.option, error.option).replace('_', '-')}"
        raise click.UsageError(str(error).replace(error.option, option, 1)) from None
    except InvalidJobIdentifierError as error:
        raise click.UsageError(str(error)) from None
