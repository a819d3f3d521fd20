"""Each recipe is a short page whose program runs, and prints what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from tests.support.pages import DOCS, rows
from tests.support.programs import fenced_blocks, run_program
from trio_monque.cli.program import program
from trio_monque.embedded import EmbeddedServer
from trio_monque.options_and_defaults import SchedulerConfig
from trio_monque.store.driver.types import Database

RECIPES = sorted((DOCS / "recipes").glob("*.md"))


@pytest.mark.full
@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_program_prints_what_its_page_says(mongod: EmbeddedServer, db: Database, tmp_path: Path, page: Path) -> None:
    (program,), (printed,) = fenced_blocks(page, "python"), fenced_blocks(page, "text")
    file = tmp_path / "recipe.py"
    file.write_text(program, encoding="utf-8")
    assert run_program("-W", "error", str(file), uri=mongod.uri, database=db.name) == printed


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_page_is_short_and_begins_with_the_answer_and_its_program(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    assert 40 <= len(lines) <= 120
    before, _, _ = "\n".join(lines).partition("```python")
    assert len(before.splitlines()) <= 6, "the answer is one or two sentences, and the program follows"
    assert len(fenced_blocks(page, "python")) == len(fenced_blocks(page, "text")) == 1


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_commands_and_their_options_exist(page: Path) -> None:
    for name, rest in re.findall(r"trio-monque ([a-z]+)((?: --?[\w-]+(?: [^-`\s#]+)?)*)", page.read_text("utf-8")):
        _, command, _ = program.resolve_command(click.Context(program), [name])
        assert command is not None
        known = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= known, (name, rest)


def test_limits_of_long_jobs_are_the_defaults() -> None:
    table = {row[0].split("`")[1]: row[1] for row in rows("recipes/checkpoints.md", "## How long") if "`" in row[0]}
    defaults = SchedulerConfig()
    assert (defaults.lock_timeout, defaults.shutdown_timeout) == (1800, 30)
    assert (table["lock_timeout"], table["shutdown_timeout"], table["timeout"]) == ("1,800 s", "30 s", "none")


def test_contents_have_every_recipe() -> None:
    listed = re.findall(
        r"^- \[[^\]]+\]\(recipes/([\w-]+)\.md\)", (DOCS / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(listed) == [page.stem for page in RECIPES]
    assert len(RECIPES) == 13
