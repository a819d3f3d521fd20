"""`--dashboard` and its flags: a dashboard that the process serves which the operator has started."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import click

from ...options_and_defaults import SchedulerOptions
from ..connection_options import Connection
from ..dashboard.reach import LOOPBACK, check_reach, missing_library
from .http_server import Address


@dataclass(frozen=True)
class DashboardFlags:
    """What was given.

    Attributes:
        address: Where it is served; None for nowhere.
        read_only, no_token, i_know_who_can_reach_it: Its flags.
    """

    address: Address | None
    read_only: bool
    no_token: bool
    i_know_who_can_reach_it: bool

    def check(self) -> None:
        """Raise click.UsageError if they do not fit each other."""
        if self.address is not None:
            check_reach(
                self.address,
                read_only=self.read_only,
                no_token=self.no_token,
                i_know_who_can_reach_it=self.i_know_who_can_reach_it,
                prefix="dashboard-",
            )
        elif self.read_only or self.no_token or self.i_know_who_can_reach_it:
            problem = "--dashboard-read-only, --dashboard-no-token and --i-know-who-can-reach-it need --dashboard"
            raise click.UsageError(problem)

    def served(self, connection: Connection, options: SchedulerOptions) -> AbstractContextManager[None]:
        """Serve it for as long as the block, of the jobs that the scheduler has.

        Raises:
            MonqueError: Its libraries are not installed, or it cannot listen at the address.
        """
        if self.address is None:
            return nullcontext()
        try:
            # Only here: starlette, jinja2 and hypercorn are extras.
            from ..dashboard.dashboard_thread import dashboard_beside
            from ..dashboard.serving import DashboardOptions
        except ModuleNotFoundError as error:
            raise missing_library(error) from None
        chosen = DashboardOptions(
            collection=options.get("collection_name"),
            operation_timeout=options.get("operation_timeout"),
            read_only=self.read_only,
            has_link=not self.no_token,
            is_local=self.address.host in LOOPBACK,
        )
        return dashboard_beside(connection, self.address, chosen)
