"""The page on troubleshooting has each reason of `health()` and each finding of the doctor, and its commands run.

The reasons come from the source: each text of the functions that give reasons, with an ellipsis for each value.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Final

import pytest

from docs.doctor_findings import PAGE, updated
from tests.support.pages import rows
from tests.support.programs import ROOT, fenced_blocks, uri_of_database
from trio_monque import Monque
from trio_monque.cli.program import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.errors import InstanceCollisionError
from trio_monque.store.driver.types import Database

PACKAGE: Final = ROOT / "trio_monque"
ON_PAGE: Final = "how-to/troubleshoot.md"

# The functions whose texts are reasons. Reasons that are made elsewhere would need an entry: see the test below.
OF_HEALTH: Final = {
    "engine/progress.py": {"complaint"},
    "engine/vitals.py": {"unrenewed", "examine", "_reasons"},
    "engine/handler_tasks.py": {"complaints"},
    "bridge/bridged_handler_loop.py": {"complaints"},
    "host/log_lines_of_jobs_and_documents.py": {"complaints"},
    "scheduler/events_and_report.py": {"complaints"},
}
OF_RUN: Final = {"cli/run/health_answers.py": {"report_of_worker", "known", "each"}}
OF_WARNINGS: Final = {
    "host/health.py": {"_about_threads"},
    "scheduler/events_and_report.py": {"_count_ended_schedule"},
    "scheduler/scheduler_client.py": {"_left_to_others"},
}

# What a function returns that has no text of its own.
ELSEWHERE: Final[Mapping[tuple[str, str], Callable[[], str]]] = {
    ("scheduler/events_and_report.py", "complaints"): lambda: str(InstanceCollisionError("…", "…")).replace("'…'", "…"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(path: Path) -> Iterator[Function]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, Function):
            yield node


def texts(function: Function) -> Set[str]:
    """Its texts of several words, with the texts of local names in their places."""
    documentation = ast.get_docstring(function, clean=False)
    nodes = [node for statement in function.body for node in ast.walk(statement)]
    local: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_text(node.value):
            local[node.targets[0].id] = _template(node.value, {})
    parts = {id(value) for node in nodes if isinstance(node, ast.JoinedStr) for value in node.values}
    found = {_template(node, local) for node in nodes if _is_text(node) and id(node) not in parts} - {documentation}
    pieces = {text for text in local.values() if any(text in other and text != other for other in found)}
    return {text for text in found - pieces if " " in text and re.search(r"[a-z]{2}", text)}


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _template(node: ast.AST, local: Mapping[str, str]) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    assert isinstance(node, ast.JoinedStr)
    text = ""
    for part in node.values:
        if isinstance(part, ast.Constant):
            text += str(part.value)
        else:
            assert isinstance(part, ast.FormattedValue)
            named = part.value.id if isinstance(part.value, ast.Name) else ""
            text += local.get(named, "…")
    return text


def reasons(of: Mapping[str, Set[str]]) -> Set[str]:
    """The texts of these functions."""
    found: set[str] = set()
    for file, names in of.items():
        for function in functions(PACKAGE / file):
            if function.name in names:
                found |= texts(function)
        assert names <= {function.name for function in functions(PACKAGE / file)}, f"{file} has other functions now"
    return found | {text() for (file, name), text in ELSEWHERE.items() if name in of.get(file, ())}


def on_page(heading: str, following: str) -> list[str]:
    text = PAGE.read_text(encoding="utf-8")
    part = text.partition(heading)[2].partition(following)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [line.strip("|").split(" | ")[0].strip() for line in lines[2:]]


BY_RUN: Final = "`trio-monque run` adds these"
BY_WARNINGS: Final = "`health().warnings` lists"


@pytest.mark.parametrize(
    ("of", "heading", "following"),
    [
        pytest.param(OF_HEALTH, "## What health() says", BY_RUN, id="health"),
        pytest.param(OF_RUN, BY_RUN, BY_WARNINGS, id="run"),
        pytest.param(OF_WARNINGS, BY_WARNINGS, "## What the doctor finds", id="warnings"),
    ],
)
def test_page_has_each_reason_and_no_other(of: Mapping[str, Set[str]], heading: str, following: str) -> None:
    reported = on_page(heading, following)
    assert sorted(reported) == sorted(reasons(of))


def test_reasons_are_made_nowhere_else() -> None:
    """A new function that gives reasons belongs to the functions above, and its texts to the page."""
    named = {
        (str(path.relative_to(PACKAGE)), function.name)
        for path in PACKAGE.rglob("*.py")
        if "metrics" not in path.parts
        for function in functions(path)
        if re.fullmatch(r"_?(complain\w*|reasons|unrenewed)", function.name)
    }
    known = {(file, name) for file, names in OF_HEALTH.items() for name in names}
    assert named == known - {("engine/vitals.py", "examine")}
    makers = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if re.search(r"\bExamined\(|\breasons=", path.read_text(encoding="utf-8"))
    }
    # The first makes them, the second adds those of `complaints`, the third copies them.
    assert makers == {"engine/vitals.py", "host/host.py", "host/health.py"}


def test_functions_without_texts_of_their_own_are_known() -> None:
    silent = {
        (file, function.name)
        for file, names in OF_HEALTH.items()
        for function in functions(PACKAGE / file)
        if function.name in names and not texts(function) and not _returns_nothing(function)
    }
    assert silent == set(ELSEWHERE)


def _returns_nothing(function: Function) -> bool:
    """Whether it returns an empty tuple, or is a protocol's."""
    returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return all(isinstance(value, ast.Tuple) and not value.elts for value in returned)


