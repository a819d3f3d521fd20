"""Who can reach a dashboard that a command serves: the flags that must be given with an address. Pure."""

from __future__ import annotations

from typing import Final

import click

from ...error_types import MonqueError
from ..run.http_server import Address

LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


def check_reach(
    address: Address, *, read_only: bool, no_token: bool, i_know_who_can_reach_it: bool, prefix: str = ""
) -> None:
    """Raise click.UsageError if the flags do not fit the address.

    Args:
        address: Where the command listens.
        read_only, no_token, i_know_who_can_reach_it: As they were given.
        prefix: What the flags begin with in this command.
    """
    if no_token and not read_only:
        problem = f"--{prefix}no-token lets in anyone who can reach the address: it needs --{prefix}read-only"
        raise click.UsageError(problem)
    if address.host not in LOOPBACK and not i_know_who_can_reach_it:
        problem = f"other machines may reach {address}: use a loopback address, or add --i-know-who-can-reach-it"
        raise click.UsageError(problem)


def missing_library(error: ModuleNotFoundError) -> MonqueError:
    """Return the error of a command whose extra is not installed."""
    return MonqueError(f"the dashboard needs {error.name}: python -m pip install starlette jinja2 'hypercorn[trio]'")
