"""What the docs say of options, errors and indexes is so, and their programs run."""

from __future__ import annotations

import ast
import os
import re
import runpy
import secrets
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import trio_monque
import trio_monque.testing
from docs import overview_diagram, sequence_diagram
from tests.faults import document_promises, promises
from tests.protocol import mutations, timed
from tests.support.jobs_in_memory import with_flat
from tests.support.pages import DOCS, PAGES, rows
from tests.support.programs import ROOT, fenced_blocks, quoted_blocks, run_program, uri_of_database
from tests.support.store import PAST, claim_due, handle, insert
from tests.support.thoroughly import one_in
from tests.support.waiting import wait_until
from trio_monque import Monque, Retention
from trio_monque.claims.claim_options import ClaimConfig
from trio_monque.embedded import EmbeddedServer
from trio_monque.engine.lease import LeaseTerms
from trio_monque.jobs import transitions
from trio_monque.jobs.conditional_write import Transition
from trio_monque.jobs.error_history import Failure
from trio_monque.jobs.job import Job
from trio_monque.locks_and_dead_letters import LockStamp, dead_letter_lock, freed
from trio_monque.options_and_defaults import LEASE_IN_BEATS, SchedulerConfig
from trio_monque.store.driver.database_threads import CONNECTIONS_NEEDED, Channel
from trio_monque.store.driver.types import Database
from trio_monque.store.job_collection import JobCollection
from trio_monque.store.jobs import indexes, leases, settling
from trio_monque.testing import plugin


def test_options_page_has_every_option_with_its_default() -> None:
    reported = {
        row[0].strip("`"): ast.literal_eval(row[1].strip("`")) for row in rows("reference/options.md", "# Options")
    }
    assert reported == {field.name: _default(field) for field in fields(SchedulerConfig)}


def test_reference_lists_every_extra_for_users_and_what_each_includes() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    included = {
        extra: sorted(
            one for text in needs for one in re.findall(r"^trio-monque\[(.*)\]$", text) for one in one.split(",")
        )
        for extra, needs in declared.items()
    }
    del included["dev"]
    reported = {
        extra.strip("`"): re.findall(r"`(\w+)`", purpose.partition("Includes")[2])
        for extra, purpose in rows("reference/index.md", "Extras install")
    }
    assert reported == included


def test_claims_page_lists_all_options_with_their_defaults() -> None:
    reported = {
        row[0].strip("`"): ast.literal_eval(row[1].strip("`")) for row in rows("reference/claims.md", "## Options")
    }
    assert reported == {field.name: _default(field) for field in fields(ClaimConfig)}


def _default(field: Field[Any]) -> object:
    return None if field.default is MISSING else field.default  # The instance's id is made where None is given.


def test_reference_of_the_testing_kit_has_every_name_and_fixture() -> None:
    page = (DOCS / "reference/testing.md").read_text(encoding="utf-8")
    documented = re.findall(r"\.\. auto(?:class|function):: (\w+)", page)
    assert sorted(documented) == sorted(trio_monque.testing.__all__)
    source = Path(plugin.__file__).read_text(encoding="utf-8")
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    fixtures = [one.name for one in functions if any("pytest.fixture" in ast.unparse(d) for d in one.decorator_list)]
    assert [row[0].strip("`") for row in rows("reference/testing.md", "## Fixtures")] == fixtures
    assert [row[0].strip("`") for row in rows("how-to/test-your-jobs.md", "## The fixtures")] == fixtures
    assert set(re.findall(r'"(--[\w-]+)"', source)) == set(re.findall(r"--[a-z][\w-]+", page))


PAGES_ON_TESTING = ("how-to/test-your-jobs.md", "how-to/test-time-faults-and-order.md", "how-to/test-on-asyncio.md")

TESTS_OF_THE_GUIDE = {
    name: block
    for page in (*PAGES_ON_TESTING, "how-to/claim-any-document.md")
    for block in fenced_blocks(DOCS / page, "python")
    for name in re.findall(r"^# (test_\w+\.py)$", block.partition("\n")[0])
}


@pytest.mark.full
@pytest.mark.parametrize("with_anyio", [False, True], ids=["pytest-trio", "anyio"])
def test_tests_of_the_guide_pass(mongod: EmbeddedServer, db: Database, tmp_path: Path, with_anyio: bool) -> None:
    files = {name: text for name, text in TESTS_OF_THE_GUIDE.items() if ("anyio" in name) == with_anyio}
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    ini = "[pytest]\nfilterwarnings = error\ntimeout = 30\n" + ("" if with_anyio else "trio_mode = true\n")
    (tmp_path / "pytest.ini").write_text(ini, encoding="utf-8")
    others = "no:trio" if with_anyio else "no:anyio"
    printed = run_program("-m", "pytest", "-q", "-p", others, str(tmp_path), uri=mongod.uri, database=db.name)
    assert f"{len(files)} passed" in printed


