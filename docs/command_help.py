"""Writes the help of each command into the reference: `python -m docs.command_help`. A test compares the two."""

from __future__ import annotations

import re
from pathlib import Path

import click

from trio_monque.cli.program import PROGRAM, program

INDEX = Path(__file__).parent / "reference" / "command-line.md"
PAGES = (INDEX, *sorted(INDEX.with_suffix("").glob("*.md")))
WIDTH = 100


def help_of(command_line: str) -> str:
    """Return what `COMMAND --help` prints in a terminal of that width."""
    command: click.Command = program
    context = click.Context(command, info_name=PROGRAM, terminal_width=WIDTH)
    for name in command_line.split()[1:]:
        assert isinstance(command, click.Group), command_line
        _, found, _ = command.resolve_command(context, [name])
        assert found is not None, name
        context, command = click.Context(found, context, info_name=name, terminal_width=WIDTH), found
    return command.get_help(context)


def updated(page: str) -> str:
    """Return the page with the help of today in each block that follows `<!-- help of COMMAND -->`."""
    return re.sub(
        r"(<!-- help of (.+?) -->\n```text\n).*?(?=^```$)",
        lambda found: f"{found[1]}{help_of(found[2])}\n",
        page,
        flags=re.MULTILINE | re.DOTALL,
    )


if __name__ == "__main__":
    for one in PAGES:
        one.write_text(updated(one.read_text(encoding="utf-8")), encoding="utf-8")
