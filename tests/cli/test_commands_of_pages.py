"""Each command line in the documentation is right: its commands, options, files, extras and recipes exist."""

from __future__ import annotations

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import click
import pytest

from tests.support.pages import PAGES
from tests.support.programs import ROOT, fenced_blocks
from trio_monque.cli.program import PROGRAM, program

LINE: Final = re.compile(r"^(?:\$ |[A-Z_]+=\S+ )*trio-monque +(.*)$")
SHELLS: Final = ("", "console", "bash", "sh")
# Programs whose arguments are not ours to check.
OTHERS: Final = frozenset(
    {"apt-get", "curl", "docker", "export", "journalctl", "mongodump", "mongorestore", "systemctl"}
)
EXTRAS: Final = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"].keys()
RECIPES: Final = set(re.findall(r"^(\w+)[^\n=]*:", (ROOT / "justfile").read_text("utf-8"), re.MULTILINE))
FILES: Final = re.compile(r"(?:--uri-file|--data-file)[= ](\S+)")


def shell_lines() -> Iterator[tuple[str, str]]:
    """Each page and line of its blocks in a shell's language. Blocks without a language are for a shell, too."""
    for page in (ROOT / "README.md", *PAGES):
        for block in (block for language in SHELLS for block in fenced_blocks(page, language)):
            for line in block.replace("\\\n", " ").splitlines():
                if line.partition("#")[0].strip():
                    yield page.relative_to(ROOT).as_posix(), line


def of_blocks() -> Iterator[tuple[str, str]]:
    """Each page and command line of `trio-monque` in its blocks."""
    for page, line in shell_lines():
        if found := LINE.match(line):
            yield page, found[1]


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


def what_is_missing(page: str, line: str) -> str | None:
    """Return what a line of a page names that does not exist: a program, a file, a module, an extra, a recipe."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    files = [
        word.partition(":")[0] for word in words if re.fullmatch(r"[\w/.-]+\.py(:\w+)?|(tests|examples)/[\w/.-]+", word)
    ]
    of_the_page = re.findall(r"^# (\w+\.py)$", (ROOT / page).read_text("utf-8"), re.MULTILINE)
    match words:
        case ["trio-monque" | "$", *_]:
            return None  # The test above takes the line apart.
        case ["python" | "python3", "-m", "venv", *_]:
            return None
        case ["python", "-m", "pip", "install", *packages]:
            extras = {extra for one in packages for found in re.findall(r"\[(.+)\]", one) for extra in found.split(",")}
            own = [one for one in packages if one.startswith((".", "path/to"))]
            return ", ".join(extras - EXTRAS) if own else None
        case ["python", "-m", module, *_] if importlib.util.find_spec(module) is None:
            return module
        case ["just", recipe, *_] if recipe not in RECIPES:
            return recipe
        case ["python" | "just" | "pytest" | "uvicorn" | "hypercorn", *_]:
            lost = [name for name in files if not (ROOT / name).exists() and name not in of_the_page]
            return ", ".join(lost) or None
        case [program, *_]:
            return None if program in OTHERS else program
        case _:
            return None


def test_other_lines_of_shells_name_what_exists() -> None:
    missing = {(page, line): what_is_missing(page, line) for page, line in shell_lines()}
    assert len(missing) > 60
    assert {place: what for place, what in missing.items() if what} == {}


@pytest.mark.parametrize(
    ("line", "missing"),
    [
        ("just benchmark --quick", "benchmark"),
        ("python -m trio_monque.nothing", "trio_monque.nothing"),
        ("python examples/nothing.py", "examples/nothing.py"),
        ("MONQUE_TEST_FULL=1 pytest tests/nothing", "tests/nothing"),
        ('python -m pip install ".[cli,nothing]"', "nothing"),
        ("the output of a program", "the"),
    ],
)
def test_line_that_names_what_does_not_exist_would_be_noticed(line: str, missing: str) -> None:
    assert what_is_missing("README.md", line) == missing


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
