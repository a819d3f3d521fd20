"""LazyCommands: a group of commands that imports the module of a command when the command runs, and not before.

The commands import trio, pymongo and rich, which takes a second of processor time. The help of the group and the
completion of command names need only what the table says of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import cast

import click


class CommandEntry(click.Command):
    """What the help of the group shows of a command.

    Attributes:
        module: Relative to this package; it has the command under its name.
    """

    def __init__(self, name: str, module: str, short_help: str) -> None:
        super().__init__(name, short_help=short_help)
        self.module = module

    def loaded(self) -> click.Command:
        """Import the command."""
        return cast("click.Command", getattr(import_module(self.module, __package__), self.name or ""))


class LazyCommands(click.Group):
    """A group of such commands, in the order of the alphabet, as in any group of click."""

    def add_entries(self, entries: Iterable[CommandEntry]) -> None:
        for entry in entries:
            self.add_command(entry)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that runs, or whose arguments a shell completes."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, found.loaded() if isinstance(found, CommandEntry) else found, rest
