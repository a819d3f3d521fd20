"""The pages of the group Migrate: our side of each is code that runs, and names and defaults that exist."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Final

import pytest

import trio_monque.events
from tests.support.pages import DOCS, rows
from tests.support.programs import ROOT, fenced_blocks, quoted_blocks
from trio_monque import Monque, Scheduler
from trio_monque.options_and_defaults import SchedulerConfig

PROGRAMS: Final = {
    "move-from-monque.md": "from_monque.py",
    "move-from-agenda.md": "from_agenda.py",
    "move-from-pulse-and-sidequest.md": "from_sidequest.py",
    "move-from-celery.md": "from_celery.py",
    "move-from-apscheduler.md": "from_apscheduler.py",
    "move-from-procrastinate.md": "from_procrastinate.py",
    "move-from-arq.md": "from_arq.py",
}
MONQUE: Final = "how-to/move-from-monque.md"
NODE_EVENTS: Final = (  # `MonqueEventMap` of @monque/core 1.10.1.
    *("job:start", "job:complete", "job:fail", "job:error", "stale:recovered"),
    *("changestream:connected", "changestream:error", "changestream:closed", "changestream:fallback"),
    *("job:cancelled", "job:retried", "job:deleted", "jobs:cancelled", "jobs:retried", "jobs:deleted"),
)
NODE_OPTIONS: Final = (  # `MonqueOptions` of the same.
    *("collectionName", "pollInterval", "maxRetries", "baseRetryInterval", "maxBackoffDelay", "shutdownTimeout"),
    *("workerConcurrency", "defaultConcurrency", "lockTimeout", "schedulerInstanceId", "heartbeatInterval"),
    *("recoverStaleJobs", "jobRetention", "instanceConcurrency", "maxConcurrency", "skipIndexCreation"),
    *("maxPayloadSize", "statsCacheTtlMs", "safetyPollInterval"),
)
TEXTS: Final = {
    "'monque_jobs'": '`"monque_jobs"`',
    "1.0": "1 s",
    "5.0": "5 s",
    "30.0": "30 s",
    "1800.0": "1,800 s",
    "86400.0": "a day",
    "5": "5",
    "10": "10",
    "True": "on",
    "False": "off",
}
"""How the page writes each default."""


def page(name: str) -> Path:
    return DOCS / "how-to" / name


@pytest.mark.parametrize("name", PROGRAMS)
def test_page_shows_our_side_as_a_program_that_runs_and_names_the_version_of_the_other(name: str) -> None:
    assert f"examples/migrate/{PROGRAMS[name]}" in [file for file, _ in quoted_blocks(page(name))]
    text = page(name).read_text(encoding="utf-8")
    assert re.search(r"^This page was compared with .*\d+\.\d+", text, re.MULTILINE)
    # Code that is not quoted is of the other library: no test can run it.
    own = [block for block in fenced_blocks(page(name), "python") if re.search(r"(import|from) trio_monque", block)]
    assert own == []


def test_every_page_of_the_group_is_in_the_index() -> None:
    group = (DOCS / "index.md").read_text(encoding="utf-8").partition("### Migrate")[2].partition("###")[0]
    listed = set(re.findall(r"\(how-to/(move-from-[\w-]+)\.md\)", group))
    assert listed == {path.stem for path in (DOCS / "how-to").glob("move-from-*.md")}
    assert {f"{name}.md" for name in listed} == {*PROGRAMS, "move-from-monque-management.md"}


def test_every_program_and_script_for_those_who_move_is_on_a_page() -> None:
    quoted = {Path(file).name for name in PROGRAMS for file, _ in quoted_blocks(page(name))}
    assert quoted == {path.name for path in (ROOT / "examples/migrate").glob("*.py")}


def table(heading: str, following: str) -> Sequence[Sequence[str]]:
    of_both, of_later = rows(MONQUE, heading), rows(MONQUE, following)
    return of_both[: len(of_both) - len(of_later)]


def test_events_of_node_have_their_class_here() -> None:
    events = table("## Events", "## What does not")
    assert sorted(re.findall(r"`([\w:]+:\w+)`", "".join(row[0] for row in events))) == sorted(NODE_EVENTS)
    assert set(re.findall(r"`(\w+)`", "".join(row[1] for row in events))) <= set(trio_monque.events.__all__)


def test_options_of_node_have_their_option_here_with_its_default() -> None:
    options = table("## Options", "## Events")
    assert sorted(re.findall(r"`(\w+)`", "".join(row[0] for row in options))) == sorted(NODE_OPTIONS)
    defaults = {field.name: field.default for field in fields(SchedulerConfig)}
    defaults |= dict.fromkeys((name for name, default in defaults.items() if default is MISSING))
    for _, ours, default in options:
        names = re.findall(r"`(\w+)", ours)
        assert set(names) <= set(defaults)
        texts = [TEXTS[repr(defaults[name])] for name in names if defaults[name] is not None]
        assert texts == [] or default == ", ".join(texts)


def test_methods_that_take_the_place_of_those_of_node_exist() -> None:
    methods = {name for row in table("## Methods", "## Options") for name in re.findall(r"`(\w+_jobs?\w*)", row[1])}
    assert len(methods) > 9
    assert [name for name in methods if not hasattr(Monque, name) and not hasattr(Scheduler, name)] == []
