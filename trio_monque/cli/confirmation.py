"""Asks before many things change at once."""

from __future__ import annotations

import sys

import click


def confirm(question: str, *, yes: bool) -> None:
    """Return if the user agrees, with `--yes` or in the terminal.

    Raises:
        click.UsageError: Nothing can be asked without a terminal.
        click.Abort: The user does not agree.
    """
    if yes:
        return
    require_terminal()
    click.confirm(question, abort=True, err=True)


def require_terminal() -> None:
    """Raise click.UsageError where nothing can be asked."""
    if sys.stdin is None or not sys.stdin.isatty():
        raise click.UsageError("without a terminal, give --yes to confirm, or --dry-run to see what would change")
