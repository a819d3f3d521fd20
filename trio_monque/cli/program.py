"""Finds the command, runs it, and returns its exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import metadata

from ..errors import EmbeddedServerError, MonqueError
from . import server
from .demo import command as demo
from .exit_statuses import FAILED, INTERRUPTED, SUCCEEDED

_COMMANDS = (demo, server)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status. Invalid arguments raise SystemExit, as argparse does.

    An error of this library ends in one line on standard error; any other is a bug and keeps its traceback.
    """
    parser, commands = _parser()
    _check_options(commands, sys.argv[1:] if argv is None else argv)
    arguments = parser.parse_args(argv)
    if not hasattr(arguments, "run"):
        parser.print_help()
        return SUCCEEDED
    errors: list[MonqueError] = []
    try:
        return int(arguments.run(arguments))
    except* MonqueError as group:
        errors.extend(_leaves(group))
    except* KeyboardInterrupt:  # Not handled by the command, for example during an import.
        pass
    if not errors:
        return INTERRUPTED
    # Several parts of a program may fail for one cause, such as a lost server: the first error is enough.
    print(f"trio-monque: {_in_one_line(errors[0])}", file=sys.stderr)
    return FAILED


def _parser() -> tuple[argparse.ArgumentParser, Mapping[str, argparse.ArgumentParser]]:
    """The parser, and those of the commands by their names."""
    parser = argparse.ArgumentParser(prog="trio-monque", description="Background jobs for trio programs on MongoDB.")
    parser.add_argument("--version", action="version", version=f"trio-monque {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="command")
    for command in _COMMANDS:
        command.add_to(commands)
    return parser, commands.choices


def _check_options(commands: Mapping[str, argparse.ArgumentParser], argv: Sequence[str]) -> None:
    """Check for unknown options. argparse would take the value of an unknown option for another argument."""
    name = next((one for one in argv if one in commands), None)
    if name is None:
        return
    parser = commands[name]
    known = [option for action in parser._actions for option in action.option_strings]  # noqa: SLF001
    for argument in argv[argv.index(name) + 1 :]:
        option = argument.partition("=")[0]
        if argument == "--":
            return
        if option.startswith("--") and not any(one.startswith(option) for one in known):  # It may be abbreviated.
            near = get_close_matches(option, known, 1)
            parser.error(f"unknown option {option}" + (f": did you mean {near[0]}?" if near else ""))


def _version() -> str:
    try:
        return metadata.version("trio-monque")
    except metadata.PackageNotFoundError:
        return "(a source tree that is not installed)"


def _leaves(group: BaseExceptionGroup[MonqueError]) -> Iterator[MonqueError]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _in_one_line(error: MonqueError) -> str:
    if isinstance(error, EmbeddedServerError) and error.log_tail:
        return str(error)  # Only the last lines of the server's log say why it did not start.
    return " ".join(str(error).split())