def test_every_program_of_the_guide_is_run() -> None:
    """A block in the pages that is not a file of a test would be one that no test has run."""
    blocks = [block for page in PAGES_ON_TESTING for block in fenced_blocks(DOCS / page, "python")]
    assert len(blocks) > 0
    assert set(blocks) < set(TESTS_OF_THE_GUIDE.values())
    assert len(TESTS_OF_THE_GUIDE) == len(blocks) + 1


def test_index_page_has_every_index() -> None:
    reported = [row[0].strip("`") for row in rows("reference/indexes.md", "# Indexes") if row[0].startswith("`")]
    known = (*indexes.ALL, *indexes.IF_NEEDED, indexes.of_field("meta.tenant"))
    assert reported == [index.document["name"] for index in known]


BEAT = PAST + timedelta(seconds=1)


def renewed(job: Job) -> Job:
    return with_flat(job, last_heartbeat=BEAT, renewed_at=BEAT)


SETTLEMENTS: Mapping[str, Callable[[Job], Transition]] = {
    "complete": lambda job: transitions.complete(job, PAST),
    "fail": lambda job: transitions.fail(job, PAST, Failure("no")),
    "cancel_claimed": lambda job: transitions.cancel_claimed(job, PAST),
    "release": lambda job: transitions.release(job, PAST),
    "rescue": lambda job: transitions.rescue(
        with_flat(job, last_heartbeat=BEAT, renewed_at=BEAT), PAST, job.next_run_at
    ),
    "retry": lambda job: transitions.retry(job, PAST, Failure("no"), PAST + timedelta(seconds=2)),
    "snooze": lambda job: transitions.snooze(job, PAST, PAST + timedelta(seconds=2)),
    "go_on": lambda job: transitions.go_on(job, PAST, PAST + timedelta(hours=1)),
}


@pytest.fixture
def profiled(db: Database) -> JobCollection:
    """The jobs collection with its indexes, in a database that records what each write costs."""
    jobs = handle(db)
    indexes.ensure(jobs)
    db.command("profile", 2)
    return jobs


def costs(jobs: JobCollection) -> Sequence[tuple[int, int]]:
    """Index entries written and removed, by each write that was recorded."""
    database = jobs.collection.database
    writes = [{"op": {"$in": ["insert", "update", "remove"]}}, {"command.findAndModify": {"$exists": True}}]
    written = database["system.profile"].find({"$or": writes}, sort=[("$natural", 1)])
    found = [(one.get("keysInserted", 0), one.get("keysDeleted", 0)) for one in written]
    database.command("profile", 0)
    return found


@pytest.mark.parametrize(("settlement", "unique_key"), one_in(2, list(SETTLEMENTS), [None, "k"]))
def test_index_page_tells_what_a_transition_costs(
    profiled: JobCollection, settlement: str, unique_key: str | None
) -> None:
    insert(profiled, **({} if unique_key is None else {"unique_key": unique_key}))
    (job,) = claim_due(profiled, {"greet": 1})
    leases.renew(profiled, [job], BEAT)
    settling.settle(profiled, settling.grouped([SETTLEMENTS[settlement](job)], secrets.token_hex(4)))
    reported = {
        row[0]: _documented_cost(row, with_key=unique_key is not None)
        for row in rows("reference/indexes.md", "## What")
    }
    assert costs(profiled) == [reported[write] for write in ("enqueue", "claim", "renewal", settlement)]


def _costs_of_an_end_and_more(store: JobCollection, settlement: str) -> Sequence[tuple[int, int]]:
    """Of all that can happen to two jobs: one is run, and one is cancelled, retried and deleted."""
    monque = Monque(store.collection.database, skip_index_creation=True)
    database = store.collection.database
    database.command("profile", 2)
    run, other = insert(store), insert(store, run_at=PAST + timedelta(days=9))
    (job,) = claim_due(store, {"greet": 1})
    assert job.id == run.id
    leases.renew(store, [job], BEAT)
    settling.settle(store, settling.grouped([SETTLEMENTS[settlement](job)], secrets.token_hex(4)))
    for act in (monque.sync.cancel_job, monque.sync.retry_job, monque.sync.cancel_job, monque.sync.delete_job):
        assert act(other.id)
    found = costs(store)
    database["system.profile"].drop()
    return found


