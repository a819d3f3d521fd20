"""The options that name the database, for every command that needs one: `--uri`, `--uri-file`, `--database`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import click
from click.core import ParameterSource

from ..store.driver.connection import open_database
from ..store.driver.types import Database

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Connection:
    """Which database a command uses.

    Attributes:
        uri: The connection string.
        database: The database; None for the one that the connection string names.
    """

    uri: str = field(repr=False)  # It may hold a password.
    database: str | None

    def open(self) -> AbstractContextManager[Database]:
        """Open the database, and close its client at the end. The client connects when it is used first."""
        return open_database(self.uri, self.database)


def connection_options(function: Callable[Concatenate[Connection, P], R]) -> Callable[P, R]:
    """Add the options to a command, which gets a Connection as its first argument."""

    @click.option(
        "--uri",
        envvar="MONQUE_URI",
        show_envvar=True,
        help="The MongoDB connection string. It is visible in the process list: if it contains a "
        "password, prefer --uri-file or the variable.",
    )
    @click.option(
        "--uri-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        metavar="FILE",
        help="Read the connection string from this file.",
    )
    @click.option("--database", metavar="NAME", help="The database, if not the one in the connection string.")
    @wraps(function)
    def command(*args: P.args, **options: P.kwargs) -> R:
        uri, file, database = (options.pop(name) for name in ("uri", "uri_file", "database"))
        assert isinstance(uri, str | None)
        assert isinstance(file, Path | None)
        assert isinstance(database, str | None)
        return function(Connection(_chosen(uri, file), database), *args, **options)

    return command


def _chosen(uri: str | None, file: Path | None) -> str:
    if file is not None:
        if click.get_current_context().get_parameter_source("uri") is ParameterSource.COMMANDLINE:
            raise click.UsageError("give --uri or --uri-file, not both")
        try:
            uri = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise click.UsageError(f"cannot read --uri-file {file}: {type(error).__name__}") from None
    if not uri:
        raise click.UsageError("no connection string: give --uri, --uri-file or MONQUE_URI")
    return uri
