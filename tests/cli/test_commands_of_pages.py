"""Each command line in the documentation is one that the command takes: its commands, options and arguments exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import pytest

from tests.support.pages import PAGES
from tests.support.programs import ROOT, fenced_blocks
from trio_monque.cli.program import PROGRAM, program

LINE: Final = re.compile(r"^(?:\$ |[A-Z_]+=\S+ )*trio-monque +(.*)$")
FILES: Final = re.compile(r"(?:--uri-file|--data-file)[= ](\S+)")


def of_blocks() -> Iterator[tuple[str, str]]:
    """Each page and command line of its blocks."""
    for page in (ROOT / "README.md", *PAGES):
        for block in (block for language in ("", "console", "bash") for block in fenced_blocks(page, language)):
            for line in block.replace("\\\n", " ").splitlines():
                if found := LINE.match(line):
                    yield page.stem, found[1]


def of_text() -> Iterator[tuple[str, str]]:
    """Each page and command that its text names, perhaps without its arguments."""
    for page in (ROOT / "README.md", *PAGES):
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        yield from ((page.stem, line) for line in re.findall(r"`trio-monque ([a-z][^`…|]*)`", text))


def found_command(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that is meant, and what follows its name."""
    command: click.Command = program
    rest = list(words)
    while isinstance(command, click.Group) and rest:
        _, found, rest = command.resolve_command(click.Context(command, info_name=PROGRAM), rest)
        assert found is not None, f"there is no command {' '.join(words)}"
        command = found
    return command, rest


@pytest.mark.parametrize("line", sorted({line for _, line in of_blocks()}))
def test_command_line_is_taken(line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("{}", encoding="utf-8")
    for name in FILES.findall(line):
        line = line.replace(name, str(tmp_path / "file"))
    command, rest = found_command(shlex.split(line.partition(" &")[0], comments=True))
    command.make_context(command.name, rest)


def test_commands_that_the_text_names_exist() -> None:
    named = sorted({line for _, line in of_text()})
    assert len(named) > 20
    for line in named:
        words = shlex.split(line)
        command, rest = found_command(words)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert {word.partition("=")[0] for word in rest if word.startswith("--")} <= known, line


def test_option_that_does_not_exist_would_be_noticed() -> None:
    command, rest = found_command(["jobs", "--state", "failed"])
    with pytest.raises(click.NoSuchOption):
        command.make_context(command.name, rest)