@pytest.mark.parametrize(
    ("settlement", "wanted"), one_in(4, list(SETTLEMENTS), [Retention(completed=0), Retention(keep_last=1)])
)
def test_index_page_tells_what_retention_costs_on_top(db: Database, settlement: str, wanted: Retention) -> None:
    store = handle(db)
    indexes.ensure(store)
    before = _costs_of_an_end_and_more(store, settlement)
    store.collection.delete_many({})
    indexes.ensure(store, wanted)
    after = _costs_of_an_end_and_more(store, settlement)
    reported = {
        row[0]: (int(row[1]), int(row[2])) for row in rows("reference/indexes.md", "| Write | Written on top")[:4]
    }
    ends, retried, deleted, other = reported.values()
    (named,) = (cell for cell in reported if cell.startswith("a job ends"))
    settled = ends if re.search(rf"\b{settlement}\b", named) else other
    on_top = [(late[0] - early[0], late[1] - early[1]) for early, late in zip(before, after, strict=True)]
    assert on_top == [other, other, other, other, settled, ends, retried, ends, deleted]


def _documented_cost(row: Sequence[str], *, with_key: bool) -> tuple[int, int]:
    def count(cell: str) -> int:
        plain, *keyed = re.findall(r"\d+", cell)
        return int(keyed[0] if with_key and keyed else plain)

    def marks(sign: str) -> int:
        return sum(sign in cell and (with_key or "(" not in cell) for cell in row[1:-2])

    written, removed = count(row[-2]), count(row[-1])
    assert (written, removed) == (marks("+"), marks("−")), f"the marks and the counts of {row[0]} differ"  # noqa: RUF001
    return written, removed


FIRST_STEPS = DOCS / "tutorial/first-steps.md"


@pytest.mark.full
def test_programs_of_the_first_steps_run_and_print_what_the_page_says(mongod: EmbeddedServer, db: Database) -> None:
    programs = [block for block in fenced_blocks(FIRST_STEPS, "python") if "embedded_mongod" in block]
    for program, printed in zip(programs, fenced_blocks(FIRST_STEPS, "text"), strict=True):
        assert run_program("-c", program, uri=mongod.uri, database=db.name) == printed


@pytest.fixture
def first_steps(mongod: EmbeddedServer, db: Database, tmp_path: Path) -> Path:
    """A folder with the files of the page, which use the tests' server and a database of the test's own."""
    for block in fenced_blocks(FIRST_STEPS, "python"):
        if name := re.match(r"# (\w+\.py)\n", block):
            own = block.replace('client["shop"]', f'client["{db.name}"]')
            own = own.replace("mongodb://localhost:27017/?replicaSet=rs0", mongod.uri)
            (tmp_path / name[1]).write_text(own, encoding="utf-8")
    assert {path.name for path in tmp_path.iterdir()} == {"jobs.py", "test_jobs.py", "work.py", "order.py"}
    return tmp_path


@pytest.mark.full
def test_tests_of_the_first_steps_pass(first_steps: Path, mongod: EmbeddedServer, db: Database) -> None:
    (command,) = (block for block in fenced_blocks(FIRST_STEPS, "") if block.startswith("pytest "))
    *options, file = command.split()[1:]
    arguments = ["-m", "pytest", "-q", "-c", os.devnull, "-W", "error", *options, str(first_steps / file)]
    assert "3 passed" in run_program(*arguments, uri=mongod.uri, database=db.name)


@pytest.mark.full
def test_two_programs_of_the_first_steps_work_together(first_steps: Path, mongod: EmbeddedServer, db: Database) -> None:
    printed = run_program(str(first_steps / "order.py"), uri=mongod.uri, database=db.name)
    assert printed == "enqueued send\n"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, str(first_steps / "work.py")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "sent to ada@example.org\n"
        worker.terminate()
    assert worker.returncode == 0
    assert db["monque_jobs"].count_documents({"name": "send", "status": "completed"}) == 1


