"""The benchmarks run, compare what they say, and the page about them tells what was found. Nothing here is timed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from benchmarks import collection_sizes, page, payload_reading, picture, report
from benchmarks.__main__ import PARTS
from benchmarks.claim_cost import Examined
from benchmarks.measuring import new_database
from benchmarks.report import Comparison, Figure, Results
from tests.support import many_jobs
from tests.support.pages import DOCS, PAGES, rows
from tests.support.programs import run_program
from trio_monque.embedded import EmbeddedServer
from trio_monque.store.driver.types import Database

FLOORS = {"F1", "FB", *(name for n in (10, 100, 500) for name in (f"P{n}", f"trio {n}", f"P{n} python"))}
KEYS_OF_THROUGHPUT = {"T.10", "T.100", "T.500", "T.many.10", "T.many.100", "T.many.500"}


@pytest.mark.full
def test_quick_run_measures_throughput_and_enqueuing_beside_floors(
    mongod: EmbeddedServer, db: Database, tmp_path: Path
) -> None:
    found, drawn = tmp_path / "found.json", tmp_path / "drawn.svg"
    order = ["-m", "benchmarks", "--quick", "--only", "T,E", "--json", str(found), "--svg", str(drawn)]
    printed = run_program(*order, uri=mongod.uri, database=db.name)
    results = report.loaded(found)
    by_key = {figure.key: figure for figure in results.figures}
    assert by_key.keys() >= KEYS_OF_THROUGHPUT | FLOORS
    assert set(results.seconds) == {"T", "E"}
    for figure in results.figures:
        # The least share may be nothing, of so few jobs.
        assert figure.value > 0 or figure.key.endswith(" share")
        assert figure.what in printed
        for beside in figure.floors:
            assert figure.ratio(beside) is not None, f"{figure.key} is compared with nothing"
    ratios = {beside.floor for beside in by_key["T.10"].floors}
    assert ratios == {"P10", "F1", "trio 10", "P10 with as much Python"}
    assert by_key["E.enqueue_many"].floors[0].at_least == 0.7
    assert results.environment["server"] == db.client.server_info()["version"]
    assert drawn.read_text(encoding="utf-8") == picture.drawn(results)


@pytest.mark.full
def test_claim_beside_a_long_history_examines_what_it_examines_alone(
    mongod: EmbeddedServer, db: Database, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    run_program("-m", "benchmarks", "--quick", "--only", "S", "--json", str(found), uri=mongod.uri, database=db.name)
    results = report.loaded(found)
    assert [figure.key for figure in results.figures] == ["S.keys", "S.documents"]
    for figure in results.figures:
        assert figure.value >= 1
        assert report.reached(figure.floors[0], figure.ratio(figure.floors[0]))


@pytest.mark.full
def test_claims_on_a_plain_collection_are_measured_beside_as_many_jobs(
    mongod: EmbeddedServer, db: Database, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    run_program("-m", "benchmarks", "--quick", "--only", "C", "--json", str(found), uri=mongod.uri, database=db.name)
    figures = {figure.key: figure for figure in report.loaded(found).figures}
    of = {"", " processor of the client", " processor of the server"}
    assert set(figures) == {f"{key}{side}" for key in ("C.same", "C.own") for side in of}
    for key, beside in (("C.same", "jobs"), ("C.own", "jobs with stored results")):
        (floor,) = figures[key].floors
        assert (floor.floor, floor.at_least) == (beside, 0.8)
        assert figures[key].ratio(floor) is not None


@pytest.mark.full
def test_asyncio_and_uvloop_are_measured_beside_trio(mongod: EmbeddedServer, db: Database, tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    run_program("-m", "benchmarks", "--quick", "--only", "A", "--json", str(found), uri=mongod.uri, database=db.name)
    figures = {figure.key: figure for figure in report.loaded(found).figures}
    throughput = {f"A.{slots} {loop}" for slots in (10, 100, 500) for loop in ("asyncio", "uvloop")}
    latency = {f"A.{way} {loop}" for way in ("wake", "wake same", "cancel") for loop in ("asyncio", "uvloop")}
    expected = throughput | {f"{key} processor of the client" for key in throughput}
    expected |= latency | {f"{key} more" for key in latency} | {"A.jobs", "A.jobs, RSS"}
    assert set(figures) == expected
    for key in throughput | latency:
        (on_trio,) = figures[key].floors
        assert on_trio.floor == "trio"
        assert figures[key].ratio(on_trio) is not None
    assert figures["A.100 asyncio"].floors[0].at_least == 0.5
    assert figures["A.wake asyncio more"].at_most == 1.5


@pytest.mark.full
def test_what_a_fleet_meets_is_measured_beside_what_is_usual(
    mongod: EmbeddedServer, db: Database, tmp_path: Path
) -> None:
    found = tmp_path / "found.json"
    run_program("-m", "benchmarks", "--quick", "--only", "F", "--json", str(found), uri=mongod.uri, database=db.name)
    figures = {figure.key: figure for figure in report.loaded(found).figures}
    names = {f"F.names processor of {side}" for side in ("the client", "client and server")}
    few = {"F.few keys", "F.few commands"}
    payloads = {f"F.payloads {slots}" for slots in (10, 100)}
    processes = {"F.run 1", "F.run 2", "F.run 4", "F.raw 4", "F.busy 1", "F.busy 2", "F.lost"}
    assert set(figures) == names | few | payloads | processes | {"F.schedules processor", "F.schedules commands"}
    for key in names:
        assert (figures[key].floors[0].floor, figures[key].floors[0].at_most) == ("one name", 1.3)
    assert all(figures[key].at_most == 64 for key in payloads)
    assert (figures["F.run 4"].floors[0].floor, figures["F.run 4"].floors[0].at_least) == ("two processes", 0.95)
    assert figures["F.lost"].at_most == 5
    # These are counted, so that a busy machine does not matter.
    assert report.reached(figures["F.few keys"], figures["F.few keys"].value)
    assert report.reached(figures["F.few commands"], figures["F.few commands"].value)


COMMAND = re.compile(r"python -m (benchmarks[.\w]*)((?: --?[\w-]+(?: [\w,]+)?)*)")


def test_commands_of_the_pages_are_benchmarks_and_their_parts() -> None:
    found = [command for path in PAGES for command in COMMAND.findall(path.read_text(encoding="utf-8"))]
    assert len(found) > 20
    for module, options in found:
        assert importlib.util.find_spec(module) is not None, module
        parts = re.search(r"--only ([A-Z,]+)", options)
        assert parts is None or module != "benchmarks" or set(parts[1].split(",")) <= set(PARTS), options


def test_sections_with_figures_name_the_command_that_measures_them() -> None:
    sections = [
        section
        for name in ("performance", "where-the-time-goes")
        for section in re.split(r"^(?=## )", (DOCS / f"explanation/{name}.md").read_text(encoding="utf-8"), flags=re.M)
        if re.search(r"^\|.*\d.*\|$|\d (?:µs|ms|s|KB|MB)\b", section, re.MULTILINE) and section.startswith("## ")
    ]
    assert len(sections) >= 7
    assert [section.partition("\n")[0] for section in sections if not COMMAND.search(section)] == []


@pytest.mark.full
def test_reading_of_payloads_is_measured_for_each_library_and_size() -> None:
    heads, _, *lines = payload_reading.table(1).splitlines()
    on_page = rows("explanation/where-the-time-goes.md", "## What large payloads cost")
    assert heads in (DOCS / "explanation/where-the-time-goes.md").read_text(encoding="utf-8")
    assert [line.split("|")[1].strip() for line in lines] == [row[0] for row in on_page[2 : 2 + len(lines)]]


def test_each_part_is_measured_has_a_title_and_a_row_on_the_page() -> None:
    described = (DOCS / "explanation/benchmarks.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| ([A-Z]) \| ", described, flags=re.MULTILINE)
    assert table == list(report.PARTS) == list(PARTS)


def test_costs_in_collections_of_several_sizes_have_a_column_each() -> None:
    costs = {"a claimed job": Examined(2.01, 2), "a page": Examined(51, 1_234_567)}
    heads, *lines = collection_sizes.table({20_000: costs, 1_000_000: costs}).splitlines()
    assert heads.split()[-2:] == ["20,000", "1,000,000"]
    assert lines[0].split() == ["a", "claimed", "job", *["2.01", "2"] * 2]
    assert lines[1].split() == ["a", "page", *["51", "1,234,567"] * 2]
    assert len({len(line) for line in (heads, *lines)}) == 1


@pytest.mark.full
def test_a_claimed_job_costs_the_same_in_a_larger_collection(db: Database) -> None:
    many_jobs.insert(db["monque_jobs"], 5_000)
    costs = collection_sizes.costs(db)
    assert next(iter(costs)) == "a claimed job"
    assert costs["a claimed job"].documents <= 2.2
    assert costs["a page of 50 jobs"].documents <= 60


def test_database_of_a_benchmark_is_dropped_also_where_it_fails(client: MongoClient[Any]) -> None:
    name = ""
    with pytest.raises(ZeroDivisionError), new_database(client) as database:
        database["monque_jobs"].insert_one({})
        name = database.name
        assert name in client.list_database_names()
        raise ZeroDivisionError
    assert name not in client.list_database_names()


def a_figure(values: list[float], beside: list[float], **limits: float) -> Figure:
    floors = [Comparison(floor="P", values=beside, **limits)]
    return Figure(part="T", key="T.10", what="10 slots", values=values, unit="jobs/s", floors=floors)


def test_ratio_is_the_median_of_the_ratios_of_the_rounds() -> None:
    figure = a_figure([90.0, 10.0, 500.0], [100.0, 20.0, 500.0])
    assert figure.ratio(figure.floors[0]) == pytest.approx(0.9)


def test_results_are_the_same_when_they_are_read_again() -> None:
    figure = a_figure([1234.5678, 0.1 + 0.2, 99.99996], [3.0, 0.7, 1e-7 / 3], at_least=0.9)
    once = report.parsed(report.dumped(Results(environment={}, seconds={"T": 1.0}, figures=[figure])))
    again = report.dumped(once)
    assert report.dumped(report.parsed(again)) == again
    assert report.parsed(again) == once


def test_ratio_to_a_floor_of_nothing_is_unknown_and_reaches_nothing() -> None:
    figure = a_figure([1.0], [0.0], at_most=1.2)
    assert figure.ratio(figure.floors[0]) is None
    assert report.reached(figure.floors[0], None) is None


@pytest.mark.parametrize(
    ("limits", "reached"),
    [({"at_least": 0.9}, True), ({"at_least": 0.91}, False), ({"at_most": 0.9}, True), ({"at_most": 0.8}, False)],
)
def test_what_is_wanted_is_compared_with_the_ratio(limits: dict[str, float], reached: bool) -> None:
    figure = a_figure([90.0], [100.0], **limits)
    (row,) = report.rows([figure])
    assert row[-1] == ("yes" if reached else "no")


def test_page_and_picture_are_those_of_the_results_that_are_kept() -> None:
    results: Results = report.loaded(page.KEPT)
    text = page.PAGE.read_text(encoding="utf-8")
    assert page.with_figures(text, results) == text, (
        "run python -m benchmarks --render docs/explanation/benchmarks.json"
    )
    assert page.PICTURE.read_text(encoding="utf-8") == picture.drawn(results)
    assert report.dumped(results) == page.KEPT.read_text(encoding="utf-8")