def test_page_has_each_finding_of_the_doctor_and_no_other() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == updated(page), "run python -m docs.doctor_findings"


def test_findings_that_symptoms_name_exist() -> None:
    page = PAGE.read_text(encoding="utf-8")
    symptoms = page.partition("## What health() says")[0]
    findings = {row[0].strip("`") for row in rows(ON_PAGE, "## What the doctor finds")[1:]}
    assert len(findings) > 30
    named = set(re.findall(r"`([a-z]+(?:-[a-z]+)+)`", symptoms)) - {"trio-monque"}
    assert named
    assert named - findings == set()


def test_log_lines_that_symptoms_quote_are_on_the_page_on_logging() -> None:
    quoted = set(re.findall(r'log line "([^"]+)"', PAGE.read_text(encoding="utf-8")))
    assert len(quoted) > 5
    log = (ROOT / "docs/how-to/log.md").read_text(encoding="utf-8")
    assert {text for text in quoted if text not in log} == set()


def test_errors_of_a_start_that_the_page_quotes_are_in_the_code() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## A worker does not start")[2].partition("\n## ")[0]
    quoted = re.findall(r'"([^"]+)"', section)
    assert len(quoted) > 5
    code = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert [text for text in quoted if text not in code] == []


@pytest.mark.parametrize("page", ["troubleshoot", "run-in-production"])
def test_commands_of_the_page_run(
    mongod: EmbeddedServer, db: Database, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    job = Monque(db).sync.enqueue("send")
    monkeypatch.setenv("MONQUE_URI", uri_of_database(mongod.uri, db.name))
    commands = [shlex.split(line) for block in fenced_blocks(PAGE.with_stem(page), "") for line in block.splitlines()]
    ours = {tuple(words[1:]) for words in commands if words[0] == "trio-monque"}
    assert len(ours) >= 4
    for command in sorted(ours):
        if "--watch" in command:
            continue  # Until Ctrl-C: see the tests of that command.
        arguments = [str(job.id) if re.fullmatch(r"[0-9a-f]{24}", word) else word for word in command]
        assert run_program(arguments) in (0, 1), command
