"""`trio-monque dashboard`: its arguments."""

from __future__ import annotations

import click
import trio

from ...log import logger_of
from ...safe_text import uri_without_secrets
from ..connection_options import Connection, connection_options
from ..exit_statuses import SUCCEEDED
from ..jobs.access import invalid_options
from ..log_output import log_options
from ..parameters import operation_timeout_option
from ..run.http_server import Address, AddressType
from .reach import LOOPBACK, check_reach, missing_library

logger = logger_of("cli")

PORT = 8713

_EXAMPLES = """\b
Examples:
  trio-monque dashboard --uri mongodb://localhost/shop
  trio-monque dashboard --read-only
  trio-monque dashboard --listen 127.0.0.1:9000 --environment production
"""


@click.command(short_help="Show the jobs in a browser.", epilog=_EXAMPLES)
@connection_options
@click.option("--collection", metavar="NAME", help="The collection of the jobs. (default: monque_jobs)")
@click.option(
    "--listen",
    type=AddressType(),
    default=f"127.0.0.1:{PORT}",
    metavar="HOST:PORT",
    help=f"Where to listen (default: 127.0.0.1:{PORT}); port 0 picks a free one.",
)
@click.option("--read-only", is_flag=True, help="Refuse all changes.")
@click.option("--no-token", is_flag=True, help="Let in anyone who can reach the address; only with --read-only.")
@click.option("--i-know-who-can-reach-it", is_flag=True, help="Listen on an address that other machines can reach.")
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="FIELD",
    help="Offer a filter by this field, such as meta.tenant or data.to.",
)
@click.option("--environment", metavar="TEXT", help='Shown on every page, such as "production".')
@operation_timeout_option
@log_options
def dashboard(
    connection: Connection,
    *,
    collection: str | None,
    listen: Address,
    read_only: bool,
    no_token: bool,
    i_know_who_can_reach_it: bool,
    filters: tuple[str, ...],
    environment: str | None,
    operation_timeout: float | None,
) -> int:
    """Serve the dashboard until Ctrl-C or SIGTERM, and print the link to open it with.

    The link is for one browser, within ten minutes; it stays signed in for twelve hours, or until the command ends. The
    log has a line for each change. To give others a dashboard, mount it in a web service behind its login.

    Exit status: 0 after Ctrl-C or SIGTERM, 2 if it cannot be served.
    """
    check_reach(listen, read_only=read_only, no_token=no_token, i_know_who_can_reach_it=i_know_who_can_reach_it)
    # First of all: on a slow machine, the imports and the first answer of the database take many seconds.
    logger.info("connecting to %s", uri_without_secrets(connection.uri))
    try:
        from .serving import DashboardOptions, serve  # Only here: starlette, jinja2 and hypercorn are extras.
    except ModuleNotFoundError as error:
        raise missing_library(error) from None
    options = DashboardOptions(
        collection=collection,
        operation_timeout=operation_timeout,
        read_only=read_only,
        has_link=not no_token,
        is_local=listen.host in LOOPBACK,
        filters=filters,
        environment=environment,
    )
    with invalid_options(filters="filter"), connection.open() as database:
        trio.run(serve, database, listen, options)
    return SUCCEEDED
