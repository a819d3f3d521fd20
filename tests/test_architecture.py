"""The rooms of the package and who may enter whom. If this fails, docs/explanation/files.md is wrong, too."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from docs import room_list
from tests.support.pages import DOCS, rows
from trio_monque.store.fields import FIELD

PACKAGE = Path(__file__).parents[1] / "trio_monque"

# Each room may import only from the rooms listed, and from itself. No room imports the package root.
MAY_IMPORT: dict[str, set[str]] = {
    "safe_text": set(),
    "interruptions": {"foreign_errors"},
    "log": {"safe_text", "foreign_errors", "interruptions"},
    "error_types": {"safe_text"},
    "foreign_errors": {"safe_text", "error_types"},
    "unfinished_work": set(),
    "checks": {"error_types"},
    "options_and_defaults": {"error_types", "checks"},
    "exponential_backoff": {"error_types", "log"},
    "observations": set(),
    "clock": {"error_types"},
    "locks_and_dead_letters": {"options_and_defaults"},
    "loop_time": {"clock"},
    "thread_turns": {"error_types"},
    "threads_and_frozen_time": {"log", "error_types", "clock", "thread_turns", "safe_text"},
    "real_time": {"clock", "threads_and_frozen_time"},
    "grace": set(),
    "loops": {"threads_and_frozen_time"},
    "process_signals": set(),
    "async_with": {"error_types"},
    # What a job is, and how MongoDB remembers it.
    "payloads": {"safe_text"},
    "jobs": {
        "safe_text",
        "log",
        "foreign_errors",
        "error_types",
        "checks",
        "options_and_defaults",
        "exponential_backoff",
        "payloads",
    },
    "events": {"jobs"},
    "errors": {"error_types", "jobs"},
    "store": {
        "safe_text",
        "log",
        "error_types",
        "options_and_defaults",
        "clock",
        "threads_and_frozen_time",
        "grace",
        "jobs",
        "locks_and_dead_letters",
        "unfinished_work",
    },
    # What is wrong, and why: facts without words.
    "diagnosis": {"safe_text", "error_types", "options_and_defaults", "jobs", "store"},
    "client": {
        "foreign_errors",
        "async_with",
        "log",
        "error_types",
        "checks",
        "options_and_defaults",
        "observations",
        "clock",
        "threads_and_frozen_time",
        "grace",
        "safe_text",
        "events",
        "jobs",
        "store",
        "diagnosis",
        "loops",
    },
    # How claimed things are run. Knows no job and no MongoDB.
    "engine": {
        "foreign_errors",
        "log",
        "error_types",
        "options_and_defaults",
        "exponential_backoff",
        "observations",
        "clock",
        "loop_time",
        "real_time",
        "grace",
        "safe_text",
        "loops",
    },
    # One life for each kind that is claimed and run: jobs, documents, or a third kind. Knows none of them.
    "host": {
        "unfinished_work",
        "log",
        "error_types",
        "options_and_defaults",
        "clock",
        "threads_and_frozen_time",
        "grace",
        "events",
        "store",
        "client",
        "engine",
    },
    # Where handlers run: a trio run in a thread of its own and an asyncio loop, as each calls the other.
    "bridge": {
        "safe_text",
        "log",
        "error_types",
        "foreign_errors",
        "unfinished_work",
        "grace",
        "loops",
        "events",
        "store",
        "client",
        "engine",
        "host",
    },
    # Where the two columns meet.
    "scheduler": {
        "foreign_errors",
        "unfinished_work",
        "async_with",
        "safe_text",
        "log",
        "error_types",
        "checks",
        "options_and_defaults",
        "exponential_backoff",
        "observations",
        "clock",
        "loop_time",
        "threads_and_frozen_time",
        "process_signals",
        "grace",
        "payloads",
        "events",
        "jobs",
        "store",
        "client",
        "engine",
        "host",
        "bridge",
    },
    "claims": {
        "foreign_errors",
        "unfinished_work",
        "async_with",
        "safe_text",
        "log",
        "error_types",
        "checks",
        "options_and_defaults",
        "exponential_backoff",
        "observations",
        "clock",
        "locks_and_dead_letters",
        "events",
        "jobs",
        "store",
        "client",
        "engine",
        "host",
        "bridge",
        "threads_and_frozen_time",
    },
    # What stands on top.
    "embedded": {"error_types", "store"},
    "testing": {
        "foreign_errors",
        "error_types",
        "checks",
        "options_and_defaults",
        "clock",
        "loop_time",
        "threads_and_frozen_time",
        "thread_turns",
        "jobs",
        "store",
        "client",
        "engine",
        "host",
        "bridge",
        "scheduler",
        "embedded",
    },
    "otel": {"safe_text", "interruptions", "log", "jobs", "scheduler", "client"},
    "metrics": {
        "log",
        "error_types",
        "checks",
        "clock",
        "events",
        "jobs",
        "client",
        "host",
        "scheduler",
        "claims",
    },
    "web": {
        "log",
        "error_types",
        "checks",
        "events",
        "jobs",
        "store",
        "diagnosis",
        "client",
        "scheduler",
        "claims",
        "metrics",
        "locks_and_dead_letters",
    },
    "cli": {
        "safe_text",
        "log",
        "process_signals",
        "error_types",
        "checks",
        "options_and_defaults",
        "jobs",
        "store",
        "diagnosis",
        "client",
        "host",
        "scheduler",
        "claims",
        "metrics",
        "web",
        "embedded",
    },
    "entry_point": {"cli"},
    "__main__": {"entry_point"},
}
MAY_IMPORT_LIBRARY: dict[str, set[str]] = {
    "pymongo": {"store"},
    "bson": {"store", "jobs", "events", "payloads"},
    # Only where a class of theirs was given.
    "pydantic": {"payloads"},
    "pydantic_core": {"payloads"},
    "msgspec": {"payloads"},
    "attrs": {"payloads"},
    "trio": {
        "interruptions",
        "clock",
        "loops",
        "real_time",
        "thread_turns",
        "loop_time",
        "threads_and_frozen_time",
        "grace",
        "store",
        "client",
        "engine",
        "host",
        "bridge",
        "scheduler",
        "claims",
        "embedded",
        "cli",
        "testing",
    },
    "anyio": {"store", "client", "scheduler", "bridge", "claims", "embedded", "testing", "cli", "web"},
    "starlette": {"web", "cli"},
    "hypercorn": {"cli"},
    "jinja2": {"web"},
    "markupsafe": {"web"},  # Of jinja2.
    "pytest": {"testing"},
    "cronsim": {"jobs"},
    "outcome": {"thread_turns", "engine", "bridge", "host"},
    "rich": {"cli"},
    "click": {"cli"},
    "watchfiles": {"cli"},
    "prometheus_client": {"metrics", "cli", "web"},
    "opentelemetry": {"otel"},
}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported_by(path: Path) -> Iterator[str]:
    """Absolute names of all that is imported, also lazily and for type checking only."""
    package = ["trio_monque", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from (f"{stem}.{alias.name}" for alias in node.names)


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.full
def test_file_imports_only_what_its_room_may() -> None:
    for path in FILES:
        here = room_of(path)
        assert here in MAY_IMPORT, f"{path}: {here} is no room of the house"
        for name in imported_by(path):
            top, *rest = name.split(".")
            if top == "trio_monque":
                target = rest[0] if rest else "the package root"
                assert target == here or target in MAY_IMPORT[here], f"{path}: {here} imports {target}"
            elif top in MAY_IMPORT_LIBRARY:
                assert here in MAY_IMPORT_LIBRARY[top], f"{path}: {here} imports {top}"


def test_imports_of_the_rooms_point_one_way() -> None:
    """The map itself has no cycle: there is an order in which each room imports only what came before."""
    placed: set[str] = set()
    while len(placed) < len(MAY_IMPORT):
        ready = {room for room, targets in MAY_IMPORT.items() if room not in placed and targets <= placed}
        assert ready, f"a cycle among {MAY_IMPORT.keys() - placed}"
        placed |= ready


# Files that import each other, directly or through others. A reader of one needs all of them, so there must be none.
KNOWN_CYCLES: list[set[str]] = []


def test_no_two_files_import_each_other_inside_a_room_or_for_type_checking() -> None:
    assert cycles_among(files_imported_by_each()) == KNOWN_CYCLES


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set[str](), "e": {"f"}, "f": {"e"}}
    assert cycles_among(graph) == [{"a", "b", "c"}, {"e", "f"}]


def files_imported_by_each() -> dict[str, set[str]]:
    """Module names; an import of a name counts as one of the file that defines it."""
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in FILES}
    modules = {name.removesuffix(".__init__"): path for name, path in modules.items()}
    graph: dict[str, set[str]] = {}
    for module, path in modules.items():
        graph[module] = set()
        for name in imported_by(path):
            while name and name not in modules:
                name = name.rpartition(".")[0]
            if name and name != module:
                graph[module].add(name)
    return graph


def cycles_among(graph: dict[str, set[str]]) -> list[set[str]]:
    """Each as the set of its files: those that reach each other."""
    reached = {module: _reached_from(module, graph) for module in graph}
    cycles: list[set[str]] = []
    for module in sorted(graph):
        cycle = {other for other in reached[module] if module in reached[other]}
        if cycle and cycle not in cycles:
            cycles.append(cycle)
    return cycles


def _reached_from(module: str, graph: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = [module]
    while left:
        new = graph[left.pop()] - found
        found |= new
        left += new
    return found


def test_pytest_is_imported_by_the_plugin_only_and_the_plugin_imports_nothing_else_at_its_top() -> None:
    """It is loaded in every session of pytest, and the rest of the room works where pytest is not installed."""
    plugin = PACKAGE / "testing" / "plugin.py"
    assert [path for path in FILES if "pytest" in {name.split(".")[0] for name in imported_by(path)}] == [plugin]
    at_top = [node for node in ast.parse(plugin.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in at_top:
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        assert isinstance(node, ast.Import) or not node.level, ast.unparse(node)
        assert module is not None
        assert module == "pytest" or module.split(".")[0] in sys.stdlib_module_names, module


def test_one_file_spells_the_fields_of_documents() -> None:
    """Those in camel case: the others are words that stand for other things, too."""
    spelled = {field for field in FIELD.values() if field != field.lower()}
    assert {"nextRunAt", "claimedBy", "lockedAt", "claimToken", "failCount"} <= spelled
    # The entry of an instance, in a collection of its own, has fields that happen to be called the same.
    of_instances = {"heartbeatInterval", "startedAt"}
    for path in FILES:
        constants = {node.value for node in ast.walk(parsed(path)) if isinstance(node, ast.Constant)}
        others = of_instances if path == PACKAGE / "store" / "jobs" / "instances.py" else set()
        if PACKAGE / "web" / "api" in path.parents:
            others = spelled  # The names of the contract, which is that of Monque's clients, and stays.
        found = constants & spelled - others
        assert found == (spelled if path == PACKAGE / "store" / "fields.py" else set()), path


def test_page_on_files_has_every_room_and_what_it_may_import() -> None:
    on_page = [tuple(row) for row in rows("explanation/files.md", "## Who may import whom")]
    assert on_page == [
        (f"`{room}`", _listed(targets), _listed(name for name, rooms in MAY_IMPORT_LIBRARY.items() if room in rooms))
        for room, targets in MAY_IMPORT.items()
    ]


def test_pages_say_of_the_modules_what_these_say_of_themselves() -> None:
    page, files = (path.read_text(encoding="utf-8") for path in (room_list.ARCHITECTURE, room_list.FILES))
    assert page == room_list.updated_architecture(page), "run python -m docs.room_list"
    assert files == room_list.updated_files(files), "run python -m docs.room_list"
    for room in room_list.ROOMS:
        assert f"\n### `{room}/`\n\n<!-- room {room} -->\n" in page, (
            f"the page on the architecture has no paragraph on {room}"
        )


def test_files_that_the_page_on_architecture_names_exist() -> None:
    page = room_list.ARCHITECTURE.read_text(encoding="utf-8")
    missing = []
    for section in re.split(r"^(?=#+ )", page, flags=re.MULTILINE):
        heading = re.match(r"### `(\w+)/`", section)
        folder = PACKAGE / (heading[1] if heading else "")
        for name in re.findall(r"`([\w/]+\.py)`", section):
            places = [PACKAGE / name, PACKAGE.parent / name]
            found = any(place.exists() for place in places) or any(folder.rglob(name) if heading else ())
            missing += [] if found else [f"{section.splitlines()[0]} {name}"]
        missing += [name for name in re.findall(r"`([a-z]+(?:/[a-z]+)*)/`", section) if not _is_folder(name)]
    drawn = "".join(re.findall(r"^```text\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL))
    modules = re.findall(rf"\b(?:{'|'.join(room_list.ROOMS)})(?:\.[a-z_]+)+", drawn)
    assert len(modules) > 20
    missing += [name for name in modules if not (PACKAGE / name.replace(".", "/")).with_suffix(".py").exists()]
    assert missing == []


def _is_folder(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE.parent / name).is_dir()


def test_picture_of_the_rooms_is_drawn_from_the_same_table() -> None:
    drawn = runpy.run_path(str(DOCS / "room_diagram.py"))
    picture = drawn["PICTURE"].read_text(encoding="utf-8")
    assert picture == drawn["diagram"](MAY_IMPORT), "run python -m docs.room_diagram"


@pytest.mark.parametrize(
    ("room", "may_import", "complaint"),
    [("jobs", {"store"}, "must stand in a row below it"), ("brokers", set[str](), "brokers")],
    ids=["upward", "unknown"],
)
def test_picture_refuses_an_import_upward_and_an_unknown_room(room: str, may_import: set[str], complaint: str) -> None:
    drawn = runpy.run_path(str(DOCS / "room_diagram.py"))
    with pytest.raises(AssertionError, match=complaint):
        drawn["diagram"]({**MAY_IMPORT, room: may_import})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "—"


@pytest.mark.full
def test_no_two_classes_have_one_name() -> None:
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


PARALLEL_COLUMNS = ({"scheduler", "claims"}, {"store/jobs", "store/documents"})


def test_files_of_one_name_are_in_parallel_columns() -> None:
    """A tab of an editor, or a line of a traceback, shows the name of a file first."""
    places: dict[str, set[str]] = {}
    for path in FILES:
        if not path.name.startswith("__"):
            places.setdefault(path.name, set()).add(path.parent.relative_to(PACKAGE).as_posix())
    # The work on claims has two pairs: what to claim, and the command that does it.
    allowed = [*PARALLEL_COLUMNS, set.union(*PARALLEL_COLUMNS)]
    assert {name: rooms for name, rooms in places.items() if len(rooms) > 1 and rooms not in allowed} == {}