@pytest.mark.full
def test_commands_of_the_first_steps_run_and_show_the_job(
    first_steps: Path, mongod: EmbeddedServer, db: Database
) -> None:
    """Each line of the page, in its order, in the folder of its programs."""
    run, *looks = (
        line for block in fenced_blocks(FIRST_STEPS, "sh") for line in block.splitlines() if "export" not in line
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MONQUE_URI": uri_of_database(mongod.uri, db.name)}

    def command(line: str) -> list[str]:
        program, *arguments = shlex.split(line)
        assert program == "trio-monque"
        return [sys.executable, "-m", "trio_monque", *arguments]

    with subprocess.Popen(
        command(run), cwd=first_steps, env={**environment, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        wait_until(Monque(db).sync.instances, "it has an entry")
        shown = [
            subprocess.run(command(line), env=environment, capture_output=True, text=True, check=False)
            for line in looks
        ]
        assert worker.stdout.readline() == "sent to ada@example.org\n"
        worker.terminate()
    assert worker.returncode == 0
    assert [one.stderr for one in shown] == [""] * len(looks)
    assert [one.returncode for one in shown[:-1]] == [0] * (len(looks) - 1)
    assert all("send" in one.stdout for one in shown[:-1])
    assert shown[-1].returncode in (0, 1)  # The doctor may have found a surprise of this machine.


def test_code_is_in_the_page_and_quotes_a_file_to_the_letter() -> None:
    """Pages are read where nothing builds them, too: an include would show no code there."""
    for page in (ROOT / "README.md", *PAGES):
        assert "literalinclude" not in page.read_text(encoding="utf-8"), page
        for file, code in quoted_blocks(page):
            assert code in (ROOT / file).read_text(encoding="utf-8") + "\n", f"{page} quotes {file} wrongly"


# What pages said once, and what is not so.
UNTRUE = (
    "What handlers return is not stored",
    "Not raised yet",
    "Nothing deletes them by itself",
    "Not there yet: taking over claims",
    "connection pool of\nat least 16",
    "(see below)",
)


def test_page_does_not_say_again_what_is_untrue() -> None:
    texts = {page: page.read_text(encoding="utf-8") for page in (ROOT / "README.md", *PAGES)}
    assert [(page, phrase) for page, text in texts.items() for phrase in UNTRUE if phrase in text] == []


def test_number_of_connections_is_the_one_that_is_checked() -> None:
    """In prose and in docstrings: the number comes from the channels, and has changed before."""
    pages = [*PAGES, ROOT / "README.md", *(ROOT / "trio_monque").rglob("*.py")]
    found = {
        int(number)
        for page in pages
        for text in [page.read_text(encoding="utf-8")]
        for number in re.findall(r"(\d+) connections|maxPoolSize`? of at least (\d+)|pool of\s+at least (\d+)", text)
        for number in number
        if number
    }
    assert found == {CONNECTIONS_NEEDED, CONNECTIONS_NEEDED + Channel.COMMANDS.value}  # On trio, and on asyncio.


def test_page_on_logging_has_every_logger() -> None:
    loggers = {
        f"trio_monque.{part}".rstrip(".")
        for path in (ROOT / "trio_monque").rglob("*.py")
        for part in re.findall(r'= logger_of\((?:"([\w.]*)")?\)', path.read_text(encoding="utf-8"))
    }
    assert "trio_monque.scheduler" in loggers
    page = (DOCS / "how-to" / "log.md").read_text(encoding="utf-8")
    assert {name for name in loggers if f"`{name}`" not in page} == set()


def test_every_row_of_every_table_has_as_many_cells_as_its_head() -> None:
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for table in re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE):
            counts = {len(re.findall(r"(?<!\\)\|", re.sub(r"`[^`]*`", "", row))) for row in table.splitlines()}
            assert len(counts) == 1, f"{page.name}: {table.splitlines()[0]}"


def test_python_of_the_docs_can_be_parsed_and_imports_what_exists() -> None:
    for page, block in ((path, code) for path in PAGES for code in fenced_blocks(path, "python")):
        tree = compile(block, str(page), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module in ("trio_monque", "trio_monque.testing"):
                public = trio_monque if node.module == "trio_monque" else trio_monque.testing
                assert {alias.name for alias in node.names} <= set(public.__all__), page


def test_state_diagram_and_its_table_are_those_of_the_code() -> None:
    drawn = runpy.run_path(str(DOCS / "state_diagram.py"))
    assert drawn["PICTURE"].read_text(encoding="utf-8") == drawn["diagram"](), "run python docs/state_diagram.py"
    page = drawn["PAGE"].read_text(encoding="utf-8")
    assert page == drawn["page_with_table"](page), "run python docs/state_diagram.py"


@pytest.mark.parametrize("look", overview_diagram.PALETTES)
def test_picture_of_the_landing_page_is_that_of_the_code_and_on_the_page(look: str) -> None:
    path = overview_diagram.path_of(look)
    assert path.read_text(encoding="utf-8") == overview_diagram.diagram(look), "run python -m docs.overview_diagram"
    assert f"images/{path.name}" in (DOCS / "index.md").read_text(encoding="utf-8")


def test_sequence_diagrams_are_those_of_the_code_and_each_is_on_the_page() -> None:
    page = (DOCS / "explanation/sequences.md").read_text(encoding="utf-8")
    for name, picture in sequence_diagram.PICTURES.items():
        path = sequence_diagram.path_of(name)
        drawn = sequence_diagram.drawn(picture)
        assert path.read_text(encoding="utf-8") == drawn, "run python -m docs.sequence_diagram"
        assert f"]({path.name})" in page
    assert sequence_diagram.FENCE == "_id, status, claimedBy, lockedAt, claimToken"


def test_table_of_transitions_names_functions_that_lead_where_it_says() -> None:
    for row in transitions.TABLE:
        assert callable(getattr(transitions, row.name)), row


def test_behaviours_that_users_rely_on_have_the_tests_that_the_page_names() -> None:
    named = {row[1].strip("`") for row in rows("explanation/behaviours.md", "# What users") if row[1].startswith("`")}
    assert len(named) > 40
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name in sorted(named) if f"def {name}(" not in sources] == []


def test_page_on_faults_has_every_rule_of_the_checker_and_the_tests_that_it_names() -> None:
    reported = [row[0].strip("`") for row in rows("explanation/faults.md", "## Who judges") if row[0][:1] == "`"]
    judging = (*promises.RULES, promises.nothing_is_run_in_vain, promises.renewed_claims_are_kept)
    assert reported == [rule.__name__ for rule in (*judging, *document_promises.RULES)]
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests/faults").glob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (DOCS / "explanation/faults.md").read_text(encoding="utf-8"))
    assert len(named) == 12
    assert [name for name in named if f"def {name}(" not in sources] == []


def test_page_on_leases_has_every_condition_that_the_model_takes_out_and_what_happens() -> None:
    reported = [
        (rule.replace("`", ""), harm.replace("`", ""))
        for rule, harm in rows("explanation/leases.md", "## Each condition")
    ]
    assert reported == [(one.rule, one.harm.replace("`", "")) for one in (*mutations.FOUND, *mutations.REDUNDANT)]
    text = (DOCS / "explanation/leases.md").read_text(encoding="utf-8")
    arithmetic = text.partition("### The arithmetic of leases")[2].partition("###")[0]
    assert re.findall(r"^- (.*)$", arithmetic, re.MULTILINE) == list(timed.BROKEN)


def test_page_on_leases_tells_the_arithmetic_of_the_defaults() -> None:
    defaults = SchedulerConfig()
    terms = LeaseTerms(defaults.heartbeat_interval, defaults.cleanup_timeout)
    reported = [row[2] for row in rows("explanation/leases.md", "## The arithmetic")[:4]]
    moments = (terms.heartbeat_interval, terms.lease_deadline(0), terms.cleaned_up_by(0), 3 * terms.heartbeat_interval)
    assert reported == [f"after {moment:g} s" for moment in moments]


def test_guide_to_claims_tells_the_forms_of_a_lock() -> None:
    """In the order of the table: held, released or failed, set aside, another program's."""
    reported = [
        re.findall(r"[{,] ?(\w+):", row[1]) for row in rows("how-to/locks-and-dead-letters.md", "## The lock")[1:5]
    ]
    held = [*LockStamp.new("host", PAST, 20, "nonce").fields, "tries"]
    assert reported == [held, list(freed(2, PAST)), list(dead_letter_lock(10, "no")), held[:2]]


def test_guide_to_claims_tells_the_arithmetic_of_the_defaults() -> None:
    defaults = ClaimConfig()
    beat, clean_up = defaults.heartbeat_interval, defaults.cleanup_timeout
    text = " ".join((DOCS / "how-to/locks-and-dead-letters.md").read_text(encoding="utf-8").split())
    lease, look = LEASE_IN_BEATS * beat, beat / 2
    assert f"within {lease + look:g} seconds by default, {lease:g} of the lease and {look:g} of the look" in text
    assert f"after {LeaseTerms(beat, clean_up).cleaned_up_by(0):.1f} seconds by default" in text
    assert f"({beat / 6:.1f} seconds by default)" in text
    assert f"one look: {lease + look:g} seconds by default" in text
